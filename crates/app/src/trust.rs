//! Certificates of clients of NBD servers, each client's in a folder.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use anyhow::{Context, Result};
use spillway_core::sync::Mutex;
use spillway_export::tls::{Trust, TrustPem};

/// What the files of a folder say, by the names that libnbd and QEMU give them: `ca-cert.pem`, and `client-cert.pem` with `client-key.pem` for
/// servers that ask who the client is.
pub(crate) fn trust(folder: &Path) -> Result<Trust> {
    Trust::new(&read(folder)?).with_context(|| about(folder))
}

fn read(folder: &Path) -> Result<TrustPem> {
    let file = |name: &str| {
        let path = folder.join(name);
        fs::read(&path).with_context(|| path.display().to_string())
    };
    let own = match fs::read(folder.join("client-cert.pem")) {
        Err(why) if why.kind() == ErrorKind::NotFound => None,
        read => Some((read.context("client-cert.pem")?, file("client-key.pem")?)),
    };
    Ok(TrustPem { authority: file("ca-cert.pem")?, own })
}

/// What is said about the files of a folder.
pub(crate) fn about(folder: &Path) -> String {
    format!("the certificates in {}", folder.display())
}

/// Logs how files of a folder were read again.
pub(crate) fn report(folder: &Path, replaced: Result<()>) {
    match replaced {
        Ok(()) => tracing::info!("{} were read again", about(folder)),
        Err(why) => tracing::error!("{}: {why:#}; those before are used", about(folder)),
    }
}

/// The certificates of origins, which are read again together.
#[derive(Clone, Default)]
pub(crate) struct Trusts(Arc<Mutex<Vec<Known>>>);

/// The folder of a client's certificates, and the client while it is there.
type Known = (PathBuf, Weak<Trust>);

impl Trusts {
    /// What the files of a folder say, now and after each [`Trusts::read_again`].
    pub(crate) fn of(&self, folder: &Path) -> Result<Arc<Trust>> {
        let trust = Arc::new(trust(folder)?);
        let mut known = self.0.lock();
        known.retain(|(_, trust)| trust.strong_count() > 0);
        known.push((folder.to_owned(), Arc::downgrade(&trust)));
        Ok(trust)
    }

    /// Reads all again, for connections from now on. Where that fails, those before stay.
    pub(crate) fn read_again(&self) {
        let known = self.0.lock().clone();
        for (folder, trust) in known {
            if let Some(trust) = trust.upgrade() {
                report(&folder, read(&folder).and_then(|pem| Ok(trust.replace(&pem)?)));
            }
        }
    }
}
