//! Where a device is reached, as NBD URIs and as commands to paste.

use std::ffi::OsString;
use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The port of NBD.
const PORT: u16 = 10809;

/// Where an NBD server listens, as a client on this machine reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A unix socket, by absolute path.
    Unix(PathBuf),
    /// A TCP port of a host, which has a name or an IP address.
    Tcp { host: String, port: u16 },
}

impl Address {
    /// Of a port that listens at `address`.
    pub(crate) fn tcp(address: SocketAddr) -> Self {
        let ip = address.ip();
        let host = if ip.is_unspecified() { "localhost".to_owned() } else { ip.to_string() };
        Address::Tcp { host, port: address.port() }
    }

    /// The URI of export `name` here.
    pub(crate) fn uri(&self, name: &str) -> String {
        match self {
            Address::Unix(path) => format!("nbd+unix:///{name}?socket={}", percent_encoded(path)),
            Address::Tcp { host, port } if host.contains(':') => format!("nbd://[{host}]:{port}/{name}"),
            Address::Tcp { host, port } => format!("nbd://{host}:{port}/{name}"),
        }
    }

    /// What [`Address::uri`] makes: where it is, and the name of the export.
    pub(crate) fn parse(uri: &str) -> Option<(Self, &str)> {
        if let Some(rest) = uri.strip_prefix("nbd+unix:///") {
            let (export, socket) = rest.split_once("?socket=")?;
            let path = OsString::from_vec(percent_decoded(socket)?);
            return Some((Address::Unix(path.into()), export));
        }
        let (place, export) = uri.strip_prefix("nbd://")?.split_once('/')?;
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (place, PORT),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_owned();
        Some((Address::Tcp { host, port }, export))
    }

    /// Three commands that use export `name`, one a line, each after `indent`.
    pub(crate) fn commands(&self, name: &str, indent: &str) -> String {
        let uri = self.uri(name);
        let place = match self {
            Address::Unix(path) => format!("-unix {}", quoted(&path.to_string_lossy())),
            Address::Tcp { host, port } => format!("{host} {port}"),
        };
        format!(
            "{indent}qemu-img info '{uri}'\n\
             {indent}nbdcopy '{uri}' {name}.img\n\
             {indent}sudo nbd-client {place} /dev/nbd0 -N {name}\n"
        )
    }
}

/// A path as part of a URI: everything but unreserved characters and slashes as `%XX` (RFC 3986, 2.3).
fn percent_encoded(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
    text
}

/// Text with its `%XX` made bytes.
fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let (byte, behind) = match first {
            b'%' => {
                let (digits, behind) = more.split_at_checked(2)?;
                (u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?, behind)
            }
            byte => (byte, more),
        };
        bytes.push(byte);
        rest = behind;
    }
    Some(bytes)
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
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
        let unix = |path: &str| Address::Unix(path.into()).uri("ram0");
        assert_eq!(unix("/run/user/7/a.sock"), "nbd+unix:///ram0?socket=/run/user/7/a.sock");
        assert_eq!(unix("/tmp/a b'&é"), "nbd+unix:///ram0?socket=/tmp/a%20b%27%26%C3%A9");
        let tcp = |text: &str| Address::tcp(text.parse().unwrap()).uri("ram0");
        assert_eq!(tcp("127.0.0.1:10809"), "nbd://127.0.0.1:10809/ram0");
        assert_eq!(tcp("[::1]:10809"), "nbd://[::1]:10809/ram0");
        assert_eq!(tcp("0.0.0.0:1"), "nbd://localhost:1/ram0");
    }

    #[test]
    fn a_uri_that_was_shown_is_understood() {
        let places =
            ["127.0.0.1:10809", "[::1]:10809", "[::]:7"].map(|text| Address::tcp(text.parse().unwrap()));
        for address in places.into_iter().chain([Address::Unix("/tmp/a b'&%é.sock".into())]) {
            assert_eq!(Address::parse(&address.uri("ram0")), Some((address, "ram0")));
        }
        let of = |host: &str| Some((Address::Tcp { host: host.into(), port: PORT }, "a"));
        assert_eq!(Address::parse("nbd://host/a"), of("host"));
        assert_eq!(Address::parse("nbd://[::1]/a"), of("::1"));
        for bad in ["", "nbd://host", "nbd+unix:///a", "nbd+unix:///a?socket=%4", "http://a/b", "nbd://a:b/c"]
        {
            assert_eq!(Address::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn commands_can_be_pasted() {
        let commands = Address::Unix("/tmp/a b.sock".into()).commands("ram0", "  ");
        let lines: Vec<_> = commands.lines().collect();
        assert_eq!(lines[0], "  qemu-img info 'nbd+unix:///ram0?socket=/tmp/a%20b.sock'");
        assert_eq!(lines[2], "  sudo nbd-client -unix '/tmp/a b.sock' /dev/nbd0 -N ram0");
        let commands = Address::tcp("[::1]:9".parse().unwrap()).commands("ram0", "");
        assert!(commands.ends_with("sudo nbd-client ::1 9 /dev/nbd0 -N ram0\n"), "{commands}");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
