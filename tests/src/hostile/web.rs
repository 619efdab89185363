//! Hostile clients over HTTP: requests of any kind, whole, in part, many at once or drop by drop, from those who may change nothing.
//!
//! A *stranger* has no rights: no token, or a port that only shows. A client with the rights speaks for a page of *another server*, as a
//! browser would. Neither changes anything, whatever it asks for.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use super::Chance;
use super::attack::NOISE;
use super::stacks::Export;
use crate::{PATIENCE, Server};

/// How long a hostile client waits for the server to take or say something.
const IMPATIENCE: Duration = Duration::from_millis(300);

/// Bytes of requests that a client says at once, at most.
const SAID_MAX: usize = 1 << 20;

/// What clients may do, as the server is started.
#[derive(Clone, Debug)]
pub(super) enum Rights {
    /// Everything: a socket with a file mode.
    All,
    /// Look: a port of this machine.
    Look,
    /// Everything with this token, without it nothing.
    Token(String),
}

/// Where a server answers HTTP.
#[derive(Clone, Debug)]
enum Place {
    Socket(PathBuf),
    Port(String),
}

/// HTTP of a running server.
#[derive(Clone, Debug)]
pub(super) struct Web {
    place: Place,
    rights: Rights,
}

/// A stream to either place.
pub(super) trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

impl Web {
    /// Of a server that was started with these rights.
    pub(super) fn of(server: &Server, rights: Rights) -> Self {
        let place = match rights {
            Rights::All => Place::Socket(server.folder().join("http")),
            Rights::Look | Rights::Token(_) => {
                let log = server.log();
                let line = log.lines().find_map(|line| line.trim().strip_prefix("http: http://"));
                Place::Port(line.expect("the start text has the port").trim_end_matches('/').to_owned())
            }
        };
        Self { place, rights }
    }

    /// Connects; reads and writes fail once they have taken so long.
    pub(super) fn connect(&self, patience: Duration) -> io::Result<Box<dyn Stream>> {
        Ok(match &self.place {
            Place::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Box::new(stream)
            }
            Place::Port(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Box::new(stream)
            }
        })
    }

    /// A connection of a client that behaves.
    pub(super) fn enter(&self) -> io::Result<Box<dyn Stream>> {
        self.connect(PATIENCE)
    }

    /// The header that shows the right to connect, if one is needed.
    pub(super) fn authorization(&self) -> String {
        match &self.rights {
            Rights::Token(token) => format!("Authorization: Bearer {token}\r\n"),
            Rights::All | Rights::Look => String::new(),
        }
    }

    /// Headers of a client that may change nothing.
    fn headers(&self, chance: &mut Chance) -> String {
        let stranger = match self.rights {
            Rights::All => false,
            Rights::Look | Rights::Token(_) => chance.one_in(2),
        };
        if stranger { strangers(chance) } else { self.authorization() + &of_another_server(chance) }
    }
}

/// With a token that is none, a name of another server, or nothing.
fn strangers(chance: &mut Chance) -> String {
    let lines = [
        "",
        "Authorization: Bearer 0123456789abcdef012\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Basic YW55Ondyb25n\r\n",
        "Authorization: Basic \u{7f}\u{e9}==\r\n",
        "Host: evil.example\r\n",
        "Host: localhost\r\nOrigin: http://localhost\r\n",
        "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
    ];
    chance.pick(&lines).to_owned()
}

/// As a browser says it for a page of another server.
fn of_another_server(chance: &mut Chance) -> String {
    let lines = [
        "Host: localhost\r\nOrigin: http://evil.example\r\n",
        "Host: localhost\r\nOrigin: null\r\n",
        "Host: localhost\r\nOrigin: http://localhost:1\r\n",
        "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
        "Host: localhost\r\nSec-Fetch-Site: same-site\r\nOrigin: http://localhost\r\n",
        "Origin: http://localhost\r\n",
    ];
    chance.pick(&lines).to_owned()
}

/// Plays one client that asks for things of these exports; how many requests it has begun.
pub(super) fn play(web: &Web, exports: &[Export], chance: &mut Chance) -> u64 {
    let Ok(mut stream) = web.connect(IMPATIENCE) else { return 0 };
    let (count, changes) = (if chance.one_in(2) { 1 } else { chance.spread(200) }, chance.one_in(2));
    let mut bytes = Vec::new();
    for _ in 0..count {
        bytes.extend(request(web, exports, changes, chance));
        bytes.truncate(SAID_MAX);
    }
    if chance.one_in(3) {
        bytes.truncate(chance.below(bytes.len() as u64 + 1) as usize);
    }
    let step = if chance.one_in(3) { chance.spread(64) as usize } else { SAID_MAX };
    // A server that has had enough closes, and one whose answers are not read stops taking.
    let steps = bytes.chunks(step).take(if step < 64 { 2000 } else { usize::MAX });
    let _ = steps.into_iter().try_for_each(|part| stream.write_all(part));
    if !chance.one_in(4) {
        expect_refusals(&mut *stream, changes);
    }
    count
}

