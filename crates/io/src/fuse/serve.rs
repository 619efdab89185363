//! All readers of a mount.

use std::path::Path;
use std::sync::Arc;
use std::thread::{Thread, current, park_timeout};
use std::time::Duration;

use spillway_core::Error;
use spillway_core::exchange::Exchange;
use spillway_core::sync::{AtomicUsize, Mutex, Ordering};

use super::mount::Mount;
use super::reader::{MessageBuffers, Reader};
use crate::control::{Control, Order};
use crate::workers::Workers;

/// Makes the exchange of a reader, on the worker that serves it.
pub type NewExchange = Arc<dyn Fn() -> Box<dyn Exchange> + Send + Sync>;

/// Readers of a mount: more than this only contend for the kernel's queue.
pub const READERS_MAX: usize = 16;

/// A mount that is served.
pub struct MountServing {
    mount: Mount,
    readers: Arc<Readers>,
    controls: Vec<Arc<Control>>,
}

#[derive(Default)]
struct Readers {
    open: AtomicUsize,
    stopper: Mutex<Option<Thread>>,
}

/// A reader's place; given back when dropped.
struct Place(Arc<Readers>);

impl Place {
    fn new(readers: &Arc<Readers>) -> Self {
        readers.open.fetch_add(1, Ordering::AcqRel);
        Self(readers.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        let stopper = self.0.stopper.lock().clone();
        if let Some(stopper) = stopper {
            stopper.unpark();
        }
    }
}

/// Serves the requests of `mount` on the first `readers` of the workers.
pub fn serve_mount(
    mount: Mount,
    workers: &Workers,
    readers: usize,
    new_exchange: &NewExchange,
    buffers: &MessageBuffers,
) -> MountServing {
    let controls: Vec<_> = (0..readers).map(|_| Arc::new(Control::new(Order::Serve))).collect();
    let readers = Arc::<Readers>::default();
    for (index, control) in controls.iter().enumerate() {
        let fd = if index == 0 { mount.fd.clone() } else { mount.descriptor() };
        let (new_exchange, control, buffers) = (new_exchange.clone(), control.clone(), buffers.clone());
        let place = Box::new(Place::new(&readers));
        workers.run_on(
            index,
            Box::new(move || Box::pin(Reader::new(fd, new_exchange(), control, buffers, place))),
        );
    }
    MountServing { mount, readers, controls }
}

impl MountServing {
    /// Where it is.
    pub fn place(&self) -> &Path {
        self.mount.place()
    }

    /// Unmounts, and waits until the readers have ended. [`Kind::Busy`](spillway_core::Kind::Busy) while something below is in
    /// use. Blocks: not to be called on a worker.
    pub fn unmount(&self) -> Result<(), Error> {
        if self.is_served() {
            match self.mount.unmount() {
                // Unmounted by somebody else a moment ago: the readers are about to end.
                Err(_) if !self.mount.is_listed() => {}
                outcome => outcome?,
            }
            self.wait_until_empty();
        }
        Ok(())
    }

    /// Takes the mount out of sight and ends its readers: what is still open there fails from now on. Blocks: not to be called
    /// on a worker.
    pub fn abort(self) {
        self.end();
        self.wait_until_empty();
    }

    fn end(&self) {
        if self.is_served() {
            if let Err(error) = self.mount.detach() {
                tracing::warn!("{error}");
            }
            self.controls.iter().for_each(|control| control.order(Order::Abort));
        }
    }

    /// Whether it has readers: they end with the mount, whoever unmounts it.
    pub fn is_served(&self) -> bool {
        self.readers.open.load(Ordering::Acquire) > 0
    }

    fn wait_until_empty(&self) {
        *self.readers.stopper.lock() = Some(current());
        while self.is_served() {
            park_timeout(Duration::from_millis(50));
        }
    }
}

impl Drop for MountServing {
    fn drop(&mut self) {
        self.end();
    }
}
