//! The memory of folios of a zone: so many frames of one size, charged when the cache is opened, made when they are first needed, and kept.

use spillway_core::sync::{AtomicU64, Mutex, Ordering};

/// Memory of one folio.
pub(super) struct Frame {
    /// The zone that it is of.
    pub(super) zone: u16,
    pub(super) bytes: Box<[u8]>,
}

/// Frames that are in no folio. The lock is a leaf.
pub(super) struct Frames {
    free: Mutex<Vec<Box<[u8]>>>,
    made: AtomicU64,
    count: u64,
    bytes: u64,
}

impl Frames {
    /// `count` frames of `bytes` each.
    pub(super) fn new(count: u64, bytes: u64) -> Self {
        assert!(count > 0, "a cache has frames");
        Self { free: Mutex::default(), made: AtomicU64::new(0), count, bytes }
    }

    /// Frames that there may be.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// A frame of arbitrary content, unless all are in use.
    pub(super) fn take(&self) -> Option<Box<[u8]>> {
        let kept = self.free.lock().pop();
        kept.or_else(|| {
            let less = |made: u64| (made < self.count).then_some(made + 1);
            let made = self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            made.ok().map(|_| vec![0; self.bytes as usize].into())
        })
    }

    /// Frames that have memory, in use or not.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    pub(super) fn put(&self, frame: Box<[u8]>) {
        assert_eq!(frame.len() as u64, self.bytes, "a frame of this cache");
        let mut free = self.free.lock();
        free.push(frame);
        assert!(free.len() as u64 <= self.made.load(Ordering::Relaxed), "a frame that comes back was made");
    }

    /// Frames that are free, made or not.
    pub(super) fn free(&self) -> u64 {
        let kept = self.free.lock().len() as u64;
        self.count - self.made() + kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_so_many_are_out_at_a_time() {
        let frames = Frames::new(2, 4096);
        let (one, other) = (frames.take().expect("the first"), frames.take().expect("the second"));
        assert!(frames.take().is_none());
        assert_eq!((one.len(), frames.free()), (4096, 0));
        frames.put(one);
        frames.put(other);
        assert_eq!((frames.free(), frames.made()), (2, 2));
        assert!(frames.take().is_some() && frames.take().is_some() && frames.take().is_none());
    }
}