/// Reads all answers. Where all requests would change something, none says that it was done.
fn expect_refusals(stream: &mut dyn Stream, changes: bool) {
    let mut said = Vec::new();
    // What came before the server fell silent counts.
    let _ = stream.take(16 << 20).read_to_end(&mut said);
    let done = b"HTTP/1.1 2";
    let found = said.windows(done.len()).position(|words| words == done);
    if let Some(at) = found.filter(|_| changes) {
        let answer = String::from_utf8_lossy(&said[at..said.len().min(at + 400)]).into_owned();
        panic!("a change was made for a client without the right to it: {answer}");
    }
}

/// One request, which would change something or looks.
fn request(web: &Web, exports: &[Export], changes: bool, chance: &mut Chance) -> Vec<u8> {
    let device = device(exports, chance);
    let (method, path) = if changes { change(&device, chance) } else { look(&device, chance) };
    let body = if changes { body(chance) } else { Vec::new() };
    let mut head =
        format!("{method} {path} HTTP/1.{}\r\n{}", chance.pick(&[1, 1, 1, 0]), web.headers(chance));
    head.push_str(&length(body.len(), chance));
    head.push_str(&more(chance));
    head.push_str("\r\n");
    [head.into_bytes(), body].concat()
}

fn device(exports: &[Export], chance: &mut Chance) -> String {
    let known = exports.iter().map(|export| export.name).filter(|name| !name.is_empty());
    let names: Vec<_> = known.chain(["ram0", "disk0", "cache0", "nothing", "%00", "..", ""]).collect();
    chance.pick(&names).to_owned()
}

fn change(device: &str, chance: &mut Chance) -> (&'static str, String) {
    let name = chance.pick(&ATTRIBUTES);
    let of = |rest: &str| format!("/api/devices/{device}{rest}");
    match chance.below(8) {
        0 => ("POST", "/api/server/stop".into()),
        1 => ("POST", "/api/devices".into()),
        2 => ("DELETE", of("")),
        3 => ("POST", of("/reset")),
        4 => ("POST", of("/resize")),
        5 => (chance.pick(&["POST", "PATCH", "OPTIONS", "TRACE", "CONNECT", "A"]), of("")),
        _ => ("PUT", of(&format!("/attributes/{name}"))),
    }
}

/// Attributes that may be set on one device or another, and one that there is not.
const ATTRIBUTES: [&str; 10] = [
    "mem_limit",
    "max_comp_streams",
    "disksize",
    "idle",
    "reset",
    "at_risk_bytes_max",
    "dirty_expire",
    "power_cut",
    "read_us",
    "nothing",
];

fn look(device: &str, chance: &mut Chance) -> (&'static str, String) {
    let name = chance.pick(&ATTRIBUTES);
    let path = match chance.below(8) {
        0 => "/".into(),
        1 => "/metrics".into(),
        2 => "/api/server".into(),
        3 => "/api/devices".into(),
        4 => format!("/api/devices/{device}/attributes"),
        5 => format!("/api/devices/{device}/attributes/{name}?from={}", chance.bits()),
        6 => format!("/{}", "%41/".repeat(chance.spread(6000) as usize)),
        _ => format!("/api/devices/{device}"),
    };
    (chance.pick(&["GET", "GET", "HEAD", "GET"]), path)
}

fn body(chance: &mut Chance) -> Vec<u8> {
    match chance.below(6) {
        0 => Vec::new(),
        1 => b"\"1G\"".to_vec(),
        2 => b"4096".to_vec(),
        3 => b"{\"size\": 17179869184}".to_vec(),
        4 => b"[".repeat(chance.spread(60_000) as usize),
        // No line ends in it: what is behind a length that lies is no request of its own.
        _ => NOISE[..chance.spread(100_000) as usize].iter().map(|byte| byte | 0x80).collect(),
    }
}

/// The length of the body, mostly.
fn length(len: usize, chance: &mut Chance) -> String {
    let lie = chance.spread(100_000) as usize;
    match chance.below(12) {
        0 => String::new(),
        1 => format!("Content-Length: {lie}\r\n"),
        2 => format!("Content-Length: {len}\r\nContent-Length: {lie}\r\n"),
        3 => "Content-Length: 18446744073709551616\r\n".into(),
        4 => "Transfer-Encoding: chunked\r\n".into(),
        5 => format!("Content-Length: {len}\r\nExpect: 100-continue\r\n"),
        _ => format!("Content-Length: {len}\r\n"),
    }
}

/// Headers that say nothing, few or too many or too long.
fn more(chance: &mut Chance) -> String {
    match chance.below(8) {
        0 => "X: y\r\n".repeat(chance.spread(100) as usize),
        1 => format!("X: {}\r\n", "y".repeat(chance.spread(20_000) as usize)),
        2 => "Connection: close\r\n".into(),
        3 => " folded\r\n".into(),
        4 => "\u{1}: \r\n".into(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Launch;

    /// A client that overlooks a change would find every server sound.
    #[test]
    #[should_panic(expected = "a change was made")]
    fn a_change_that_is_made_is_seen() {
        let launch = Launch::ram("16M");
        let place = format!("unix:{}", launch.folder().join("http").display());
        let server = launch.with("--http", place).start();
        let mut stream = Web::of(&server, Rights::All).connect(IMPATIENCE).expect("it listens");
        let request = "PUT /api/devices/ram0/attributes/mem_limit HTTP/1.1\r\nContent-Length: 4\r\n\r\n4096";
        stream.write_all(request.as_bytes()).expect("it is sent");
        expect_refusals(&mut *stream, true);
    }
}
