//! Certificates of tests, in the files that servers and clients with TLS read.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

use crate::Scratch;

/// An authority that signs for this machine.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// One that nobody has known before.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Its own certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Puts a certificate with this DNS name, valid until the begin of that year, and its key beside the authority's.
    pub fn sign(&self, folder: &Scratch, role: &str, name: &str, until: i32) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        folder.write("ca-cert.pem", &self.pem);
        folder.write(&format!("{role}-cert.pem"), signed.pem());
        let key = folder.write(&format!("{role}-key.pem"), key.serialize_pem());
        fs::set_permissions(key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }

    /// A folder of a server.
    pub fn server(&self) -> Scratch {
        let folder = Scratch::new();
        self.sign(&folder, "server", "localhost", 2100);
        folder
    }

    /// A folder of a client that shows a certificate with this name, or none.
    pub fn client(&self, name: Option<&str>) -> Scratch {
        let folder = Scratch::new();
        folder.write("ca-cert.pem", &self.pem);
        name.into_iter().for_each(|name| self.sign(&folder, "client", name, 2100));
        folder
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
