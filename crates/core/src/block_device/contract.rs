//! What every device must do, as a suite.
//!
//! Each origin, layer and shipped stack runs [`check`] in its tests. The suite knows a device only through the seam and
//! compares it with a plain array of bytes, first with whole blocks, then with sectors through [`Aligned`].

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use crate::block::ByteRange;
use crate::block_device::align::Aligned;
use crate::block_device::device::{Answer, BlockDevice, Extent, Submission};
use crate::block_device::request::{Op, Reply, Request};
use crate::block_device::seam::Seam;
use crate::error::Kind;
use crate::memory::buffer::IoBuf;
use crate::random::Random;

/// Counts how often its waker is woken.
#[derive(Debug, Default)]
pub struct Wakes(AtomicUsize);

impl Wakes {
    /// The waker that is counted.
    pub fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }

    /// How often it was woken.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A device to be checked.
pub struct Subject<'a> {
    /// A fresh device that reads as zero, of 64 KiB to 1 GiB, writable.
    pub device: Arc<dyn BlockDevice>,
    /// Runs an answer to its end.
    pub run: &'a dyn Fn(Submission) -> Reply,
    /// False for a device that swallows what is written.
    pub stores: bool,
}

/// Bytes at the start of the device that the suite works on.
const ARENA: u64 = 1 << 20;

/// Runs the whole suite. Panics with what was violated.
pub fn check(subject: &Subject<'_>) {
    geometry_is_sane(subject);
    the_seam_refuses(subject);
    starts_as_zero(subject);
    if subject.stores {
        whole_blocks_match_a_model(subject);
        sectors_match_a_model(subject);
        zeroes_and_extents_agree(subject);
        answers_may_be_dropped(subject);
    }
    flush_succeeds(subject);
}

fn geometry_is_sane(subject: &Subject<'_>) {
    let geometry = subject.device.geometry();
    let block = geometry.block_size.bytes();
    assert!(geometry.size >= 65536 && geometry.size.is_multiple_of(block), "size {}", geometry.size);
    assert!(u64::from(geometry.optimal_io).is_multiple_of(block) && geometry.optimal_io > 0, "optimal_io");
    assert!(!geometry.read_only, "the suite writes");
    assert_eq!(subject.device.size(), geometry.size, "a device has one size");
}

fn the_seam_refuses(subject: &Subject<'_>) {
    let seam = Seam::new(subject.device.clone());
    let size = seam.geometry().size;
    let block = seam.geometry().block_size.bytes() as usize;
    let ask = |request| (subject.run)(seam.submit(request)).result;
    assert_eq!(ask(Request::read(size, IoBuf::new(block))), Err(Kind::Invalid), "read past the end");
    assert_eq!(ask(Request::write(size, IoBuf::zeroed(block))), Err(Kind::NoSpace), "write past the end");
    assert_eq!(ask(Request::read(1, IoBuf::new(block))), Err(Kind::Invalid), "misaligned read");
    assert_eq!(ask(Request::bare(Op::WriteZeroes, ByteRange::new(0, 0))), Ok(()), "an empty range");
}

fn starts_as_zero(subject: &Subject<'_>) {
    let seam = Seam::new(subject.device.clone());
    let len = seam.geometry().size.min(ARENA);
    let mut buf = IoBuf::new(len as usize);
    buf.fill(0xee);
    let reply = (subject.run)(seam.submit(Request::read(0, buf)));
    assert_eq!(reply.result, Ok(()));
    assert!(reply.buf.iter().all(|&byte| byte == 0), "a fresh device reads as zero");
}

fn whole_blocks_match_a_model(subject: &Subject<'_>) {
    let seam = Seam::new(subject.device.clone());
    let unit = seam.geometry().block_size.bytes();
    let mut model = Model::new(seam.geometry().size.min(ARENA));
    (subject.run)(seam.submit(Request::bare(Op::WriteZeroes, model.all())));
    model.play(1, 600, unit, &|request| (subject.run)(seam.submit(request)));
}

fn sectors_match_a_model(subject: &Subject<'_>) {
    let aligned = Aligned::new(subject.device.clone());
    let mut model = Model::new(aligned.geometry().size.min(ARENA));
    (subject.run)(aligned.submit(Request::bare(Op::WriteZeroes, model.all())));
    model.play(2, 600, 512, &|request| (subject.run)(aligned.submit(request)));
}

fn zeroes_and_extents_agree(subject: &Subject<'_>) {
    let seam = Seam::new(subject.device.clone());
    let range = ByteRange::new(0, seam.geometry().size.min(ARENA));
    (subject.run)(seam.submit(Request::bare(Op::WriteZeroes, range)));
    let mut data = IoBuf::new(range.len as usize / 2);
    data.fill(7);
    (subject.run)(seam.submit(Request::write(range.len / 2, data)));
    let extents = extents(subject, &seam, range, 1 << 20).expect("the range is on the device");
    assert!(extents.iter().map(|extent| extent.len).sum::<u64>() >= range.len, "extents cover the range");
    let mut at = 0;
    for Extent { len, zero, .. } in extents {
        assert!(!zero || at + len <= range.len / 2, "data was reported as zero");
        at += len;
    }
    let first = &self::extents(subject, &seam, range, 1).expect("the range is on the device");
    assert_eq!(first.len(), 1, "one extent was asked for");
    let past_the_end = ByteRange::new(seam.geometry().size, 512);
    assert_eq!(self::extents(subject, &seam, past_the_end, 1), Err(Kind::Invalid));
}

