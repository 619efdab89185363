//! Stretches of one buffer that lie in several places: each is an I/O of its own.
//!
//! A long stretch is moved in the request's own buffer, narrowed to it. Short ones are moved together, in buffers of a workspace,
//! as many as fit in a batch. Two workspaces are charged when the cache is built, and whoever needs both takes a whole buffer for a
//! copy to the origin first: those who hold pieces wait only for the devices below.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::join_all;
use spillway_core::buffer::ALIGNMENT;
use spillway_core::{Budget, ByteRange, Error, Flags, IoBuf, Kind, Op, Request, Seam, Workspace};

use super::Core;

/// A stretch of at least so many bytes is moved alone.
const LONG_BYTES: usize = 256 << 10;

/// Memory of the pieces that are moved together.
pub(super) const BATCH_BYTES: usize = 512 << 10;

/// Buffers beside those of requests.
pub(super) struct Workspaces {
    /// For copies to the origin, each in one buffer.
    pub(super) copies: Workspace,
    /// For pieces of reads and writes, and for metadata.
    pub(super) pieces: Workspace,
}

impl Workspaces {
    /// Charged to `budget`, from which their sizes follow: 6 MiB of a small one, 20 MiB of a large one.
    pub(super) fn new(budget: &Arc<Budget>) -> Result<Self, Error> {
        let share = |part: u64, least: u64, most: u64| (budget.limit() / part).clamp(least, most) as usize;
        let (copies, pieces) = (share(64, 4 << 20, 16 << 20), share(256, 2 << 20, 4 << 20));
        Ok(Self {
            copies: Workspace::new("copies of a write cache to its origin", budget, copies)?,
            pieces: Workspace::new("pieces and metadata of a write cache", budget, pieces)?,
        })
    }

    /// Bytes of both.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        (self.copies.bytes() + self.pieces.bytes()) as u64
    }
}

/// A stretch and where it lies.
pub(super) struct Part<'a> {
    pub(super) device: &'a Seam,
    pub(super) at: u64,
    pub(super) len: usize,
}

impl Part<'_> {
    fn request(&self, op: Op, buf: IoBuf) -> Request {
        let range = ByteRange::new(self.at, self.len as u64);
        Request { op, range, flags: Flags::default(), buf }
    }
}

impl Core {
    /// Reads or writes `parts`, which follow each other in `buf`; returns the result of each.
    pub(super) async fn move_parts(
        &self,
        op: Op,
        parts: &[Part<'_>],
        mut buf: IoBuf,
    ) -> (Vec<Result<(), Kind>>, IoBuf) {
        let (mut results, mut done, whole) = (Vec::with_capacity(parts.len()), 0, buf.len());
        for group in groups(parts) {
            if let [part] = &parts[group.clone()] {
                buf.narrow(done, part.len);
                let reply = part.device.submit(part.request(op, buf)).await;
                buf = reply.buf;
                buf.unnarrow(done, whole);
                results.push(reply.result);
                done += part.len;
            } else {
                done = self.move_together(op, &parts[group], &mut buf, done, &mut results).await;
            }
        }
        (results, buf)
    }

    /// Moves short parts, which begin at byte `done` of `buf`; returns where they end.
    async fn move_together(
        &self,
        op: Op,
        parts: &[Part<'_>],
        buf: &mut IoBuf,
        mut done: usize,
        results: &mut Vec<Result<(), Kind>>,
    ) -> usize {
        let mut at = done;
        let mut answers = Vec::with_capacity(parts.len());
        for (part, mut own) in parts.iter().zip(self.buffers(op, parts, buf).await) {
            if op == Op::Write && own.capacity() > 0 {
                own.copy_from_slice(&buf[at..at + part.len]);
            }
            at += part.len;
            answers.push(part.device.submit(part.request(op, own)));
        }
        for (part, reply) in parts.iter().zip(join_all(answers).await) {
            if op == Op::Read && reply.result.is_ok() {
                buf[done..done + part.len].copy_from_slice(&reply.buf);
            }
            results.push(reply.result);
            done += part.len;
        }
        done
    }

    /// A buffer for each part. Where zeroes are to be written they are the shared ones, which take no memory.
    async fn buffers(&self, op: Op, parts: &[Part<'_>], whole: &IoBuf) -> Vec<IoBuf> {
        if op == Op::Write && whole.capacity() == 0 {
            return parts.iter().map(|part| IoBuf::zeroes(part.len)).collect();
        }
        let lens: Vec<usize> = parts.iter().map(|part| part.len).collect();
        self.workspaces.pieces.take_each(&lens).await
    }
}

/// Parts that are moved at the same time: a long one alone, short ones as far as they fit in a batch.
fn groups(parts: &[Part<'_>]) -> Vec<Range<usize>> {
    let (mut groups, mut from, mut bytes) = (Vec::new(), 0, 0);
    for (at, part) in parts.iter().enumerate() {
        let memory = part.len.next_multiple_of(ALIGNMENT);
        let fits = part.len < LONG_BYTES && bytes + memory <= BATCH_BYTES;
        if at > from && !fits {
            groups.push(from..at);
            (from, bytes) = (at, 0);
        }
        bytes += if part.len < LONG_BYTES { memory } else { BATCH_BYTES };
    }
    groups.push(from..parts.len());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that answers nothing.
    fn device() -> Seam {
        let config = crate::null::Config { size: (1 << 20).into() };
        Seam::new(crate::null::Null::new(&config).expect("a valid size"))
    }

    #[test]
    fn long_parts_go_alone_and_short_ones_as_far_as_a_batch_goes() {
        let device = device();
        let grouped = |lens: &[usize]| {
            let parts: Vec<Part> = lens.iter().map(|&len| Part { device: &device, at: 0, len }).collect();
            groups(&parts).into_iter().map(|group| (group.start, group.end)).collect::<Vec<_>>()
        };
        const HALF: usize = 200 << 10;
        assert_eq!(grouped(&[512, 4096, HALF]), [(0, 3)]);
        assert_eq!(grouped(&[HALF, HALF, HALF, 512]), [(0, 2), (2, 4)]);
        assert_eq!(
            grouped(&[LONG_BYTES, 512, 512, 8 << 20, LONG_BYTES, 512]),
            [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]
        );
        let many = vec![512; 300];
        assert_eq!(grouped(&many), [(0, 128), (128, 256), (256, 300)], "a piece takes a page");
    }
}
