//! Origins that are exports of NBD servers, and images of Ceph clusters.

use std::sync::Arc;

use spillway_core::{Budget, Env, Error, LocalFuture, OpenStorage};
use spillway_export::nbd::client::{Dial, NbdOrigin, NewSession, Settings};
use spillway_io::rbd::{self, ImageName, RbdOptions};
use spillway_io::{Dialer, ServerAddress, identity_of};
use spillway_layers::open_context::{BackingDevice, Ceph, Remote};

use crate::address::Address;
use crate::trust::Trusts;

/// A server, as a link reaches it.
struct Server {
    address: ServerAddress,
    dialer: Dialer,
}

impl Dial for Server {
    fn dial(&self, channel: usize, session: NewSession) -> LocalFuture<Result<(), Error>> {
        let (address, dialer) = (self.address.clone(), self.dialer.clone());
        Box::pin(async move { dialer.dial(address, channel, session).await })
    }
}

/// Opens the export that the path of `backing` is the address of.
pub(crate) async fn open_nbd(
    backing: BackingDevice,
    dialer: Dialer,
    trusts: Trusts,
    env: Arc<dyn Env>,
    budget: Arc<Budget>,
) -> Result<OpenStorage, Error> {
    let text = backing.path.to_string_lossy().into_owned();
    let (address, export) = Address::parse(&text)?;
    if let ServerAddress::Unix(path) = &address.place
        && !path.is_absolute()
    {
        let why = "give the socket's path from the root, as it is used again after a connection was lost, and tells origins apart";
        return Err(Error::invalid(format!("{text}: {why}")));
    }
    let tls = match (address.tls, &backing.remote.tls_certificates) {
        (false, _) => None,
        (true, Some(folder)) => {
            let trust = trusts.of(folder).map_err(|why| Error::invalid(format!("{why:#}")))?;
            Some((trust, address.host().to_owned()))
        }
        (true, None) => {
            let words = format!(
                "{text}: TLS needs the certificate of an authority: give tls_certificates DIR of the origin"
            );
            return Err(Error::invalid(words));
        }
    };
    let settings = Settings {
        tls,
        address: text.clone(),
        export,
        read_only: backing.read_only,
        timeout: backing.remote.timeout,
        connections: backing.remote.connections.min(dialer.workers()),
        journal_bytes: backing.remote.journal_bytes,
    };
    let server = Arc::new(Server { address: address.place, dialer: dialer.for_one_server() });
    let origin = NbdOrigin::open(settings, identity_of(&format!("nbd {text}")), server, env, &budget).await?;
    let notes = origin.notes();
    Ok(OpenStorage { storage: Arc::new(origin), notes })
}

/// Opens the image that the path of `backing` names.
pub(crate) async fn open_rbd(
    backing: BackingDevice,
    env: Arc<dyn Env>,
    budget: Arc<Budget>,
) -> Result<OpenStorage, Error> {
    let Remote { timeout, journal_bytes, ceph: Ceph { conf, id, keyring, take_over }, .. } = backing.remote;
    let options = RbdOptions {
        name: ImageName::parse(&backing.path.to_string_lossy())?,
        conf,
        id,
        keyring,
        read_only: backing.read_only,
        take_over,
        timeout,
        room_bytes: journal_bytes,
    };
    rbd::open_rbd(options, env, &budget).await
}
