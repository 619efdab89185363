//! The device: one object-safe trait for the data path.
//!
//! ```text
//!   export  --Request-->  seam  --Request-->  layer  --Request-->  seam  -->  origin
//!           <--Reply----        <--Reply----         <--Reply----        <--
//! ```
//!
//! A hit is [`Answer::Done`] on the caller's stack; a miss is [`Answer::Pending`], a boxed future that owns all it needs.
//! Dropping a pending answer withdraws the request: what has not begun does not begin, and what the system below already
//! has in flight finishes on its own with its buffer kept alive, ordered before any later request that overlaps it.

use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::block::{BlockSize, ByteRange};
use crate::block_device::request::{Reply, Request};
use crate::env::LocalFuture;
use crate::error::Kind;

/// An answer now, or later.
pub enum Answer<T> {
    /// Known on the caller's stack.
    Done(T),
    /// To be polled on the thread that submitted.
    Pending(LocalFuture<T>),
}

/// The answer to a request.
pub type Submission = Answer<Reply>;

impl<T: 'static> Answer<T> {
    /// An answer that `future` will give.
    pub fn pending(future: impl Future<Output = T> + 'static) -> Self {
        Answer::Pending(Box::pin(future))
    }

    /// What `change` makes of it, once it is there. An answer that is withdrawn drops `change`.
    pub fn map<U: 'static>(self, change: impl FnOnce(T) -> U + 'static) -> Answer<U> {
        match self {
            Answer::Done(value) => Answer::Done(change(value)),
            Answer::Pending(future) => Answer::pending(async move {
                let value = future.await;
                change(value)
            }),
        }
    }

    /// The answer, for a caller that knows that it is there.
    pub fn now(self) -> T {
        match self {
            Answer::Done(value) => value,
            Answer::Pending(_) => panic!("the answer is not known yet"),
        }
    }
}

impl<T: Unpin + 'static> Future for Answer<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Answer::Pending(future) => future.as_mut().poll(context),
            Answer::Done(_) => {
                let gone = Answer::Pending(Box::pin(std::future::pending()));
                match std::mem::replace(&mut *self, gone) {
                    Answer::Done(value) => Poll::Ready(value),
                    Answer::Pending(_) => unreachable!("the variant was matched above"),
                }
            }
        }
    }
}

/// What a device is, as its users need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes; 0 while the device has no size yet.
    pub size: u64,
    /// Unit of the device: requests are whole blocks.
    pub block_size: BlockSize,
    /// Bytes of a request that the device likes best; a multiple of the block size.
    pub optimal_io: u32,
    /// Writes are refused with [`Kind::ReadOnly`].
    pub read_only: bool,
    /// Nothing survives the end of the process, whatever was flushed.
    pub volatile: bool,
    /// A write is durable once it is acknowledged: there is nothing that a flush would add.
    pub write_through: bool,
    /// Discard frees room, and never writes for that. Where false it is accepted and does nothing, and exports do not offer it.
    pub discards: bool,
    /// `WriteZeroes` writes no data and takes no room, unless a request says that the range is to stay allocated; a server below may know
    /// better once it is asked with [`Flags::free`](crate::Flags::free). Where false it may write zeroes over the whole range: nothing that
    /// costs nothing, such as a discard, is turned into it.
    pub fast_zeroes: bool,
    /// The medium has a seek cost.
    pub rotational: bool,
    /// Tells it from others, also after it was opened again; `None` where there is nothing to tell it by.
    pub identity: Option<NonZeroU64>,
    /// Who has written to it, where it remembers that.
    pub writers: Option<Writers>,
}

/// Who writes to a device that several hosts could open one after the other, by random numbers: not 0, which is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writers {
    /// Who had written to it last when it was opened.
    pub last: u32,
    /// Who has opened it: its first change makes that the last.
    pub own: u32,
}

impl Geometry {
    /// A writable device of `size` bytes in memory, in pages, that frees what is discarded: what others differ from in a field or two.
    pub const fn in_memory(size: u64) -> Self {
        Self {
            size,
            block_size: BlockSize::PAGE,
            optimal_io: BlockSize::PAGE.bytes() as u32,
            read_only: false,
            volatile: true,
            write_through: false,
            discards: true,
            fast_zeroes: true,
            rotational: false,
            identity: None,
            writers: None,
        }
    }
}

/// A stretch of a device and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Nothing is stored here (a hole).
    pub hole: bool,
    /// Reads as zero.
    pub zero: bool,
}

impl Extent {
    /// An extent of stored, unknown data.
    pub const fn stored(len: u64) -> Self {
        Self { len, hole: false, zero: false }
    }

