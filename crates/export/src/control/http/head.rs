//! The head of a request: which method, which path, and the few headers that are heeded here (RFC 9112, by the library httparse).

use percent_encoding::percent_decode_str;
use spillway_core::{Error, Kind};

use super::response::Status;

/// Longest head in bytes, and the most headers.
pub(super) const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// Longest body in bytes.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

/// What a request asks for, without its body.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) method: String,
    /// The parts of the path between slashes, decoded.
    pub(super) path: Vec<String>,
    /// What follows the question mark, as it came.
    pub(super) query: Option<String>,
    /// Bytes of the body.
    pub(super) body_len: usize,
    /// The connection ends with the answer.
    pub(super) close: bool,
    /// The client waits for leave to send the body.
    pub(super) expects: bool,
    pub(super) authorization: Option<String>,
    pub(super) host: Option<String>,
    pub(super) origin: Option<String>,
    /// What a browser says of the page that asks.
    pub(super) site: Option<String>,
}

/// A request that is none, and how it is answered; its connection ends.
#[derive(Debug)]
pub(super) struct BadHead {
    pub(super) status: Status,
    pub(super) error: Error,
}

fn bad(status: Status, words: impl Into<String>) -> BadHead {
    BadHead { status, error: Error::new(Kind::Invalid, words.into()) }
}

impl RequestHead {
    /// The head at the begin of `bytes` and its length, once all of it is there.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, BadHead> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let len = match request.parse(bytes) {
            Ok(httparse::Status::Complete(len)) if len <= HEAD_BYTES_MAX => len,
            Ok(httparse::Status::Partial) if bytes.len() <= HEAD_BYTES_MAX => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                let limits = format!("{HEADERS_MAX} headers and {HEAD_BYTES_MAX} bytes");
                return Err(bad(Status::HeadTooLong, format!("the head is longer than {limits}")));
            }
            Err(why) => {
                return Err(bad(Status::BadRequest, format!("this is no request of HTTP/1.1: {why}")));
            }
        };
        let method = request.method.expect("a complete head has a method").to_owned();
        let (path, query) = target(request.path.expect("a complete head has a target"))?;
        let close = request.version == Some(0);
        let mut head = Self { method, path, query, close, ..Self::default() };
        let mut body_len = None;
        for header in request.headers.iter() {
            head.heed(header, &mut body_len)?;
        }
        head.body_len = body_len.unwrap_or(0);
        assert!(head.body_len <= BODY_BYTES_MAX && len <= bytes.len(), "{head:?} of {len} bytes");
        Ok(Some((head, len)))
    }

    fn heed(&mut self, header: &httparse::Header<'_>, body_len: &mut Option<usize>) -> Result<(), BadHead> {
        let value = || {
            let text = std::str::from_utf8(header.value).map(str::to_owned);
            text.map_err(|_| bad(Status::BadRequest, format!("the header {} is not UTF-8", header.name)))
        };
        match header.name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let len = length(&value()?)?;
                // Two that differ would let two readers see two requests.
                if body_len.replace(len).is_some_and(|before| before != len) {
                    return Err(bad(Status::BadRequest, "there are two lengths of the body"));
                }
            }
            "transfer-encoding" => {
                let words = "bodies in pieces are not read here: give a Content-Length";
                return Err(bad(Status::LengthRequired, words));
            }
            "connection" => self.close |= names(&value()?, "close"),
            "expect" => self.expects = names(&value()?, "100-continue"),
            "authorization" => single(&mut self.authorization, header.name, value()?)?,
            "host" => single(&mut self.host, header.name, value()?)?,
            "origin" => single(&mut self.origin, header.name, value()?)?,
            "sec-fetch-site" => single(&mut self.site, header.name, value()?)?,
            _ => {}
        }
        Ok(())
    }

    /// The value of `key` in the query.
    pub(super) fn parameter(&self, key: &str) -> Option<&str> {
        let pairs = self.query.as_deref()?.split('&');
        pairs.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

fn target(text: &str) -> Result<(Vec<String>, Option<String>), BadHead> {
    let refused = |why: &str| bad(Status::BadRequest, format!("the path {text:?} {why}"));
    let (path, query) = text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
    let path = path.strip_prefix('/').ok_or_else(|| refused("does not begin with a slash"))?;
    let parts = path.split('/').filter(|part| !part.is_empty());
    let parts = parts.map(|part| Ok(percent_decode_str(part).decode_utf8()?.into_owned()));
    let parts: Result<Vec<_>, std::str::Utf8Error> = parts.collect();
    Ok((parts.map_err(|_| refused("is not UTF-8"))?, query.map(str::to_owned)))
}

fn length(text: &str) -> Result<usize, BadHead> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits {
        return Err(bad(Status::BadRequest, format!("a body cannot have {text:?} bytes")));
    }
    let fits = text.parse().ok().filter(|len| *len <= BODY_BYTES_MAX);
    fits.ok_or_else(|| {
        let words = format!("a body of {text} bytes is too long: {BODY_BYTES_MAX} are allowed");
        bad(Status::BodyTooLong, words)
    })
}

