//! Where a device is reached, as NBD URIs and as commands to paste.

use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An NBD endpoint that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A unix socket, by absolute path.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl Address {
    /// The URI of export `name` here.
    pub(crate) fn uri(&self, name: &str) -> String {
        match self {
            Address::Unix(path) => format!("nbd+unix:///{name}?socket={}", percent_encoded(path)),
            Address::Tcp(_) => format!("nbd://{}/{name}", self.host_and_port(':')),
        }
    }

    /// Three commands that use export `name`, one a line, each after `indent`.
    pub(crate) fn commands(&self, name: &str, indent: &str) -> String {
        let uri = self.uri(name);
        let place = match self {
            Address::Unix(path) => format!("-unix {}", quoted(&path.to_string_lossy())),
            Address::Tcp(_) => self.host_and_port(' '),
        };
        format!(
            "{indent}qemu-img info '{uri}'\n\
             {indent}nbdcopy '{uri}' {name}.img\n\
             {indent}sudo nbd-client {place} /dev/nbd0 -N {name}\n"
        )
    }

    /// Host and port as a client on this machine may write them. Without a path it is a TCP address.
    fn host_and_port(&self, separator: char) -> String {
        let Address::Tcp(address) = self else { return String::new() };
        let port = address.port();
        match address {
            any if any.ip().is_unspecified() => format!("localhost{separator}{port}"),
            SocketAddr::V6(v6) if separator == ':' => format!("[{}]:{port}", v6.ip()),
            other => format!("{}{separator}{port}", other.ip()),
        }
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
        let tcp = |text: &str| Address::Tcp(text.parse().unwrap()).uri("ram0");
        assert_eq!(tcp("127.0.0.1:10809"), "nbd://127.0.0.1:10809/ram0");
        assert_eq!(tcp("[::1]:10809"), "nbd://[::1]:10809/ram0");
        assert_eq!(tcp("0.0.0.0:1"), "nbd://localhost:1/ram0");
    }

    #[test]
    fn commands_can_be_pasted() {
        let commands = Address::Unix("/tmp/a b.sock".into()).commands("ram0", "  ");
        let lines: Vec<_> = commands.lines().collect();
        assert_eq!(lines[0], "  qemu-img info 'nbd+unix:///ram0?socket=/tmp/a%20b.sock'");
        assert_eq!(lines[2], "  sudo nbd-client -unix '/tmp/a b.sock' /dev/nbd0 -N ram0");
        let commands = Address::Tcp("[::1]:9".parse().unwrap()).commands("ram0", "");
        assert!(commands.ends_with("sudo nbd-client ::1 9 /dev/nbd0 -N ram0\n"), "{commands}");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