    /// An unallocated extent that reads as zero.
    pub const fn hole(len: u64) -> Self {
        Self { len, hole: true, zero: true }
    }

    /// Appends to `list`, merging with a last extent of the same nature.
    pub fn append_to(self, list: &mut Vec<Extent>) {
        match list.last_mut() {
            Some(last) if last.hole == self.hole && last.zero == self.zero => last.len += self.len,
            _ if self.len > 0 => list.push(self),
            _ => {}
        }
    }

    /// Appends to `list` what the device `below` says of `part`, in blocks of so many bytes: one of which some is stored is stored. Returns
    /// the bytes that are told of.
    pub fn append_in_blocks(below: &[Extent], part: ByteRange, block: u64, list: &mut Vec<Extent>) -> u64 {
        let last = part.offset + part.len;
        let (mut at, mut end) = (part.offset, part.offset);
        for extent in below {
            end = last.min(end + extent.len);
            let inside = if end == last { end } else { end & !(block - 1) };
            if (extent.hole || extent.zero) && inside > at {
                Extent { len: inside - at, ..*extent }.append_to(list);
                at = inside;
            }
            if end > at {
                let around = last.min(end.next_multiple_of(block));
                Extent::stored(around - at).append_to(list);
                at = around;
            }
        }
        at - part.offset
    }
}

/// A block device: an origin, or a layer over another device.
///
/// Callers go through [`crate::Seam`], which has checked range, alignment and capability before `submit` is reached.
pub trait BlockDevice: Send + Sync {
    /// What the device is now. Its size may grow at any time, and become 0 by a reset; everything else is fixed.
    fn geometry(&self) -> Geometry;

    /// The size in [`BlockDevice::geometry`], for every request: a device whose geometry takes time to put together tells it by itself.
    fn size(&self) -> u64 {
        self.geometry().size
    }

    /// Carries out one request of whole blocks. The reply returns the request's buffer.
    fn submit(&self, request: Request) -> Submission;

    /// What `range` holds, as consecutive extents from its start: at least one, at most `count_max`; the last may reach
    /// past the end of the range, never past the end of the device. [`Kind::NotSupported`] where the device cannot tell, or the
    /// error of the look.
    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let _ = count_max;
        Answer::Done(Ok(vec![Extent::stored(range.len)]))
    }

    /// Asserts that what the device keeps about itself agrees: counts, indexes, charges; then asks the device below. For tests,
    /// between two polls, while no other thread works on the device.
    fn verify(&self) {}
}

/// Methods of a [`BlockDevice`] that ask the one below, a field: `forward!(below: geometry, extents, verify);`. Geometry has the size too.
#[macro_export]
macro_rules! forward {
    ($($below:ident).+: $($method:ident),+) => { $crate::forward!(@each [$($below).+] $($method)+); };
    (@each $below:tt $($method:ident)+) => { $($crate::forward!(@$method $below);)+ };
    (@geometry [$($below:ident).+]) => {
        fn geometry(&self) -> $crate::Geometry {
            self.$($below).+.geometry()
        }

        fn size(&self) -> u64 {
            self.$($below).+.size()
        }
    };
    (@extents [$($below:ident).+]) => {
        fn extents(
            &self,
            range: $crate::ByteRange,
            count_max: usize,
        ) -> $crate::Answer<Result<Vec<$crate::Extent>, $crate::Kind>> {
            self.$($below).+.extents(range, count_max)
        }
    };
    (@verify [$($below:ident).+]) => {
        fn verify(&self) {
            self.$($below).+.verify();
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_which_some_is_stored_is_stored() {
        let (hole, stored) = (Extent::hole, Extent::stored);
        let told = |below: &[Extent]| {
            let mut list = Vec::new();
            let bytes = Extent::append_in_blocks(below, ByteRange::new(8192, 16384), 4096, &mut list);
            assert_eq!(bytes, list.iter().map(|extent| extent.len).sum::<u64>());
            list
        };
        assert_eq!(told(&[hole(5000), stored(100), hole(20000)]), [hole(4096), stored(4096), hole(8192)]);
        assert_eq!(told(&[stored(512), hole(9000)]), [stored(4096), hole(4096), stored(4096)]);
        assert_eq!(told(&[hole(512)]), [stored(4096)], "it is not known of the rest of the block");
    }

    #[test]
    fn extents_of_one_nature_merge() {
        let mut list = Vec::new();
        Extent::stored(0).append_to(&mut list);
        Extent::stored(512).append_to(&mut list);
        Extent::stored(512).append_to(&mut list);
        Extent::hole(512).append_to(&mut list);
        assert_eq!(list, [Extent::stored(1024), Extent::hole(512)]);
    }
}
