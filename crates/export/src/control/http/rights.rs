//! Who may ask for what.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use spillway_core::{Error, Kind};

use super::head::RequestHead;
use super::response::{Response, Status};

/// Who reaches a listener, and what they may do there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Who may connect may do everything: a socket with a file mode.
    All,
    /// Programs of this machine, of every user: they may look.
    Look,
    /// Who knows this may do everything; nobody else gets anything.
    Token(String),
}

/// The name of a user that browsers ask for beside the token: any is taken.
const REALM: &str = "WWW-Authenticate: Basic realm=\"spillway: any name, and the token\", charset=\"UTF-8\"";

impl Rights {
    /// Whether anything may be changed here.
    pub(super) fn changes(&self) -> bool {
        !matches!(self, Rights::Look)
    }

    /// Refuses who may not ask this.
    pub(super) fn check(&self, head: &RequestHead, changes: bool) -> Result<(), Response> {
        match self {
            Rights::All => {}
            Rights::Look => expect_own_name(head)?,
            Rights::Token(token) => expect_token(head, token)?,
        }
        if !changes {
            return Ok(());
        }
        if !self.changes() {
            let words = "nothing can be changed here, as every program of this machine can connect: give the server --http unix:PATH, \
                 or --http-token-file FILE too";
            return Err(refusal(Status::Forbidden, words));
        }
        expect_own_page(head)
    }
}

fn refusal(status: Status, words: &str) -> Response {
    Response::error(status, &Error::new(Kind::Denied, words.to_owned()))
}

/// Refuses pages of others whose name was made to mean this machine: a browser takes them for this server's own.
fn expect_own_name(head: &RequestHead) -> Result<(), Response> {
    let host = head.host.as_deref().unwrap_or("localhost");
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok() {
        return Ok(());
    }
    let words = format!("this server is not {host:?}: use localhost or an IP address");
    Err(refusal(Status::Misdirected, &words))
}

/// The token comes as a bearer's, or as the password of any name.
fn expect_token(head: &RequestHead, token: &str) -> Result<(), Response> {
    let given = head.authorization.as_deref().and_then(|text| {
        let (scheme, rest) = text.split_once(' ')?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(rest.as_bytes().to_vec());
        }
        let pair = BASE64_STANDARD.decode(rest).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
        let colon = pair.iter().position(|byte| *byte == b':')?;
        Some(pair[colon + 1..].to_vec())
    });
    match given {
        Some(given) if alike(&given, token.as_bytes()) => Ok(()),
        _ => {
            let words = "give the token of this server: curl -H \"Authorization: Bearer $(cat FILE)\", or as the password of any name";
            Err(refusal(Status::Unauthorized, words).with(REALM))
        }
    }
}

/// In a time that tells nothing about where two of one length differ.
fn alike(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other));
    one.len() == other.len() && differ == 0
}

/// Refuses a change that a page of another server asks for: a browser adds what it knows of the user.
fn expect_own_page(head: &RequestHead) -> Result<(), Response> {
    let same_site = head.site.as_deref().is_none_or(|site| matches!(site, "same-origin" | "none"));
    let same_origin = match (&head.origin, &head.host) {
        (None, _) => true,
        (Some(origin), Some(host)) => {
            origin.split_once("://").is_some_and(|(_, name)| name.eq_ignore_ascii_case(host))
        }
        (Some(_), None) => false,
    };
    if same_site && same_origin {
        return Ok(());
    }
    Err(refusal(Status::Forbidden, "a page of another server asks for a change: refused"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &str) -> RequestHead {
        let text = format!("PUT / HTTP/1.1\r\n{lines}\r\n");
        RequestHead::parse(text.as_bytes()).unwrap().unwrap().0
    }

    fn outcome(rights: &Rights, lines: &str, changes: bool) -> Status {
        rights.check(&head(lines), changes).map_or_else(|refused| refused.status, |()| Status::Fine)
    }

    #[test]
    fn a_socket_with_a_mode_is_for_everything() {
        assert_eq!(outcome(&Rights::All, "Host: whatever\r\n", true), Status::Fine);
        assert_eq!(outcome(&Rights::All, "", true), Status::Fine);
    }

    #[test]
    fn a_port_of_this_machine_is_for_looking_and_has_no_foreign_name() {
        let local = |lines: &str, changes| outcome(&Rights::Look, lines, changes);
        for host in ["localhost", "LocalHost:80", "127.0.0.1:8080", "[::1]:8080", "[::1]", "192.0.2.7"] {
            assert_eq!(local(&format!("Host: {host}\r\n"), false), Status::Fine, "{host}");
            assert_eq!(local(&format!("Host: {host}\r\n"), true), Status::Forbidden, "{host}");
        }
        for host in ["evil.example", "evil.example:8080", "localhost.evil.example", ":80", ""] {
            assert_eq!(local(&format!("Host: {host}\r\n"), false), Status::Misdirected, "{host:?}");
        }
    }

    #[test]
    fn the_token_is_needed_for_everything() {
        let rights = Rights::Token("secret:x".into());
        let basic = |pair: &str| format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(pair));
        for lines in
            ["Authorization: Bearer secret:x\r\n".to_owned(), basic("any:secret:x"), basic(":secret:x")]
        {
            assert_eq!(outcome(&rights, &lines, true), Status::Fine, "{lines}");
        }
        let wrong = ["Bearer secret:", "Bearer secret:xx", "bearer", "Basic !", "Digest secret:x", ""];
        let wrong = wrong.map(|text| format!("Authorization: {text}\r\n"));
        for lines in wrong.into_iter().chain([String::new(), basic("secret:x"), basic("secret:y")]) {
            assert_eq!(outcome(&rights, &lines, false), Status::Unauthorized, "{lines}");
        }
    }

    #[test]
    fn pages_of_others_change_nothing() {
        let trusted = |lines: &str| outcome(&Rights::All, lines, true);
        let own = "Host: a:8\r\nOrigin: http://a:8\r\nSec-Fetch-Site: same-origin\r\n";
        assert_eq!(trusted(own), Status::Fine);
        for lines in [
            "Host: a:8\r\nOrigin: http://b:8\r\n",
            "Host: a:8\r\nOrigin: http://a:9\r\n",
            "Host: a:8\r\nOrigin: null\r\n",
            "Origin: http://a:8\r\n",
            "Host: a:8\r\nSec-Fetch-Site: cross-site\r\n",
            "Host: a:8\r\nSec-Fetch-Site: same-site\r\n",
        ] {
            assert_eq!(trusted(lines), Status::Forbidden, "{lines}");
            assert_eq!(outcome(&Rights::All, lines, false), Status::Fine, "they may look: {lines}");
        }
    }
}
