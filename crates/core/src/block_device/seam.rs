//! What every hop between two layers goes through.
//!
//! [`Seam::submit`] checks range, alignment and capability before the device sees a request, so that no layer repeats these
//! checks. An immediate answer is checked too: it carries a buffer of the request's length. A pending one is passed on as it is,
//! without a box of the seam's own around it; that its buffer is the request's is checked of each device by [`crate::block_device::contract`]
//! and in the simulated world. That a request is answered at most once follows from ownership: the buffer moves in with the
//! request and comes back with the only reply. [`Seam::extents`] asserts that an answer leads on.

use std::sync::Arc;

use crate::block::ByteRange;
use crate::block_device::device::{Answer, BlockDevice, Extent, Geometry, Submission};
use crate::block_device::request::{Op, Reply, Request};
use crate::error::Kind;

/// A device as its user may reach it.
#[derive(Clone)]
pub struct Seam {
    device: Arc<dyn BlockDevice>,
    rules: Rules,
}

impl Seam {
    /// The seam above `device`.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        let geometry = device.geometry();
        Self { rules: Rules::new(&geometry, geometry.block_size.bytes()), device }
    }

    /// What the device is now.
    pub fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    /// Its size now, in bytes.
    pub fn size(&self) -> u64 {
        self.device.size()
    }

    /// Checks the request and hands it to the device.
    ///
    /// Refused with [`Kind::Invalid`]: a read past the end, anything that is not whole blocks. [`Kind::NoSpace`]: a write
    /// past the end. [`Kind::ReadOnly`]: a write to a read-only device. An empty range, and a discard where the device has
    /// no use for it, succeed at once.
    pub fn submit(&self, request: Request) -> Submission {
        let len = request.buf.len();
        if let Some(result) = self.rules.answer(self.size(), request.op, request.range, len) {
            return Answer::Done(request.answer(result));
        }
        let submission = self.device.submit(request);
        assert_returned(&submission, len);
        submission
    }

    /// Makes what the device has answered durable. Fails with the kind that the device answers.
    pub async fn flush(&self) -> Result<(), Kind> {
        self.submit(Request::flush()).await.result
    }

    /// See [`BlockDevice::extents`]. [`Kind::Invalid`]: an empty range, one past the end, or a `count_max` of 0.
    pub fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        if range.len == 0 || count_max == 0 || !range.within(self.size()) {
            return Answer::Done(Err(Kind::Invalid));
        }
        let unit = self.rules.unit;
        self.device
            .extents(range, count_max)
            .map(move |found| found.inspect(|extents| assert_extents(extents, range, unit, count_max)))
    }

    /// See [`BlockDevice::verify`].
    pub fn verify(&self) {
        self.device.verify();
    }
}

/// What requests are checked against besides the size. It is fixed, so that nobody is asked for it with each request.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    /// Requests are multiples of so many bytes, a power of two.
    unit: u64,
    read_only: bool,
    discards: bool,
}

impl Rules {
    /// Those of a device that takes multiples of `unit` bytes.
    pub(crate) fn new(geometry: &Geometry, unit: u64) -> Self {
        Self { unit, read_only: geometry.read_only, discards: geometry.discards }
    }

    /// The same for any bytes.
    pub(crate) fn of_bytes(self) -> Self {
        Self { unit: 1, ..self }
    }

    /// What a request with a buffer of `len` bytes is answered to which a device of `size` bytes has nothing to do; `None` for any other.
    #[inline]
    pub(crate) fn answer(&self, size: u64, op: Op, range: ByteRange, len: usize) -> Option<Result<(), Kind>> {
        assert!(!op.carries_buffer() || len as u64 == range.len, "{op:?}: buffer and range differ");
        if op == Op::Flush {
            return None;
        }
        if op.writes() && self.read_only {
            return Some(Err(Kind::ReadOnly));
        }
        if !range.within(size) {
            return Some(Err(if op.writes() { Kind::NoSpace } else { Kind::Invalid }));
        }
        if !range.aligned(self.unit) {
            return Some(Err(Kind::Invalid));
        }
        let is_void = range.len == 0 || (op == Op::Discard && !self.discards);
        is_void.then_some(Ok(()))
    }
}

/// Asserts that an immediate answer returns the buffer of its request, which has `len` bytes.
#[inline]
pub(crate) fn assert_returned(submission: &Submission, len: usize) {
    if let Answer::Done(Reply { buf, .. }) = submission {
        assert_eq!(buf.len(), len, "a reply returns the buffer of its request");
    }
}

/// Asserts what [`BlockDevice::extents`] promises: who asks walks on by it, for ever where it were empty.
fn assert_extents(extents: &[Extent], range: ByteRange, unit: u64, count_max: usize) {
    let count = extents.len();
    assert!(0 < count && count <= count_max, "{count} extents where 1 to {count_max} were asked for");
    let mut end = range.offset;
    for extent in extents {
        assert!(extent.len > 0, "an extent at {end} is empty");
        end += extent.len;
        assert!(
            !range.aligned(unit) || end.is_multiple_of(unit),
            "an extent ends at {end}, inside a block of {unit}"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::job::block_on;
    use crate::memory::buffer::IoBuf;

    struct Stub(bool);

    impl BlockDevice for Stub {
        fn geometry(&self) -> Geometry {
            Geometry { read_only: self.0, discards: false, fast_zeroes: false, ..Geometry::in_memory(65536) }
        }

        fn submit(&self, request: Request) -> Submission {
            assert!(request.op != Op::Discard && request.range.len != 0);
            Answer::Done(request.answer(Err(Kind::Io)))
        }
    }

    /// Tells of these extents, at once or later.
    struct Map(&'static [u64], bool);

    impl BlockDevice for Map {
        fn geometry(&self) -> Geometry {
            Geometry::in_memory(65536)
        }

        fn submit(&self, request: Request) -> Submission {
            Answer::Done(request.answer(Ok(())))
        }

        fn extents(&self, _: ByteRange, _: usize) -> Answer<Result<Vec<Extent>, Kind>> {
            let list = Ok(self.0.iter().map(|&len| Extent::stored(len)).collect());
            if self.1 { Answer::pending(async { list }) } else { Answer::Done(list) }
        }
    }

    #[test]
    fn extents_that_lead_nowhere_never_reach_the_caller() {
        let ask = |lens, later| {
            let answer = Seam::new(Arc::new(Map(lens, later))).extents(ByteRange::new(4096, 32768), 3);
            block_on(answer).map(|list| list.len())
        };
        for later in [false, true] {
            assert_eq!(ask(&[4096, 8192, 49152], later), Ok(3));
            for lens in [&[][..], &[0], &[4096, 0], &[4096, 512, 3584], &[4096; 4]] {
                let passed_on = catch_unwind(AssertUnwindSafe(|| ask(lens, later)));
                assert!(passed_on.is_err(), "{lens:?} was passed on");
            }
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