/// The extents of `range`, awaited where the device has to look first.
fn extents(
    subject: &Subject<'_>,
    seam: &Seam,
    range: ByteRange,
    count_max: usize,
) -> Result<Vec<Extent>, Kind> {
    let found = Rc::new(RefCell::new(None));
    let (finds, answer) = (found.clone(), seam.extents(range, count_max));
    (subject.run)(Answer::pending(async move {
        *finds.borrow_mut() = Some(answer.await);
        Reply { result: Ok(()), buf: IoBuf::empty() }
    }));
    found.take().expect("answers are run to their end")
}

fn answers_may_be_dropped(subject: &Subject<'_>) {
    let seam = Seam::new(subject.device.clone());
    let block = seam.geometry().block_size.bytes() as usize;
    for index in 0..16u64 {
        drop(seam.submit(Request::write(index * block as u64, IoBuf::zeroed(block))));
        drop(seam.submit(Request::read(index * block as u64, IoBuf::new(block))));
    }
    let mut buf = IoBuf::new(block);
    buf.fill(9);
    assert_eq!((subject.run)(seam.submit(Request::write(0, buf))).result, Ok(()));
    let reply = (subject.run)(seam.submit(Request::read(0, IoBuf::new(block))));
    assert!(reply.buf.iter().all(|&byte| byte == 9), "a withdrawn write landed after a later one");
}

fn flush_succeeds(subject: &Subject<'_>) {
    let seam = Seam::new(subject.device.clone());
    let block = seam.geometry().block_size.bytes() as usize;
    let write = Request::write(0, IoBuf::zeroed(block)).with_fua();
    assert_eq!((subject.run)(seam.submit(write)).result, Ok(()), "a write with FUA");
    assert_eq!((subject.run)(seam.submit(Request::flush())).result, Ok(()));
}

/// What the device should hold. A discarded byte may read as before or as zero.
struct Model {
    bytes: Vec<u8>,
    loose: Vec<bool>,
}

impl Model {
    fn new(len: u64) -> Self {
        Self { bytes: vec![0; len as usize], loose: vec![false; len as usize] }
    }

    fn all(&self) -> ByteRange {
        ByteRange::new(0, self.bytes.len() as u64)
    }

    fn play(&mut self, seed: u64, steps: usize, unit: u64, submit: &dyn Fn(Request) -> Reply) {
        let mut random = Random(seed);
        for step in 0..steps {
            let request = self.random_request(&mut random, unit);
            let (op, range, len) = (request.op, request.range, request.buf.len());
            let span = range.offset as usize..(range.offset + range.len) as usize;
            if op == Op::Write {
                self.bytes[span.clone()].copy_from_slice(&request.buf);
            }
            let reply = submit(request);
            assert_eq!(reply.result, Ok(()), "seed {seed} step {step}: {op:?} {range:?}");
            assert_eq!(reply.buf.len(), len, "seed {seed} step {step}: {op:?} returns another buffer");
            match op {
                Op::Read => {
                    self.compare(&reply.buf, span.clone(), &format!("seed {seed} step {step} {range:?}"))
                }
                Op::WriteZeroes => self.bytes[span.clone()].fill(0),
                _ => {}
            }
            if op.writes() {
                self.loose[span].fill(op == Op::Discard);
            }
        }
        let reply = submit(Request::read(0, IoBuf::new(self.bytes.len())));
        self.compare(&reply.buf, 0..self.bytes.len(), &format!("seed {seed} at the end"));
    }

    fn random_request(&self, random: &mut Random, unit: u64) -> Request {
        let units = self.bytes.len() as u64 / unit;
        let first = random.below(units);
        let longest = if random.below(8) == 0 { units - first } else { (units - first).min(16) };
        let range = ByteRange::new(first * unit, (1 + random.below(longest)) * unit);
        let mut request = match random.below(10) {
            0 => Request::bare(Op::Discard, range),
            1 => Request::bare(Op::WriteZeroes, range),
            2..=5 => Request::read(range.offset, IoBuf::new(range.len as usize)),
            _ => Request::write(range.offset, IoBuf::new(range.len as usize)),
        };
        if request.op == Op::Write {
            random.fill(&mut request.buf);
        }
        request.flags.fua = request.op.writes() && random.below(8) == 0;
        request.flags.no_hole = request.op == Op::WriteZeroes && random.below(2) == 0;
        request
    }

    fn compare(&self, read: &[u8], span: std::ops::Range<usize>, place: &str) {
        assert_eq!(read.len(), span.len(), "{place}: bytes read");
        for (at, &byte) in span.zip(read) {
            let allowed = byte == self.bytes[at] || (self.loose[at] && byte == 0);
            assert!(allowed, "{place}: byte {at} is {byte}, expected {}", self.bytes[at]);
        }
    }
}
