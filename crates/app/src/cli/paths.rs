//! Paths as they are found from any folder: a server in the background leaves the one that it was started in.

use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result};
use spillway_layers::stack::{OriginConfig, StackConfig};

use crate::address::Scheme;
use crate::cli::server_options::ServerConfig;

/// Those of a server, and what its origins have beside their own.
pub(crate) fn resolve<'a>(
    server: &mut ServerConfig,
    stacks: impl Iterator<Item = &'a mut StackConfig>,
) -> Result<()> {
    let of_origins = stacks.filter_map(|stack| match &mut stack.origin {
        OriginConfig::File(file) => file.tls_certificates.as_mut(),
        _ => None,
    });
    let ServerConfig { socket, mount, tls_certificates, http_token_file, .. } = server;
    for path in [socket, mount, tls_certificates, http_token_file].into_iter().flatten().chain(of_origins) {
        *path = absolute(&path).with_context(|| format!("cannot resolve the path {}", path.display()))?;
    }
    if let Some(path) = server.http.as_deref().and_then(|place| place.strip_prefix("unix:")) {
        let path = absolute(path).context("cannot resolve the path of the HTTP socket")?;
        server.http = path.to_str().map(|path| format!("unix:{path}")).or(server.http.take());
    }
    Ok(())
}

/// That of an origin, unless it names something else than a file.
pub(crate) fn of_origin(origin: &Path) -> Result<PathBuf> {
    match Scheme::of(origin) {
        Scheme::Path => absolute(origin).context("cannot resolve the origin's path"),
        _ => Ok(origin.to_owned()),
    }
}
