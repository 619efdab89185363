//! Where a device is reached, as NBD URIs and as commands to paste.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use spillway_core::Error;
use spillway_export::nbd::wire::STRING_LEN_MAX;
use spillway_io::ServerAddress;

/// What is `%XX` in a path that is part of a URI: everything but unreserved characters and slashes (RFC 3986, 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The port of NBD.
const PORT: u16 = 10809;

/// Where an NBD server listens, as a client on this machine reaches it, and whether it speaks TLS there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) place: ServerAddress,
    pub(crate) tls: bool,
}

impl Address {
    /// Of a port that listens at `address`.
    pub(crate) fn tcp(address: SocketAddr) -> Self {
        let ip = address.ip();
        let host = if ip.is_unspecified() { "localhost".to_owned() } else { ip.to_string() };
        Self { place: ServerAddress::Tcp(host, address.port()), tls: false }
    }

    /// Of a unix socket.
    pub(crate) fn unix(path: impl Into<PathBuf>) -> Self {
        Self { place: ServerAddress::Unix(path.into()), tls: false }
    }

    /// The name that the certificate of a server there has to have.
    pub(crate) fn host(&self) -> &str {
        match &self.place {
            ServerAddress::Unix(_) => "localhost",
            ServerAddress::Tcp(host, _) => host,
        }
    }

    /// The URI of export `name` here.
    pub(crate) fn uri(&self, name: &str) -> String {
        let scheme = if self.tls { "nbds" } else { "nbd" };
        match &self.place {
            ServerAddress::Unix(path) => {
                let path = percent_encode(path.as_os_str().as_bytes(), ESCAPED);
                format!("{scheme}+unix:///{name}?socket={path}")
            }
            ServerAddress::Tcp(host, port) if host.contains(':') => {
                format!("{scheme}://[{host}]:{port}/{name}")
            }
            ServerAddress::Tcp(host, port) => format!("{scheme}://{host}:{port}/{name}"),
        }
    }

    /// Where it is, and the name of the export: what [`Address::uri`] makes, and other forms of the NBD project's description of URIs
    /// (doc/uri.md). [`spillway_core::Kind::Invalid`] for anything else.
    pub(crate) fn parse(uri: &str) -> Result<(Self, String), Error> {
        let refused = |why: &str| {
            let forms = "nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH, with nbds for TLS";
            Error::invalid(format!("{uri}: {why}; give {forms}"))
        };
        let (scheme, rest) =
            uri.split_once("://").ok_or_else(|| refused("there is no // behind the scheme"))?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = percent_decoded(export).and_then(|name| String::from_utf8(name).ok());
        let export = export.filter(|name| name.len() <= STRING_LEN_MAX);
        let export = export.ok_or_else(|| refused("the name of the export is no text, or too long"))?;
        let (scheme, tls) = match scheme {
            "nbds" => ("nbd", true),
            "nbds+unix" => ("nbd+unix", true),
            other => (other, false),
        };
        let place = match scheme {
            "nbd" if query.is_some() => return Err(refused("it has parameters")),
            "nbd" => of_host(authority).ok_or_else(|| refused("the host or the port is not one"))?,
            "nbd+unix" if !authority.is_empty() => return Err(refused("it has a host")),
            "nbd+unix" => of_socket(query.unwrap_or(""))
                .ok_or_else(|| refused("it needs socket=PATH and nothing else"))?,
            _ => return Err(refused("it is no address of an NBD server")),
        };
        Ok((Self { place, tls }, export))
    }

