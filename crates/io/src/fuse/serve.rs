//! A mount with its readers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use spillway_core::exchange::{Exchange, MessageBuffers};
use spillway_core::{Error, Kind};

use super::mount::Mount;
use super::mount_table::Bound;
use super::reader::FuseReader;
use super::readers::Readers;
use crate::runtime::workers::Workers;

/// Makes the exchange of a reader, on the worker that serves it.
pub type NewExchange = Arc<dyn Fn() -> Box<dyn Exchange> + Send + Sync>;

/// Readers of a mount: more than this only contend for the kernel's queue.
pub const READERS_MAX: usize = 16;

/// A mount that is served.
pub struct MountServing {
    mount: Mount,
    readers: Arc<Readers>,
}

/// Serves the requests of `mount` on the first `count` of the workers.
pub fn serve_mount(
    mount: Mount,
    workers: &Workers,
    count: usize,
    new_exchange: &NewExchange,
    buffers: &MessageBuffers,
) -> MountServing {
    assert!(0 < count && count <= workers.count(), "{count} readers on {} workers", workers.count());
    let (readers, guards) = Readers::new(count);
    for (index, guard) in guards.into_iter().enumerate() {
        let fd = if index == 0 { mount.fd.clone() } else { mount.descriptor() };
        let (new_exchange, inbox) = (new_exchange.clone(), buffers.inbox());
        let reader = move || Box::pin(FuseReader::new(fd, new_exchange(), inbox, guard)) as _;
        workers.run_on(index, Box::new(reader));
    }
    MountServing { mount, readers }
}

impl MountServing {
    /// Where it was mounted.
    pub fn place(&self) -> &Path {
        self.mount.place()
    }

    /// Unmounts, and waits until the readers have ended. The kernel refuses while something below is in use; where the mount is bound to
    /// other places, it does not see what is in use there: `is_open` says whether a file is. With none open, requests there fail from
    /// now on, and the places are returned. Nothing is refused where no requests come any more.
    ///
    /// [`Kind::Busy`]: it is in use; it may be unmounted nevertheless, and then the next call goes on. Blocks: not to be called on a
    /// worker.
    pub fn unmount(&self, is_open: &dyn Fn() -> bool) -> Result<Vec<Bound>, Error> {
        let busy = || {
            let text = format!("files are open where {} is bound to", self.place().display());
            Err(Error::new(Kind::Busy, text))
        };
        let connected = self.mount.is_connected();
        if connected && is_open() && !self.bound_elsewhere().is_empty() {
            return busy();
        }
        self.mount.unmount(!connected)?;
        let mut left = Vec::new();
        if self.mount.is_connected() {
            if is_open() {
                return busy();
            }
            left = self.bound_elsewhere();
        }
        self.readers.end();
        Ok(left)
    }

    /// Sends the kernel a message that answers no request. A kernel that refuses it does not need it.
    pub fn tell(&self, message: &[u8]) {
        if let Err(errno) = rustix::io::write(&self.mount.fd, message) {
            tracing::debug!("{}: the kernel refuses a message: {errno}", self.place().display());
        }
    }

    /// Where it is mounted besides, as far as this process may see that.
    pub fn bound_elsewhere(&self) -> Vec<Bound> {
        self.mount.bound_elsewhere()
    }

    /// Where other mounts lie on it.
    pub fn covered_by(&self) -> Vec<PathBuf> {
        self.mount.covered_by()
    }
}

impl Drop for MountServing {
    /// Takes the mount out of sight, even while it is used, and ends its readers: what is still open there fails from now on.
    fn drop(&mut self) {
        if let Err(error) = self.mount.unmount(true) {
            tracing::warn!("{error}");
        }
        self.readers.end();
    }
}
