//! Certificates of a client of NBD servers, in a folder.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use spillway_export::tls::{Trust, TrustPem};

/// What the files of a folder say, by the names that libnbd and QEMU give them: `ca-cert.pem`, and `client-cert.pem` with `client-key.pem` for
/// servers that ask who the client is.
pub(crate) fn trust(folder: &Path) -> Result<Trust> {
    let file = |name: &str| {
        let path = folder.join(name);
        fs::read(&path).with_context(|| path.display().to_string())
    };
    let own = match fs::read(folder.join("client-cert.pem")) {
        Err(why) if why.kind() == ErrorKind::NotFound => None,
        read => Some((read.context("client-cert.pem")?, file("client-key.pem")?)),
    };
    let trust = Trust::new(&TrustPem { authority: file("ca-cert.pem")?, own });
    trust.with_context(|| format!("the certificates in {}", folder.display()))
}
