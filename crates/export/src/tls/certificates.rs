//! What a server shows to its clients, and what it asks of them.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use spillway_core::Error;
use spillway_core::sync::RwLock;

/// Files of a server, as text in PEM.
pub struct Pem {
    /// Its certificate, and those that lead to an authority.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// Authorities whose clients are known; needed unless they are [`Clients::Any`].
    pub authority: Option<Vec<u8>>,
}

/// Who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Everybody: the connection is private, and nobody has to say who they are.
    Any,
    /// Who has a certificate of an authority.
    Known,
    /// The same, with one of these as a DNS name in it.
    Named(Vec<String>),
}

/// Certificates of a server, which may be replaced while it serves.
pub struct Certificates {
    clients: Clients,
    config: RwLock<Arc<ServerConfig>>,
}

impl Certificates {
    /// Of these files; [`spillway_core::Kind::Invalid`] names the one that is no certificate or key, or does not fit the others.
    pub fn new(pem: &Pem, clients: Clients) -> Result<Self, Error> {
        let config = config(pem, &clients)?;
        Ok(Self { clients, config: RwLock::new(Arc::new(config)) })
    }

    /// New connections get these. Errors as for [`Self::new`], and then nothing has changed.
    pub fn replace(&self, pem: &Pem) -> Result<(), Error> {
        let config = config(pem, &self.clients)?;
        *self.config.write() = Arc::new(config);
        Ok(())
    }

    pub(super) fn connection(&self) -> Result<Connection, rustls::Error> {
        let config = self.config.read().clone();
        ServerConnection::new(config).map(Connection::Server)
    }

    /// Why a client who has shown these certificates, the own one first, is not let in.
    pub(super) fn refusal(&self, shown: Option<&[CertificateDer<'_>]>) -> Option<String> {
        let Clients::Named(allowed) = &self.clients else { return None };
        let own = shown.and_then(|shown| shown.first());
        let parsed = own.and_then(|own| webpki::EndEntityCert::try_from(own).ok());
        let names: Vec<String> =
            parsed.iter().flat_map(|own| own.valid_dns_names().map(str::to_owned)).collect();
        let known = names.iter().any(|name| allowed.iter().any(|other| other.eq_ignore_ascii_case(name)));
        (!known).then(|| {
            format!("its certificate has the DNS names [{}], none of which is allowed", names.join(", "))
        })
    }
}

/// Files of a client, as text in PEM.
pub struct TrustPem {
    /// Authorities whose servers are believed.
    pub authority: Vec<u8>,
    /// Its own certificate and private key, for servers that ask who it is.
    pub own: Option<(Vec<u8>, Vec<u8>)>,
}

/// Which servers a client believes, and what it shows them. May be replaced while it connects.
pub struct Trust(RwLock<Arc<ClientConfig>>);

impl Trust {
    /// Of these files; [`spillway_core::Kind::Invalid`] names the one that is no certificate or key.
    pub fn new(pem: &TrustPem) -> Result<Self, Error> {
        Ok(Self(RwLock::new(Arc::new(client_config(pem)?))))
    }

    /// New connections get these. Errors as for [`Self::new`], and then nothing has changed.
    pub fn replace(&self, pem: &TrustPem) -> Result<(), Error> {
        let config = client_config(pem)?;
        *self.0.write() = Arc::new(config);
        Ok(())
    }

    /// A connection to the server of this name or address, which its certificate has to have.
    pub fn connection(&self, host: &str) -> Result<ClientConnection, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|why| wrong(host, &why))?;
        let config = self.0.read().clone();
        ClientConnection::new(config, name).map_err(|why| wrong(host, &why))
    }
}

fn wrong(file: &str, why: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("{file}: {why}"))
}

fn private_key(file: &str, text: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    let key = PrivateKeyDer::from_pem_slice(text);
    key.map_err(|why| wrong(file, &format!("there is no private key in PEM in it ({why})")))
}

fn roots(authority: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for authority in certificates("ca-cert.pem", authority)? {
        roots.add(authority).map_err(|why| wrong("ca-cert.pem", &why))?;
    }
    Ok(roots)
}

fn client_config(pem: &TrustPem) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|why| wrong("TLS", &why))?
        .with_root_certificates(roots(&pem.authority)?);
    let Some((certificate, key)) = &pem.own else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates("client-cert.pem", certificate)?;
    let key = private_key("client-key.pem", key)?;
    builder.with_client_auth_cert(chain, key).map_err(|why| wrong("client-cert.pem and client-key.pem", &why))
}

fn config(pem: &Pem, clients: &Clients) -> Result<ServerConfig, Error> {
    let chain = certificates("server-cert.pem", &pem.certificate)?;
    let key = private_key("server-key.pem", &pem.key)?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|why| wrong("TLS", &why))?;
    let builder = match (clients, &pem.authority) {
        (Clients::Any, _) => builder.with_no_client_auth(),
        (_, None) => return Err(wrong("ca-cert.pem", &"it is needed to tell which clients are known")),
        (_, Some(authority)) => {
            let roots = Arc::new(roots(authority)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|why| wrong("ca-cert.pem", &why))?)
        }
    };
    builder.with_single_cert(chain, key).map_err(|why| wrong("server-cert.pem and server-key.pem", &why))
}

fn certificates(file: &str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(Error::invalid(format!("{file}: there is no certificate in PEM in it"))),
        Err(why) => Err(Error::invalid(format!("{file}: {why}"))),
    }
}
