//! Where HTTP clients come in, and what they may do there.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use spillway_export::control::Rights;
use spillway_io::{Listener, ServerAddress};

use crate::cli::server_options::ServerConfig;
use crate::exit::{Failure, refused};
use crate::runtime_folder::RuntimeFolder;
use crate::server::listening::{self, address_of};

/// Characters of a token. Shorter ones are guessed.
const TOKEN_CHARS_MIN: usize = 16;
const TOKEN_CHARS_MAX: usize = 1024;

/// The place that was `passed` or that `config` names, if any, and what clients may do there.
pub(crate) fn listen(
    folder: &RuntimeFolder,
    config: &ServerConfig,
    passed: Option<Listener>,
) -> Result<Option<(Listener, Rights)>> {
    if passed.is_none() && config.http.is_none() {
        if config.http_token_file.is_some() {
            bail!(Failure::usage("http_token_file is for clients over HTTP: give http too"));
        }
        return Ok(None);
    }
    let token = config.http_token_file.as_deref().map(token).transpose()?;
    let named = |place: &String| match place.strip_prefix("unix:") {
        Some(path) => listening::private(folder, Path::new(path)),
        None => Listener::tcp(place).map_err(refused).context("http"),
    };
    let listener = passed.map_or_else(|| named(config.http.as_ref().expect("it names a place")), Ok)?;
    let rights = match (token, listener.tcp_address()) {
        (Some(token), _) => Rights::Token(token),
        (None, None) => Rights::All,
        (None, Some(address)) if address.ip().is_loopback() => Rights::Look,
        (None, Some(address)) => {
            let text = format!(
                "http: other machines reach {address}: give http_token_file too, or a port of this machine, such as 127.0.0.1:{}",
                address.port()
            );
            bail!(Failure::usage(text))
        }
    };
    Ok(Some((listener, rights)))
}

/// The first line of a file that only its owner and group can read.
fn token(path: &Path) -> Result<String> {
    let about = || format!("http_token_file {}", path.display());
    let file = File::open(path).with_context(about)?;
    let found = file.metadata().with_context(about)?;
    if found.is_file() && found.mode() & 0o007 != 0 {
        bail!(Failure::usage(format!("{}: every user can open it: chmod 0600 it", about())));
    }
    let mut bytes = Vec::new();
    file.take(2 * TOKEN_CHARS_MAX as u64).read_to_end(&mut bytes).with_context(about)?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let sound =
        (TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX).contains(&line.len()) && line.iter().all(u8::is_ascii_graphic);
    match std::str::from_utf8(line) {
        Ok(token) if sound => Ok(token.to_owned()),
        _ => {
            let text = format!(
                "{}: its first line is no token: give {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters of ASCII without spaces, such as \
                 'openssl rand -hex 32' writes",
                about()
            );
            Err(Failure::usage(text).into())
        }
    }
}

/// How to get there, for people.
pub(crate) fn described(listener: &Listener) -> String {
    match address_of(listener).place {
        ServerAddress::Unix(path) => {
            let path = crate::address::quoted(&path.to_string_lossy());
            format!("curl --unix-socket {path} http://localhost/metrics")
        }
        ServerAddress::Tcp(host, port) if host.contains(':') => format!("http://[{host}]:{port}/"),
        ServerAddress::Tcp(host, port) => format!("http://{host}:{port}/"),
    }
}
