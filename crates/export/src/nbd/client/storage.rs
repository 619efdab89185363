//! An export as a [`Storage`].

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::storage::{ConnectionStatus, Moved};
use spillway_core::sync::{AtomicBool, GroupFlush};
use spillway_core::{
    Answer, BlockSize, Budget, ByteRange, Env, Error, Extent, FallocateMode, Geometry, IoBuf, Kind,
    LocalFuture, Place, SECTOR, Storage, Workspace, mutant, task,
};

use super::access::{Access, REQUEST_LEN_MAX};
use super::link::Link;
use super::negotiation::Described;
use super::reconnect::{PATIENCE, connect, keep};
use super::settings::{Dial, Settings};
use crate::nbd::wire::flag;

/// Bytes that a connection holds: what it receives into, output and the requests that are not answered.
const CONNECTION_BYTES: u64 = 128 << 10;

/// An export of a server, as a storage. Its connections end once it is dropped.
pub struct NbdOrigin {
    access: Arc<Access>,
}

impl NbdOrigin {
    /// Connects to the server, whose export has that `identity`. Charges `budget` for the journal. Errors say what the server refuses, or
    /// why it cannot be reached.
    pub async fn open(
        settings: Settings,
        identity: Option<NonZeroU64>,
        dial: Arc<dyn Dial>,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
    ) -> Result<Self, Error> {
        let journal_bytes = if settings.read_only { 0 } else { settings.journal_bytes };
        let journal = Workspace::new("what is not flushed at a server", budget, journal_bytes)?;
        let connections = settings.connections as u64;
        let charge = budget.hold(connections * CONNECTION_BYTES).map_err(|kind| {
            Error::new(
                kind,
                "no room for connections to a server: give --memory more, or fewer --origin-connections",
            )
        })?;
        let link = Arc::new(Link::new(env, settings));
        let failed = |why| Error::new(Kind::NoDevice, format!("{}: {why}", link.settings.address));
        let connected = connect(&link, &dial, PATIENCE).await;
        let checked = connected.and_then(|connected| {
            let geometry = geometry(&connected.described, &link.settings, identity)?;
            Ok((connected, geometry))
        });
        let (connected, geometry) = match checked {
            Ok(checked) => checked,
            Err(why) => {
                link.leave();
                return Err(failed(why));
            }
        };
        let described = connected.described;
        link.set_size(described.size);
        link.open(connected.active);
        let kept = link.clone();
        link.env.spawn(Place::Background, task(move || keep(kept, dial, described)));
        let (flushes, freeing) = (GroupFlush::default(), AtomicBool::new(false));
        let origin = Self {
            access: Arc::new(Access {
                link,
                described,
                geometry,
                journal,
                _charge: charge,
                flushes,
                freeing,
            }),
        };
        origin.settle().await?;
        Ok(origin)
    }

    /// Makes durable what others have written and not flushed, one that was killed before this among them: the server cannot lose
    /// any more what is read here.
    async fn settle(&self) -> Result<(), Error> {
        let Access { link, geometry, .. } = &*self.access;
        if geometry.read_only || mutant::on("nbd client: begin without a flush") {
            return Ok(());
        }
        let failed = |kind| Error::new(kind, format!("{}: the server cannot flush", link.settings.address));
        self.access.sync().await.map_err(failed)
    }

    /// What is worth knowing about the export, for people.
    pub fn notes(&self) -> Vec<String> {
        let Access { link, geometry, .. } = &*self.access;
        let address = &link.settings.address;
        let mut notes = vec![format!("{address}: {} connections to the server", link.active())];
        if geometry.write_through && !geometry.read_only {
            notes.push(format!(
                "{address}: the server has no flush: its writes are as durable as it makes them"
            ));
        }
        notes
    }
}

impl Drop for NbdOrigin {
    fn drop(&mut self) {
        self.access.link.leave();
    }
}

/// The error says in words why the export cannot be used.
fn geometry(
    described: &Described,
    settings: &Settings,
    identity: Option<NonZeroU64>,
) -> Result<Geometry, String> {
    if described.has(flag::READ_ONLY) && !settings.read_only {
        return Err("the export is read-only: give --read-only".to_owned());
    }
    let block = described.block.max(SECTOR as u32);
    let block_size = BlockSize::new(block).map_err(|error| error.message().to_owned())?;
    let size = described.size / u64::from(block) * u64::from(block);
    if size == 0 {
        return Err(format!("the export has {} bytes, less than a block of {block}", described.size));
    }
    Ok(Geometry {
        size,
        block_size,
        optimal_io: described.preferred.max(block).min(REQUEST_LEN_MAX as u32),
        read_only: settings.read_only,
        volatile: false,
        write_through: !described.has(flag::SEND_FLUSH),
        discards: described.has(flag::SEND_TRIM),
        fast_zeroes: described.has(flag::SEND_WRITE_ZEROES) && described.has(flag::SEND_FAST_ZERO),
        rotational: described.has(flag::ROTATIONAL),
        identity,
        writers: None,
    })
}

impl Storage for NbdOrigin {
    fn geometry(&self) -> Geometry {
        let block = self.access.geometry.block_size.bytes();
        Geometry { size: self.access.link.size() / block * block, ..self.access.geometry }
    }

    /// A server says it to each new connection, and to no other.
    fn look(&self) -> LocalFuture<Result<(), Kind>> {
        let access = self.access.clone();
        Box::pin(async move { access.link.renew().await })
    }

    fn connection(&self) -> ConnectionStatus {
        self.access.link.connection()
    }

    fn wait_anew(&self) {
        self.access.link.wait_from_now();
    }

    fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.access.link.set_timeout(timeout);
        Ok(())
    }

    /// Until a flush has covered it, the journal has what was acknowledged: only the server can lose it, by its own word.
    fn losses(&self) -> Option<Result<(), Kind>> {
        Some(self.access.link.failure.check())
    }

    /// Calls of layers that have ended may be left, as those of writing back: for a server that does not answer they would stay for ever.
    fn close(&self) -> LocalFuture<Result<(), Error>> {
        let access = self.access.clone();
        Box::pin(async move {
            access.link.close().await;
            Ok(())
        })
    }

    fn read(&self, at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        Box::pin(self.access.clone().read(at, buf, done))
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved> {
        Box::pin(self.access.clone().write(at, buf, done, durable))
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        let access = self.access.clone();
        Box::pin(async move { access.sync().await })
    }

    fn zero(&self, range: ByteRange, mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        Box::pin(self.access.clone().zero(range, mode))
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        Answer::pending(self.access.clone().extents(range, count_max))
    }
}
