//! Sockets that a service manager has made for this server (`LISTEN_FDS`), in place of those that options name.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use spillway_io::{Listener, passed};

use crate::cli::server_options::ServerConfig;
use crate::exit::{Failure, refused};

/// Bits of a mode that let others than the owner connect.
const OTHERS: u32 = 0o022;

/// The sockets, by what they are for.
#[derive(Default)]
pub(crate) struct PassedSockets {
    /// For NBD, to all devices.
    pub(crate) nbd: Option<Listener>,
    pub(crate) http: Option<Listener>,
}

impl PassedSockets {
    /// Takes what was passed to this process. The name of a socket (`FileDescriptorName=`) says what it is for; one socket without
    /// such a name is for NBD. Wrong usage where options name other places, or others may connect who should not.
    pub(crate) fn take(config: &ServerConfig) -> Result<Self> {
        let all = passed().map_err(refused)?;
        let (alone, count) = (all.len() == 1, all.len());
        let mut found = Self::default();
        for (name, listener) in all {
            let place = match name.as_str() {
                "http" => &mut found.http,
                "nbd" => &mut found.nbd,
                _ if alone => &mut found.nbd,
                name => bail!(Failure::usage(format!(
                    "a socket of the service manager is named {name:?}: FileDescriptorName= is nbd or http"
                ))),
            };
            if place.replace(listener).is_some() {
                bail!(Failure::usage(format!(
                    "the service manager passes two sockets named {name}: one is allowed"
                )));
            }
        }
        let taken = usize::from(found.nbd.is_some()) + usize::from(found.http.is_some());
        assert_eq!(taken, count, "each socket that is passed has a use");
        found.expect_alone(config)?;
        Ok(found)
    }

    fn expect_alone(&self, config: &ServerConfig) -> Result<()> {
        let nbd = [("socket", config.socket.is_some()), ("listen", config.listen.is_some())];
        let nbd = nbd.into_iter().filter(|_| self.nbd.is_some());
        let http = [("http", config.http.is_some())].into_iter().filter(|_| self.http.is_some());
        if let Some((key, _)) = nbd.chain(http).find(|(_, given)| *given) {
            bail!(Failure::usage(format!("{key} and a socket of the service manager: leave one out")));
        }
        if let Some(path) = self.nbd.as_ref().and_then(Listener::unix_path) {
            let allowed = config.socket_access(true)?.mode;
            expect_mode(path, allowed, "or allow it by socket_mode")?;
        }
        if let Some(path) = self.http.as_ref().and_then(Listener::unix_path)
            && config.http_token_file.is_none()
        {
            expect_mode(path, 0, "or give http_token_file")?;
        }
        Ok(())
    }
}

/// Refuses a socket file to which others can connect beyond what is `allowed`.
fn expect_mode(path: &Path, allowed: u32, or: &str) -> Result<()> {
    let mode = path.metadata().with_context(|| path.display().to_string())?.mode();
    if mode & OTHERS & !allowed != 0 {
        let (path, mode) = (path.display(), mode & 0o777);
        bail!(Failure::usage(format!(
            "{path}: other users can connect (mode {mode:04o}): give the socket unit SocketMode=0600, {or}"
        )));
    }
    Ok(())
}
