//! Stretches of one buffer that lie in several places: each is an I/O of its own.
//!
//! What is written leaves the request's own buffer, all stretches at once. A long stretch is read into that buffer, narrowed to it;
//! short ones are read together, in buffers of a workspace, as many as fit in a batch. Workspaces are charged when the cache is opened. Who
//! needs that of batches too takes the buffer of a batch first: those who hold pieces wait only for the devices below. What waits for the
//! origin, which may be away for hours, is held apart from what waits for the cache device alone.

use std::ops::Range;

use futures_util::future::join_all;
use spillway_core::buffer::{ALIGNMENT, Shared};
use spillway_core::{ByteRange, Flags, IoBuf, Kind, Op, Request, Seam, Workspace};
use spillway_policy::merge;

use super::device::Core;

/// A stretch of at least so many bytes is read alone.
const LONG_BYTES: usize = 256 << 10;

/// Memory of the pieces that are moved together.
pub(super) const BATCH_BYTES: usize = 512 << 10;

/// Charged for each part that is written together with others: the file and the driver below took 1330 bytes for one.
const PART_BYTES: usize = 1536;

/// A stretch and where it lies.
pub(super) struct DevicePart<'a> {
    pub(super) device: &'a Seam,
    pub(super) at: u64,
    pub(super) len: usize,
}

impl DevicePart<'_> {
    fn request(&self, op: Op, buf: IoBuf) -> Request {
        assert_eq!(buf.len(), self.len, "a buffer for the stretch");
        let range = ByteRange::new(self.at, self.len as u64);
        Request { op, range, flags: Flags::default(), buf }
    }
}

impl Core {
    /// Reads or writes `parts`, which follow each other in `buf`; returns the result of each.
    pub(super) async fn move_parts(
        &self,
        op: Op,
        parts: &[DevicePart<'_>],
        mut buf: IoBuf,
    ) -> (Vec<Result<(), Kind>>, IoBuf) {
        let (mut results, mut done, whole) = (Vec::with_capacity(parts.len()), 0, buf.len());
        for group in groups(op, parts) {
            let parts = &parts[group];
            if let [part] = parts {
                buf.narrow(done, part.len);
                let reply = part.device.submit(part.request(op, buf)).await;
                buf = reply.buf;
                buf.unnarrow(done, whole);
                results.push(reply.result);
            } else if op == Op::Write {
                buf = self.write_together(parts, buf, done, &mut results).await;
            } else {
                self.read_together(parts, &mut buf[done..], &mut results).await;
            }
            done += parts.iter().map(|part| part.len).sum::<usize>();
        }
        assert_eq!((done, results.len()), (whole, parts.len()), "the parts are the whole buffer");
        (results, buf)
    }

    /// Writes parts, which begin at byte `at` of `buf`, from where they are.
    async fn write_together(
        &self,
        parts: &[DevicePart<'_>],
        buf: IoBuf,
        mut at: usize,
        results: &mut Vec<Result<(), Kind>>,
    ) -> IoBuf {
        let charge = self.workspace_of(parts).take(parts.len() * PART_BYTES).await;
        let shared = Shared::new(buf, charge);
        let begin = |part: &DevicePart<'_>| {
            let view = shared.view(at, part.len);
            at += part.len;
            part.device.submit(part.request(Op::Write, view))
        };
        let replies = join_all(parts.iter().map(begin).collect::<Vec<_>>()).await;
        results.extend(replies.into_iter().map(|reply| reply.result));
        shared.into_whole()
    }

    fn workspace_of(&self, parts: &[DevicePart<'_>]) -> &Workspace {
        let waits_for_origin = parts.iter().any(|part| std::ptr::eq(part.device, &self.origin));
        if waits_for_origin { &self.workspaces.pieces } else { &self.workspaces.local }
    }

    /// Reads short parts in buffers of a workspace, and copies them to `bytes`.
    async fn read_together(
        &self,
        parts: &[DevicePart<'_>],
        bytes: &mut [u8],
        results: &mut Vec<Result<(), Kind>>,
    ) {
        let lens: Vec<usize> = parts.iter().map(|part| part.len).collect();
        let buffers = self.workspace_of(parts).take_each(&lens).await;
        let begin = |(part, own): (&DevicePart<'_>, IoBuf)| part.device.submit(part.request(Op::Read, own));
        let answers: Vec<_> = parts.iter().zip(buffers).map(begin).collect();
        let mut rest = bytes;
        for reply in join_all(answers).await {
            let (bytes, behind) = rest.split_at_mut(reply.buf.len());
            if reply.result.is_ok() {
                bytes.copy_from_slice(&reply.buf);
            }
            results.push(reply.result);
            rest = behind;
        }
    }
}

/// Parts that are moved at the same time, as far as their memory fits in a batch; a long read goes alone.
fn groups(op: Op, parts: &[DevicePart<'_>]) -> Vec<Range<usize>> {
    let memory = |part: &DevicePart<'_>| match op {
        Op::Write => PART_BYTES,
        _ if part.len < LONG_BYTES => part.len.next_multiple_of(ALIGNMENT),
        _ => BATCH_BYTES,
    };
    merge::batches(parts.iter().map(memory), BATCH_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that answers nothing.
    fn device() -> Seam {
        let config = crate::small::null::Config { size: 1 << 20 };
        Seam::new(crate::small::null::Null::new(&config).expect("a valid size"))
    }

    #[test]
    fn long_reads_go_alone_and_short_parts_as_far_as_a_batch_goes() {
        let device = device();
        let grouped = |op: Op, lens: &[usize]| {
            let parts: Vec<DevicePart> =
                lens.iter().map(|&len| DevicePart { device: &device, at: 0, len }).collect();
            groups(op, &parts).into_iter().map(|group| (group.start, group.end)).collect::<Vec<_>>()
        };
        const HALF: usize = 200 << 10;
        assert_eq!(grouped(Op::Read, &[512, 4096, HALF]), [(0, 3)]);
        assert_eq!(grouped(Op::Read, &[HALF, HALF, HALF, 512]), [(0, 2), (2, 4)]);
        assert_eq!(
            grouped(Op::Read, &[LONG_BYTES, 512, 512, 8 << 20, LONG_BYTES, 512]),
            [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]
        );
        let many = vec![512; 300];
        assert_eq!(grouped(Op::Read, &many), [(0, 128), (128, 256), (256, 300)], "a piece takes a page");
        assert_eq!(grouped(Op::Write, &many), [(0, 300)], "a view takes no memory, its request some");
        assert_eq!(grouped(Op::Write, &[8 << 20; 342]), [(0, 341), (341, 342)]);
    }
}
