//! Which hosts may connect to the ports of this server.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use spillway_io::{AllowedNetworks, Listener};

use crate::cli::server_options::ServerConfig;
use crate::exit::{Failure, refused};

/// The hosts of the networks that `config` names; every host, where it names none. Wrong usage for what is no network.
pub(crate) fn allowed(config: &ServerConfig) -> Result<Arc<AllowedNetworks>> {
    let networks = config.allow.iter().flat_map(|list| list.split(',')).map(|network| network.trim().parse());
    let networks = networks.collect::<Result<Vec<_>, _>>().map_err(refused).context("allow")?;
    Ok(AllowedNetworks::new(networks))
}

/// Refuses networks where none of the `listeners` has a port.
pub(crate) fn expect_port<'a>(
    config: &ServerConfig,
    listeners: impl IntoIterator<Item = &'a Listener>,
) -> Result<()> {
    let has_port = listeners.into_iter().any(|listener| listener.tcp_address().is_some());
    if config.allow.is_some() && !has_port {
        bail!(Failure::usage("allow is for ports: give listen HOST:PORT, or http HOST:PORT, too"));
    }
    Ok(())
}
