//! What a system can do with a file or a block device: the calls, without any promise.
//!
//! The `io` crate makes them on a descriptor, `sim` on a disk that reorders, tears, loses and fails. The device over them,
//! which keeps the promises, is one piece of code for both.
//!
//! A call begins when its future is first polled. Once begun, a caller that drops the future does not know what became of it, and
//! the system may still carry it out: to be sure, the future is handed to [`crate::Env::spawn_here`].

use std::sync::Arc;
use std::time::Duration;

use crate::block::ByteRange;
use crate::block_device::device::{Answer, Extent, Geometry};
use crate::env::LocalFuture;
use crate::error::{Error, Kind};
use crate::memory::buffer::IoBuf;
use crate::sync::AtomicBool;

/// A file or block device that was opened and locked.
pub struct OpenStorage {
    /// The calls on it.
    pub storage: Arc<dyn Storage>,
    /// What is worth knowing about how it was opened, for people: each a sentence without a full stop.
    pub notes: Vec<String>,
}

/// What one call moved, in bytes, and its buffer. Fewer bytes than asked for are a success; no bytes of a read are the end.
pub type Moved = (Result<usize, Kind>, IoBuf);

/// How a range is allocated, or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FallocateMode {
    /// Free what can be freed without writing; what is freed reads as zero or as the drive likes, the rest as before.
    Discard,
    /// Make it read as zero without writing data, and free it.
    Punch,
    /// The same at no cost; [`Kind::NotSupported`] says that of this range alone, some of which may be zeroes then.
    Free,
    /// Make it read as zero and keep it; the system may write zeroes for that.
    Zero,
}

/// How a server is reached that has the data of a storage.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionStatus {
    /// One of [`ConnectionStatus::STATES`].
    pub state: &'static str,
    /// How long it has been in that state.
    pub lasts: Duration,
    /// Times that it was lost.
    pub lost: u64,
    /// Bytes that the server has acknowledged and no flush has covered.
    pub unflushed: u64,
}

impl ConnectionStatus {
    /// `local` for a file or device of this host; `up`; `reconnecting`, while requests wait; `failing`, while they fail; `fenced`, once
    /// another client has taken the data over or removed it: they fail for good; `full`, while writes that need room fail.
    pub const STATES: &'static [&'static str] = &["local", "up", "reconnecting", "failing", "fenced", "full"];

    /// Whether requests are answered, as far as is known.
    pub fn answers(&self) -> bool {
        assert!(Self::STATES.contains(&self.state), "{self:?} is known");
        ["local", "up", "full"].contains(&self.state)
    }
}

/// A file or block device of the system, opened and locked.
///
/// A call fails with the kind of the system's errno: [`Kind::Io`] where the disk fails, [`Kind::NoSpace`] where a write finds no
/// room, [`Kind::NotSupported`] where the system has no such call, and whatever else the system says.
pub trait Storage: Send + Sync {
    /// What it is now: its size may have changed since it was opened, by others. Calls are made in whole blocks.
    fn geometry(&self) -> Geometry;

    /// Has [`Storage::geometry`] tell the present size, where the system does not do so by itself.
    fn look(&self) -> LocalFuture<Result<(), Kind>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Makes a file or image `bytes` long that is shorter; what is new reads as zero. [`Kind::NotSupported`] for what has the length that it
    /// has.
    fn lengthen(&self, _bytes: u64) -> Answer<Result<(), Kind>> {
        Answer::Done(Err(Kind::NotSupported))
    }

    /// Bytes that memory must be aligned to; 1 where any will do.
    fn memory_alignment(&self) -> usize {
        1
    }

    /// Whether writes go around the system's cache (O_DIRECT), if they have one: each answers for itself. Without, the failure of a durable
    /// write may be reported by another durable write or a sync.
    fn direct(&self) -> bool {
        true
    }

    /// How its server is reached, where it has one.
    fn connection(&self) -> ConnectionStatus {
        ConnectionStatus { state: ConnectionStatus::STATES[0], ..ConnectionStatus::default() }
    }

    /// The last calls are about to come: where calls fail after a time since a server cannot be reached, they have that time once more from
    /// now on.
    fn wait_anew(&self) {}

    /// Has calls fail once the server cannot be reached for that time, and wait for it where it is `None`: those too that wait already, which
    /// may have the whole time once more. An error says in words why that cannot be, and nothing has changed then.
    fn set_timeout(&self, _timeout: Option<Duration>) -> Result<(), Error> {
        Ok(())
    }

    /// Set for good once another host has taken the data over or removed it, where that can be: `fenced` in [`ConnectionStatus::STATES`].
    fn fence(&self) -> Option<Arc<AtomicBool>> {
        None
    }

    /// The first loss of acknowledged data, where it remembers that by itself, and fails every later sync then. Any other failure of a sync or
    /// a durable write, as of a server that cannot be reached, leaves everything to the next sync. `None` where a failure tells of a loss.
    fn losses(&self) -> Option<Result<(), Kind>> {
        None
    }

    /// After the last call: gives back what keeps others out. An error says what was left.
    fn close(&self) -> LocalFuture<Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Reads into `buf[done..]` what lies from byte `at` on.
    fn read(&self, at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved>;

    /// Writes `buf[done..]` to byte `at` on; `durable`: it is on the medium before the call ends.
    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved>;

    /// Makes durable every write whose call had ended. What a failed call leaves undone may be lost, and a later success
    /// does not bring it back. What was lost is reported once, to the sync or durable write that looks first; other calls take no report away.
    fn sync(&self) -> LocalFuture<Result<(), Kind>>;

    /// Zeroes or discards `range`; [`Kind::NotSupported`] where this device cannot, and nothing was changed.
    fn zero(&self, range: ByteRange, mode: FallocateMode) -> LocalFuture<Result<(), Kind>>;

    /// See [`crate::BlockDevice::extents`].
    fn extents(&self, range: ByteRange, _count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        Answer::Done(Ok(vec![Extent::stored(range.len)]))
    }
}
