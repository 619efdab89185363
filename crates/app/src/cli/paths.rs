//! Paths as they are found from any folder: a server in the background leaves the one that it was started in.

use std::path::{PathBuf, absolute};

use anyhow::{Context, Result};
use spillway_layers::stack::{LayerConfig, OriginConfig, StackConfig};

use crate::address::Scheme;
use crate::cli::server_options::ServerConfig;
use crate::exit::Failure;

/// Those of a server, and of the stacks of its devices.
pub(crate) fn resolve<'a>(
    server: &mut ServerConfig,
    stacks: impl Iterator<Item = &'a mut StackConfig>,
) -> Result<()> {
    let ServerConfig { socket, mount, tls_certificates, http_token_file, .. } = server;
    let mut paths: Vec<_> =
        [socket, mount, tls_certificates, http_token_file].into_iter().flatten().collect();
    for stack in stacks {
        paths.extend(of_stack(stack));
    }
    for path in paths {
        *path = absolute(path.as_path())
            .map_err(|why| Failure::usage(format!("cannot resolve the path {path:?}: {why}")))?;
    }
    if let Some(path) = server.http.as_deref().and_then(|place| place.strip_prefix("unix:")) {
        let path = absolute(path).context("cannot resolve the path of the HTTP socket")?;
        server.http = path.to_str().map(|path| format!("unix:{path}")).or(server.http.take());
    }
    Ok(())
}

/// Those of a stack, but for an origin that is no file.
fn of_stack(stack: &mut StackConfig) -> Vec<&mut PathBuf> {
    let of_layers = stack.layers.iter_mut().filter_map(|layer| match layer {
        LayerConfig::WriteCache(cache) => Some(&mut cache.path),
        _ => None,
    });
    let of_origin: Vec<_> = match &mut stack.origin {
        OriginConfig::File(file) => {
            let is_file = Scheme::of(&file.path) == Scheme::Path;
            let beside = [&mut file.tls_certificates, &mut file.ceph_conf, &mut file.ceph_keyring];
            is_file.then_some(&mut file.path).into_iter().chain(beside.into_iter().flatten()).collect()
        }
        OriginConfig::Zram(zram) => zram.spill.iter_mut().collect(),
        OriginConfig::Memory(_) | OriginConfig::Null(_) => Vec::new(),
    };
    of_origin.into_iter().chain(of_layers).collect()
}