    /// Three commands that use export `name`, one a line, each after `indent`.
    pub(crate) fn commands(&self, name: &str, indent: &str) -> String {
        let uri = self.uri(name);
        let place = match &self.place {
            ServerAddress::Unix(path) => format!("-unix {}", quoted(&path.to_string_lossy())),
            ServerAddress::Tcp(host, port) => format!("{host} {port}"),
        };
        if self.tls {
            // Each of them says in another way where certificates are.
            let join = if uri.contains('?') { '&' } else { '?' };
            let uri = format!("{uri}{join}tls-certificates=DIR");
            return format!("{indent}nbdinfo '{uri}'\n{indent}nbdcopy '{uri}' {name}.img\n");
        }
        format!(
            "{indent}qemu-img info '{uri}'\n\
             {indent}nbdcopy '{uri}' {name}.img\n\
             {indent}sudo nbd-client {place} /dev/nbd0 -N {name}\n"
        )
    }
}

/// What the begin of a path says that it names. A file of such a name is reached by `./` in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// A file or block device.
    Path,
    /// An export of an NBD server.
    Nbd,
    /// An image of Ceph RBD.
    Rbd,
}

impl Scheme {
    /// Of that path.
    pub(crate) fn of(path: &Path) -> Self {
        let text = path.to_string_lossy();
        let nbd = ["nbd:", "nbds:", "nbd+unix:", "nbds+unix:"];
        match text.starts_with("rbd:") {
            true => Self::Rbd,
            false if nbd.iter().any(|scheme| text.starts_with(scheme)) => Self::Nbd,
            false => Self::Path,
        }
    }
}

/// A host, which may be an IPv6 address in brackets, and perhaps a port.
fn of_host(authority: &str) -> Option<ServerAddress> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some(""))?)
        }
        None => authority.rsplit_once(':').unwrap_or((authority, "")),
    };
    let port = if port.is_empty() { PORT } else { port.parse().ok().filter(|&port| port > 0)? };
    let plain = !host.is_empty() && !host.contains(['@', '/']);
    plain.then(|| ServerAddress::Tcp(host.to_owned(), port))
}

fn of_socket(query: &str) -> Option<ServerAddress> {
    let path = percent_decoded(query.strip_prefix("socket=")?)?;
    let plain = !path.is_empty() && !path.contains(&0) && !query.contains('&');
    plain.then(|| ServerAddress::Unix(OsString::from_vec(path).into()))
}

