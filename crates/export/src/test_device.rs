//! A device in memory that answers at once, or when it is told to.

use std::sync::{Arc, Weak};

use spillway_core::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, WaitList};
use spillway_core::{Answer, BlockDevice, ByteRange, Extent, Geometry, Kind, Op, Reply, Request, Submission};

struct State {
    bytes: Vec<u8>,
    allocated: Vec<bool>,
    log: Vec<(Op, ByteRange, bool)>,
    failure: Option<Kind>,
    geometry: Geometry,
    /// Questions about extents.
    looks: usize,
    /// Address of the bytes of the last write.
    written_from: usize,
}

/// A device of 4096-byte blocks that knows holes, and says so of [`LOOKED_AT_MAX`] blocks at a time.
pub(crate) struct TestDevice {
    this: Weak<TestDevice>,
    state: Mutex<State>,
    held: AtomicBool,
    permits: AtomicUsize,
    waiters: WaitList,
}

const BLOCK: u64 = 4096;

/// Blocks that one answer about extents covers at most.
pub(crate) const LOOKED_AT_MAX: usize = 64;

impl TestDevice {
    pub(crate) fn new(size: u64) -> Arc<Self> {
        let geometry = Geometry::in_memory(size);
        let state = State {
            bytes: vec![0; size as usize],
            allocated: vec![false; (size / BLOCK) as usize],
            log: Vec::new(),
            failure: None,
            geometry,
            looks: 0,
            written_from: 0,
        };
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            state: Mutex::new(state),
            held: AtomicBool::new(false),
            permits: AtomicUsize::new(0),
            waiters: WaitList::default(),
        })
    }

    /// From now on answers wait for [`TestDevice::release`].
    pub(crate) fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
    }

    /// Lets `count` waiting answers come.
    pub(crate) fn release(&self, count: usize) {
        self.permits.fetch_add(count, Ordering::SeqCst);
        self.waiters.wake_all();
    }

    /// From now on every request fails, or none.
    pub(crate) fn fail(&self, failure: Option<Kind>) {
        self.state.lock().failure = failure;
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Geometry)) {
        let mut state = self.state.lock();
        change(&mut state.geometry);
        let size = state.geometry.size as usize;
        state.bytes.resize(size, 0);
        state.allocated.resize(size / BLOCK as usize, false);
    }

    /// What was carried out since the last call: operation, range, FUA.
    pub(crate) fn log(&self) -> Vec<(Op, ByteRange, bool)> {
        std::mem::take(&mut self.state.lock().log)
    }

    /// Questions about extents that were answered so far.
    pub(crate) fn looks(&self) -> usize {
        self.state.lock().looks
    }

    /// Address of the bytes of the last write.
    pub(crate) fn written_from(&self) -> usize {
        self.state.lock().written_from
    }

    fn shared(&self) -> Arc<Self> {
        self.this.upgrade().expect("made in an Arc")
    }

    fn permit(&self) -> Option<()> {
        let take = |permits: usize| permits.checked_sub(1);
        self.permits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).ok().map(|_| ())
    }
}

impl State {
    fn carry_out(&mut self, mut request: Request) -> Reply {
        self.log.push((request.op, request.range, request.flags.fua));
        if let Some(kind) = self.failure {
            return request.answer(Err(kind));
        }
        let ByteRange { offset, len } = request.range;
        let span = offset as usize..(offset + len) as usize;
        let blocks = (offset / BLOCK) as usize..((offset + len) / BLOCK) as usize;
        match request.op {
            Op::Read => request.buf.copy_from_slice(&self.bytes[span]),
            Op::Write => {
                self.written_from = request.buf.as_ptr() as usize;
                self.bytes[span].copy_from_slice(&request.buf);
                self.allocated[blocks].fill(true);
            }
            Op::WriteZeroes | Op::Discard => {
                self.bytes[span].fill(0);
                self.allocated[blocks].fill(request.flags.no_hole);
            }
            Op::Flush => {}
        }
        request.answer(Ok(()))
    }

    fn extents(&mut self, range: ByteRange, count_max: usize) -> Vec<Extent> {
        let mut list = Vec::new();
        self.looks += 1;
        let blocks = range.offset / BLOCK..(range.offset + range.len).div_ceil(BLOCK);
        for block in blocks.take(LOOKED_AT_MAX) {
            let allocated = self.allocated[block as usize];
            if allocated { Extent::stored(BLOCK) } else { Extent::hole(BLOCK) }.append_to(&mut list);
        }
        list.truncate(count_max);
        list
    }
}

impl BlockDevice for TestDevice {
    fn geometry(&self) -> Geometry {
        self.state.lock().geometry
    }

    fn submit(&self, request: Request) -> Submission {
        assert!(request.range.aligned(BLOCK), "devices see whole blocks");
        if !self.held.load(Ordering::SeqCst) {
            return Answer::Done(self.state.lock().carry_out(request));
        }
        let this = self.shared();
        Answer::pending(async move {
            this.waiters.until(|| this.permit()).await;
            this.state.lock().carry_out(request)
        })
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        assert!(range.aligned(BLOCK), "devices see whole blocks");
        if let Some(kind) = self.state.lock().failure {
            return Answer::Done(Err(kind));
        }
        if !self.held.load(Ordering::SeqCst) {
            return Answer::Done(Ok(self.state.lock().extents(range, count_max)));
        }
        let this = self.shared();
        Answer::pending(async move {
            this.waiters.until(|| this.permit()).await;
            Ok(this.state.lock().extents(range, count_max))
        })
    }
}
