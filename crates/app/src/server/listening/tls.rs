//! Whether NBD clients speak TLS, and the certificates for that.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use spillway_export::nbd::{CONNECTION_BYTES, TlsPolicy};
use spillway_export::tls::{Certificates, Clients, Pem, TLS_BYTES};
use spillway_io::{Listener, ServerAddress};

use crate::address::Address;
use crate::cli::server_options::{ServerConfig, Tls};
use crate::exit::{Failure, refused};
use crate::server::listening::address_of;
use crate::trust::{Trusts, about, report};

/// Names of the files, as nbdkit and QEMU have them.
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
const AUTHORITY: &str = "ca-cert.pem";

/// What protects the conversations with NBD clients.
#[derive(Clone, Default)]
pub(crate) struct Protection {
    pub(crate) policy: TlsPolicy,
    /// Absent where there is no TLS.
    pub(crate) certificates: Option<Arc<Certificates>>,
    folder: PathBuf,
    /// Of the server as a client of others.
    pub(crate) origins: Trusts,
    /// The name that was given to the port, which certificates may have where they do not have its address.
    host: Option<String>,
}

impl Protection {
    /// What is asked for.
    pub(crate) fn choose(config: &ServerConfig) -> Result<Self> {
        let Some(folder) = config.tls_certificates.clone() else {
            let given = [
                config.tls_verify_peer.then_some("tls_verify_peer"),
                config.tls_allow.as_ref().map(|_| "tls_allow"),
            ];
            let wanted = matches!(config.tls, Some(Tls::Optional | Tls::Required)).then_some("tls");
            if let Some(key) = given.into_iter().flatten().chain(wanted).next() {
                bail!(Failure::usage(format!("{key} needs certificates: give tls_certificates DIR too")));
            }
            return Ok(Self::default());
        };
        let policy = match config.tls.unwrap_or(Tls::Required) {
            Tls::Off => return Ok(Self::default()),
            Tls::Optional => TlsPolicy::Optional,
            Tls::Required => TlsPolicy::Required,
        };
        let names = config.tls_allow.as_deref().map(names).transpose()?;
        let clients = match names {
            Some(names) => Clients::Named(names),
            None if config.tls_verify_peer => Clients::Known,
            None => Clients::Any,
        };
        let certificates = Certificates::new(&read(&folder)?, clients).map_err(refused);
        let certificates = certificates.with_context(|| about(&folder))?;
        let host = config.listen.as_deref().and_then(|listen| listen.rsplit_once(':'));
        let host = host.map(|(host, _)| host.to_owned()).filter(|host| host.parse::<IpAddr>().is_err());
        let host = host.filter(|host| !host.starts_with('['));
        let certificates = Some(Arc::new(certificates));
        Ok(Self { policy, certificates, folder, host, origins: Trusts::default() })
    }

    /// Bytes to count for a connection.
    pub(crate) fn connection_bytes(&self) -> u64 {
        CONNECTION_BYTES + if self.certificates.is_some() { TLS_BYTES } else { 0 }
    }

    /// Where clients find a listener for NBD.
    pub(crate) fn address(&self, listener: &Listener) -> Address {
        let mut address = Address { tls: self.is_required(), ..address_of(listener) };
        if let (ServerAddress::Tcp(host, _), Some(name)) = (&mut address.place, &self.host) {
            host.clone_from(name);
        }
        address
    }

    /// Whether every client speaks TLS.
    pub(crate) fn is_required(&self) -> bool {
        self.policy == TlsPolicy::Required
    }

    /// Refuses a port that other machines reach, where what clients say there is not protected and nobody has `accepted` that.
    pub(crate) fn expect_private(&self, listener: &Listener, accepted: bool) -> Result<()> {
        let open = listener.tcp_address().filter(|address| !address.ip().is_loopback());
        let Some(address) = open.filter(|_| !self.is_required() && !accepted) else { return Ok(()) };
        let port = address.port();
        let text = format!(
            "listen: other machines reach {address}, and could read and write everything there, without encryption or password: give \
             tls_certificates DIR, or a port of this machine, such as 127.0.0.1:{port}, or insecure if the network keeps others away"
        );
        Err(Failure::usage(text).into())
    }

    /// Reads all certificates again, for connections from now on. Where that fails, those before stay.
    pub(crate) fn read_again(&self) {
        self.origins.read_again();
        let Some(certificates) = &self.certificates else { return };
        let replaced = read(&self.folder).and_then(|pem| Ok(certificates.replace(&pem).map_err(refused)?));
        report(&self.folder, replaced);
    }
}

fn names(list: &str) -> Result<Vec<String>> {
    let names: Vec<String> = list.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        bail!(Failure::usage(format!(
            "tls_allow cannot be {list:?}: give DNS names with commas between them"
        )));
    }
    Ok(names)
}

fn read(folder: &Path) -> Result<Pem> {
    let file = |name: &str| {
        let path = folder.join(name);
        fs::read(&path).with_context(|| path.display().to_string())
    };
    let key = folder.join(KEY);
    let mode = fs::metadata(&key).with_context(|| key.display().to_string())?.mode();
    if mode & 0o007 != 0 {
        bail!(Failure::usage(format!("{}: every user can open it: chmod 0600 it", key.display())));
    }
    let authority = match fs::read(folder.join(AUTHORITY)) {
        Err(why) if why.kind() == ErrorKind::NotFound => None,
        read => Some(read.with_context(|| folder.join(AUTHORITY).display().to_string())?),
    };
    Ok(Pem { certificate: file(CERTIFICATE)?, key: file(KEY)?, authority })
}