/// Whether a list of words has this one.
fn names(list: &str, word: &str) -> bool {
    list.split(',').any(|other| other.trim().eq_ignore_ascii_case(word))
}

fn single(place: &mut Option<String>, name: &str, value: String) -> Result<(), BadHead> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(bad(Status::BadRequest, format!("the header {name} comes twice"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> RequestHead {
        let (head, len) = RequestHead::parse(text.as_bytes()).unwrap().expect("it is complete");
        assert_eq!(len, text.len());
        head
    }

    fn refusal(text: &str) -> (Status, String) {
        let BadHead { status, error } = RequestHead::parse(text.as_bytes()).expect_err(text);
        (status, error.message().to_owned())
    }

    #[test]
    fn a_head_is_taken_apart() {
        let text = "PUT /api/devices/a%20b//mem_limit?from=7&x=1 HTTP/1.1\r\nHOST: localhost:8\r\n\
                    Content-Length: 12\r\nconnection: Keep-Alive, Close\r\nExpect: 100-continue\r\n\
                    Authorization: Bearer t\r\nOrigin: http://a\r\nSec-Fetch-Site: cross-site\r\nX: \u{e9}\r\n\r\n";
        let head = head(text);
        assert_eq!((head.method.as_str(), head.body_len, head.close, head.expects), ("PUT", 12, true, true));
        assert_eq!(head.path, ["api", "devices", "a b", "mem_limit"]);
        assert_eq!((head.parameter("from"), head.parameter("fro")), (Some("7"), None));
        let texts = [&head.host, &head.authorization, &head.origin, &head.site];
        assert_eq!(
            texts.map(|text| text.as_deref().unwrap()),
            ["localhost:8", "Bearer t", "http://a", "cross-site"]
        );
        for part in 0..text.len() {
            assert!(
                RequestHead::parse(&text.as_bytes()[..part]).unwrap().is_none(),
                "{part} bytes are no head"
            );
        }
    }

    #[test]
    fn an_old_client_expects_the_end_of_the_connection() {
        assert!(head("GET / HTTP/1.0\r\n\r\n").close);
        let new = head("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(!new.close && new.path.is_empty() && new.body_len == 0);
    }

    #[test]
    fn what_is_no_head_is_refused_with_a_reason() {
        let with = |header: &str| format!("GET / HTTP/1.1\r\n{header}\r\n\r\n");
        for (text, status, why) in [
            ("\u{1}\r\n\r\n".to_owned(), Status::BadRequest, "no request"),
            ("GET / HTTP/2\r\n\r\n".to_owned(), Status::BadRequest, "no request"),
            ("GET a HTTP/1.1\r\n\r\n".to_owned(), Status::BadRequest, "slash"),
            ("GET http://a/ HTTP/1.1\r\n\r\n".to_owned(), Status::BadRequest, "slash"),
            ("GET /%ff HTTP/1.1\r\n\r\n".to_owned(), Status::BadRequest, "UTF-8"),
            (with("Content-Length: -1"), Status::BadRequest, "-1"),
            (with("Content-Length: +1"), Status::BadRequest, "+1"),
            (with("Content-Length: 1, 1"), Status::BadRequest, "1, 1"),
            (with("Content-Length: 1\r\nContent-Length: 2"), Status::BadRequest, "two lengths"),
            (with("Content-Length: 65537"), Status::BodyTooLong, "65536 are allowed"),
            (with("Content-Length: 99999999999999999999999"), Status::BodyTooLong, "too long"),
            (with("Transfer-Encoding: chunked"), Status::LengthRequired, "Content-Length"),
            (with("Host: a\r\nHost: b"), Status::BadRequest, "twice"),
            (with(&"A: b\r\n".repeat(65)), Status::HeadTooLong, "64 headers"),
            (with(&format!("A: {}", "b".repeat(HEAD_BYTES_MAX))), Status::HeadTooLong, "16384"),
            ("GET /".to_owned() + &"a".repeat(HEAD_BYTES_MAX), Status::HeadTooLong, "16384"),
        ] {
            let (refused, words) = refusal(&text);
            assert!(refused == status && words.contains(why), "{text:?}: {refused:?} {words}");
        }
        assert!(matches!(RequestHead::parse(b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n"), Err(BadHead { .. })));
    }
}
