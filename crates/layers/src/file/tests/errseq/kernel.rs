//! A kernel whose calls begin, look at the page cache and are answered when a test says so.

use std::sync::Arc;

use spillway_core::storage::Moved;
use spillway_core::sync::{Mutex, WaitList};
use spillway_core::{ByteRange, FallocateMode, Geometry, IoBuf, Kind, LocalFuture, Storage};

pub(super) const BLOCK: u64 = 4096;
pub(super) const BLOCKS: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Write { at: usize, value: u8, durable: bool },
    Zero { at: usize },
    Sync,
}

/// A call that has begun looks at a moment of the test's choice, and is answered at another.
pub(super) struct Running {
    pub(super) call: Call,
    pub(super) seen: Option<Result<(), Kind>>,
    pub(super) answered: bool,
}

pub(super) struct State {
    /// One value for each block: on the medium, and in the page cache.
    pub(super) medium: [u8; BLOCKS],
    pub(super) cache: [u8; BLOCKS],
    pub(super) report: Option<Kind>,
    /// The next plain writes or zeroings fail.
    pub(super) refuse: bool,
    pub(super) calls: Vec<Running>,
}

impl State {
    /// The kernel gives up on dirty blocks; reads show the old content again.
    pub(super) fn lose(&mut self, lost: impl Fn(usize) -> bool) {
        let mut any = false;
        for block in 0..BLOCKS {
            if self.cache[block] != self.medium[block] && lost(block) {
                self.cache[block] = self.medium[block];
                any = true;
            }
        }
        if any {
            self.report = Some(Kind::Io);
        }
    }

    pub(super) fn look(&mut self, index: usize) {
        let call = self.calls[index].call;
        let result = match call {
            Call::Write { durable: false, .. } | Call::Zero { .. } if self.refuse => Err(Kind::NoSpace),
            Call::Write { at, durable: true, .. } => {
                self.medium[at] = self.cache[at];
                self.report.take().map_or(Ok(()), Err)
            }
            Call::Write { .. } | Call::Zero { .. } => Ok(()),
            Call::Sync => {
                self.medium = self.cache;
                self.report.take().map_or(Ok(()), Err)
            }
        };
        self.calls[index].seen = Some(result);
    }
}

pub(super) struct Kernel {
    pub(super) direct: bool,
    pub(super) state: Mutex<State>,
    pub(super) answers: WaitList,
}

impl Kernel {
    async fn run(self: Arc<Self>, call: Call) -> Result<(), Kind> {
        let index = {
            let mut state = self.state.lock();
            match call {
                Call::Write { at, value, .. } => state.cache[at] = value,
                Call::Zero { at } => state.cache[at] = 0,
                Call::Sync => {}
            }
            state.calls.push(Running { call, seen: None, answered: false });
            state.calls.len() - 1
        };
        let answer = || {
            let state = self.state.lock();
            let running = &state.calls[index];
            running.answered.then(|| running.seen.expect("it looks before it is answered"))
        };
        self.answers.until(answer).await
    }
}

/// The fake as the layer sees it.
pub(super) struct Fake(pub(super) Arc<Kernel>);

impl Storage for Fake {
    fn geometry(&self) -> Geometry {
        Geometry { volatile: false, ..Geometry::in_memory(BLOCKS as u64 * BLOCK) }
    }

    fn direct(&self) -> bool {
        self.0.direct
    }

    fn read(&self, _at: u64, _buf: IoBuf, _done: usize) -> LocalFuture<Moved> {
        unreachable!("nothing is read here")
    }

    fn write(&self, at: u64, buf: IoBuf, _done: usize, durable: bool) -> LocalFuture<Moved> {
        let call = Call::Write { at: (at / BLOCK) as usize, value: buf[0], durable };
        let run = self.0.clone().run(call);
        Box::pin(async move { (run.await.map(|()| buf.len()), buf) })
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        Box::pin(self.0.clone().run(Call::Sync))
    }

    fn zero(&self, range: ByteRange, _mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        Box::pin(self.0.clone().run(Call::Zero { at: (range.offset / BLOCK) as usize }))
    }
}