/// Text with its `%XX` made bytes; `None` where a `%` begins none.
fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let is_escape =
        |rest: &str| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    text.split('%').skip(1).all(is_escape).then(|| percent_decode_str(text).collect())
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/+:".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_percent_encoded() {
        let unix = |path: &str| Address::unix(path).uri("ram0");
        assert_eq!(unix("/run/user/7/a.sock"), "nbd+unix:///ram0?socket=/run/user/7/a.sock");
        assert_eq!(unix("/tmp/a b'&é"), "nbd+unix:///ram0?socket=/tmp/a%20b%27%26%C3%A9");
        let tcp = |text: &str| Address::tcp(text.parse().unwrap()).uri("ram0");
        assert_eq!(tcp("127.0.0.1:10809"), "nbd://127.0.0.1:10809/ram0");
        assert_eq!(tcp("[::1]:10809"), "nbd://[::1]:10809/ram0");
        assert_eq!(tcp("0.0.0.0:1"), "nbd://localhost:1/ram0");
    }

    fn parse(uri: &str) -> Result<(Address, String), String> {
        Address::parse(uri).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_uri_that_was_shown_is_understood() {
        let places =
            ["127.0.0.1:10809", "[::1]:10809", "[::]:7"].map(|text| Address::tcp(text.parse().unwrap()));
        for address in places.into_iter().chain([Address::unix("/tmp/a b'&%é.sock")]) {
            for tls in [false, true] {
                let address = Address { tls, ..address.clone() };
                assert_eq!(parse(&address.uri("ram0")), Ok((address, "ram0".to_owned())));
            }
        }
    }

    #[test]
    fn addresses_of_others_are_taken_apart() {
        let tcp = |host: &str, port, export: &str| {
            Ok((Address { place: ServerAddress::Tcp(host.to_owned(), port), tls: false }, export.to_owned()))
        };
        assert_eq!(parse("nbd://host/disk"), tcp("host", PORT, "disk"));
        assert_eq!(parse("nbd://host"), tcp("host", PORT, ""));
        assert_eq!(parse("nbd://host:7/a/b%20c"), tcp("host", 7, "a/b c"));
        assert_eq!(parse("nbd://[::1]:7/x"), tcp("::1", 7, "x"));
        assert_eq!(parse("nbd://[fe80::1]/x"), tcp("fe80::1", PORT, "x"));
        let unix = || Address::unix("/run/a b.sock");
        assert_eq!(parse("nbd+unix:///disk?socket=/run/a%20b.sock"), Ok((unix(), "disk".to_owned())));
        assert_eq!(parse("nbd+unix://?socket=/run/a%20b.sock"), Ok((unix(), String::new())));
    }

    #[test]
    fn what_is_wrong_with_an_address_is_named() {
        for (uri, why) in [
            ("", "there is no //"),
            ("nbd:host", "there is no //"),
            ("http://a/b", "no address of an NBD server"),
            ("nbd:///x", "the host or the port"),
            ("nbd://host:port/x", "the host or the port"),
            ("nbd://host:0/x", "the host or the port"),
            ("nbd://user@host/x", "the host or the port"),
            ("nbd://[::1/x", "the host or the port"),
            ("nbd://host/x?socket=/y", "it has parameters"),
            ("nbd://host/%zz", "is no text"),
            ("nbd://host/%", "is no text"),
            ("nbd://host/%+1", "is no text"),
            ("nbd://host/%ff", "is no text"),
            ("nbd+unix://host/x?socket=/y", "it has a host"),
            ("nbd+unix:///a", "it needs socket=PATH"),
            ("nbd+unix:///a?socket=%4", "it needs socket=PATH"),
            ("nbd+unix:///x?socket=/y%00", "it needs socket=PATH"),
            ("nbd+unix:///x?socket=/y&tls=1", "it needs socket=PATH"),
            ("nbds://host/x?socket=/y", "it has parameters"),
            ("nbdss://host/x", "no address of an NBD server"),
        ] {
            let refusal = parse(uri).expect_err(uri);
            assert!(refusal.contains(why) && refusal.starts_with(uri), "{refusal}");
        }
        let scheme = |path: &str| Scheme::of(Path::new(path));
        assert_eq!(
            [scheme("nbds://x"), scheme("nbd+unix:///x"), scheme("rbd:a/b")],
            [Scheme::Nbd, Scheme::Nbd, Scheme::Rbd]
        );
        assert_eq!([scheme("/nbd:x"), scheme("./nbd:x"), scheme("./rbd:a/b")], [Scheme::Path; 3]);
    }

    #[test]
    fn the_help_of_an_origin_names_each_scheme() {
        let options = spillway_layers::stack::options("file").unwrap();
        let path = options.iter().find(|spec| spec.name == "path").unwrap();
        for scheme in ["nbd://", "nbd+unix://", "nbds", "rbd:"] {
            assert!(path.help.contains(scheme), "{scheme}: {}", path.help);
        }
    }

    #[test]
    fn commands_can_be_pasted() {
        let commands = Address::unix("/tmp/a b.sock").commands("ram0", "  ");
        let lines: Vec<_> = commands.lines().collect();
        assert_eq!(lines[0], "  qemu-img info 'nbd+unix:///ram0?socket=/tmp/a%20b.sock'");
        assert_eq!(lines[2], "  sudo nbd-client -unix '/tmp/a b.sock' /dev/nbd0 -N ram0");
        let commands = Address::tcp("[::1]:9".parse().unwrap()).commands("ram0", "");
        assert!(commands.ends_with("sudo nbd-client ::1 9 /dev/nbd0 -N ram0\n"), "{commands}");
        let tls = Address { tls: true, ..Address::unix("/tmp/a.sock") }.commands("ram0", "");
        assert!(
            tls.starts_with("nbdinfo 'nbds+unix:///ram0?socket=/tmp/a.sock&tls-certificates=DIR'\n"),
            "{tls}"
        );
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
