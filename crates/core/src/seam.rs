//! What every hop between two layers goes through.
//!
//! [`Seam::submit`] checks range, alignment and capability before the device sees a request, and that the answer carries a
//! buffer of the request's length afterwards, so that no layer repeats these checks. That a request is answered exactly
//! once follows from ownership: the buffer moves in with the request and comes back with the only reply.

use std::sync::Arc;

use crate::block::ByteRange;
use crate::device::{Answer, BlockDevice, Extent, Geometry, Submission};
use crate::error::Kind;
use crate::request::{Op, Reply, Request};

/// A device as its user may reach it.
#[derive(Clone)]
pub struct Seam {
    device: Arc<dyn BlockDevice>,
}

impl Seam {
    /// The seam above `device`.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device }
    }

    /// What the device is now.
    pub fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    /// Checks the request and hands it to the device.
    ///
    /// Refused with [`Kind::Invalid`]: a read past the end, anything that is not whole blocks. [`Kind::NoSpace`]: a write
    /// past the end. [`Kind::ReadOnly`]: a write to a read-only device. An empty range, and a discard where the device has
    /// no use for it, succeed at once.
    pub fn submit(&self, request: Request) -> Submission {
        pass(&self.device.geometry(), request, |request| self.device.submit(request))
    }

    /// See [`BlockDevice::extents`]; a range past the end is [`Kind::Invalid`].
    pub fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        if range.len == 0 || count_max == 0 || !range.within(self.device.geometry().size) {
            return Answer::Done(Err(Kind::Invalid));
        }
        self.device.extents(range, count_max)
    }
}

/// Checks a request against `geometry`, has `below` carry it out, and checks the buffer of an immediate answer.
#[inline]
pub(crate) fn pass(
    geometry: &Geometry,
    request: Request,
    below: impl FnOnce(Request) -> Submission,
) -> Submission {
    let (op, len) = (request.op, request.buf.len());
    assert!(!op.carries_buffer() || len as u64 == request.range.len, "{op:?}: buffer and range differ");
    match admit(geometry, op, request.range) {
        Verdict::Forward => checked(below(request), len),
        Verdict::Answer(result) => Answer::Done(request.answer(result)),
    }
}

enum Verdict {
    Forward,
    Answer(Result<(), Kind>),
}

fn admit(geometry: &Geometry, op: Op, range: ByteRange) -> Verdict {
    if op == Op::Flush {
        return Verdict::Forward;
    }
    if op.writes() && geometry.read_only {
        return Verdict::Answer(Err(Kind::ReadOnly));
    }
    if !range.within(geometry.size) {
        return Verdict::Answer(Err(if op.writes() { Kind::NoSpace } else { Kind::Invalid }));
    }
    if !range.aligned(geometry.block_size.bytes()) {
        return Verdict::Answer(Err(Kind::Invalid));
    }
    if range.len == 0 || (op == Op::Discard && !geometry.discards) {
        return Verdict::Answer(Ok(()));
    }
    Verdict::Forward
}

fn checked(submission: Submission, len: usize) -> Submission {
    if let Answer::Done(Reply { buf, .. }) = &submission {
        assert_eq!(buf.len(), len, "a reply returns the buffer of its request");
    }
    submission
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockSize;
    use crate::buffer::IoBuf;

    struct Stub(bool);

    impl BlockDevice for Stub {
        fn geometry(&self) -> Geometry {
            Geometry {
                size: 65536,
                block_size: BlockSize::PAGE,
                optimal_io: 4096,
                read_only: self.0,
                volatile: true,
                discards: false,
                write_through: false,
                fast_zeroes: false,
                rotational: false,
                identity: None,
            }
        }

        fn submit(&self, request: Request) -> Submission {
            assert!(request.op != Op::Discard && request.range.len != 0);
            Answer::Done(request.answer(Err(Kind::Io)))
        }
    }

    fn ask(read_only: bool, request: Request) -> Result<(), Kind> {
        match Seam::new(Arc::new(Stub(read_only))).submit(request) {
            Answer::Done(reply) => reply.result,
            Answer::Pending(_) => panic!("answered at once"),
        }
    }

    #[test]
    fn bad_requests_never_reach_the_device() {
        let buf = || IoBuf::zeroed(4096);
        assert_eq!(ask(false, Request::read(65536, buf())), Err(Kind::Invalid));
        assert_eq!(ask(false, Request::write(65536, buf())), Err(Kind::NoSpace));
        assert_eq!(ask(false, Request::write(u64::MAX - 1, buf())), Err(Kind::NoSpace));
        assert_eq!(ask(false, Request::write(512, buf())), Err(Kind::Invalid));
        assert_eq!(ask(true, Request::write(0, buf())), Err(Kind::ReadOnly));
        assert_eq!(ask(false, Request::read(0, IoBuf::empty())), Ok(()));
        assert_eq!(ask(false, Request::bare(Op::Discard, ByteRange::new(0, 4096))), Ok(()));
        assert_eq!(ask(false, Request::read(0, buf())), Err(Kind::Io));
    }
}
