//! Measures the device that is written back to. Each write, read and flush there is reported here.

use std::future::Future;
use std::sync::Arc;

use spillway_core::sync::{AtomicUsize, Mutex, Ordering};
use spillway_core::{Env, Kind};
use spillway_policy::bandwidth::Bandwidth;

/// The bandwidth of a device, and its reads in flight, shared by all who use it.
pub(crate) struct Meter {
    env: Arc<dyn Env>,
    bandwidth: Mutex<Bandwidth>,
    reads: AtomicUsize,
}

impl Meter {
    /// A meter that has measured nothing yet.
    pub(crate) fn new(env: Arc<dyn Env>) -> Arc<Self> {
        Arc::new(Self { env, bandwidth: Mutex::default(), reads: AtomicUsize::new(0) })
    }

    /// A write of `bytes` is in flight until the result is dropped. Unless it has landed by then, it measures nothing.
    pub(crate) fn write(self: &Arc<Self>, bytes: u64) -> MeteredWrite {
        assert!(bytes > 0, "a write has bytes");
        self.bandwidth.lock().begin_write(self.env.now());
        MeteredWrite { meter: self.clone(), bytes, landed: false }
    }

    /// A client's read is in flight until the result is dropped.
    pub(crate) fn read(self: &Arc<Self>) -> MeteredRead {
        self.reads.fetch_add(1, Ordering::Relaxed);
        MeteredRead(self.clone())
    }

    /// Whether a client's read is in flight.
    pub(crate) fn is_read(&self) -> bool {
        self.reads.load(Ordering::Relaxed) > 0
    }

    /// Flushes the device by `flush`; its error is returned as it is, and measures nothing.
    pub(crate) async fn flush(&self, flush: impl Future<Output = Result<(), Kind>>) -> Result<(), Kind> {
        let (covers, begun) = (self.bandwidth.lock().begin_flush(), self.env.now());
        flush.await?;
        self.bandwidth.lock().end_flush(covers, self.env.now() - begun);
        Ok(())
    }

    /// Bytes that may be in flight.
    pub(crate) fn ahead(&self) -> u64 {
        self.bandwidth.lock().ahead()
    }

    /// Bytes of writes that have ended.
    #[cfg(test)]
    pub(crate) fn written(&self) -> u64 {
        self.bandwidth.lock().begin_flush()
    }

    /// Bytes a second of writes, as last measured; 0 before that.
    pub(crate) fn bytes_per_second(&self) -> u64 {
        self.bandwidth.lock().bytes_per_second()
    }
}

/// A write in flight.
pub(crate) struct MeteredWrite {
    meter: Arc<Meter>,
    bytes: u64,
    landed: bool,
}

impl MeteredWrite {
    /// The device has it.
    pub(crate) fn landed(mut self) {
        self.landed = true;
    }
}

impl Drop for MeteredWrite {
    fn drop(&mut self) {
        let (now, mut bandwidth) = (self.meter.env.now(), self.meter.bandwidth.lock());
        if self.landed {
            bandwidth.end_write(now, self.bytes);
        } else {
            bandwidth.abandon_write();
        }
    }
}

/// A read in flight.
pub(crate) struct MeteredRead(Arc<Meter>);

impl Drop for MeteredRead {
    fn drop(&mut self) {
        let before = self.0.reads.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a read that ends has begun");
    }
}
