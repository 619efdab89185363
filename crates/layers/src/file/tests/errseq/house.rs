//! A file over the kernel, whose requests are polled by hand.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use spillway_core::sync::{Mutex, WaitList};
use spillway_core::{Answer, BlockDevice, ByteRange, IoBuf, Kind, LocalFuture, Op, Reply, Request};
use spillway_sim::world::World;

use super::kernel::{BLOCK, BLOCKS, Call, Fake, Kernel, Running, State};
use crate::file::File;

/// A file over the fake, and the requests that wait for an answer.
pub(super) struct House {
    pub(super) kernel: Arc<Kernel>,
    pub(super) world: Arc<World>,
    pub(super) file: File,
}

/// A request, polled by hand.
pub(super) struct Asked(Option<LocalFuture<Reply>>, Option<Result<(), Kind>>);

impl Asked {
    pub(super) fn poll(&mut self) -> Option<Result<(), Kind>> {
        if let Some(future) = &mut self.0
            && let Poll::Ready(reply) = future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            (self.0, self.1) = (None, Some(reply.result));
        }
        self.1
    }
}

impl House {
    pub(super) fn new(direct: bool) -> Self {
        let state =
            State { medium: [0; BLOCKS], cache: [0; BLOCKS], report: None, refuse: false, calls: Vec::new() };
        let kernel = Arc::new(Kernel { direct, state: Mutex::new(state), answers: WaitList::default() });
        let world = World::new(1);
        let file = File::new(Arc::new(Fake(kernel.clone())), world.clone());
        Self { kernel, world, file }
    }

    pub(super) fn submit(&self, request: Request) -> Asked {
        let Answer::Pending(future) = self.file.submit(request) else { panic!("a file takes its time") };
        let mut asked = Asked(Some(future), None);
        assert_eq!(asked.poll(), None, "nothing was answered yet");
        asked
    }

    pub(super) fn write(&self, at: usize, fua: bool) -> Asked {
        let mut buf = IoBuf::new(BLOCK as usize);
        buf.fill(at as u8 + 1);
        let mut request = Request::write(at as u64 * BLOCK, buf);
        request.flags.fua = fua;
        self.submit(request)
    }

    pub(super) fn flush(&self) -> Asked {
        self.submit(Request::flush())
    }

    pub(super) fn bare(&self, op: Op, at: usize, fua: bool) -> Asked {
        let mut request = Request::bare(op, ByteRange::new(at as u64 * BLOCK, BLOCK));
        request.flags.fua = fua;
        self.submit(request)
    }

    /// Indices of the calls that have not looked, or not been answered.
    pub(super) fn open(&self, looked: bool) -> Vec<usize> {
        let state = self.kernel.state.lock();
        let open = |running: &Running| running.seen.is_some() == looked && !running.answered;
        (0..state.calls.len()).filter(|&index| open(&state.calls[index])).collect()
    }

    pub(super) fn look(&self, index: usize) {
        self.kernel.state.lock().look(index);
    }

    pub(super) fn answer(&self, index: usize) {
        self.kernel.state.lock().calls[index].answered = true;
        self.kernel.answers.wake_all();
    }

    pub(super) fn lose(&self) {
        self.kernel.state.lock().lose(|_| true);
    }

    pub(super) fn syncs(&self) -> usize {
        self.kernel.state.lock().calls.iter().filter(|running| running.call == Call::Sync).count()
    }

    /// Lets the calls that are open look, the last first, then answers them, the first first.
    pub(super) fn carry_out(&self) {
        self.open(false).into_iter().rev().for_each(|index| self.look(index));
        self.open(true).into_iter().for_each(|index| self.answer(index));
    }

    pub(super) fn end(&self, asked: &mut Asked) -> Result<(), Kind> {
        for _ in 0..8 {
            if let Some(result) = asked.poll() {
                return result;
            }
            self.carry_out();
        }
        panic!("a request is never answered")
    }

    pub(super) fn done(&self, mut asked: Asked) -> Result<(), Kind> {
        self.end(&mut asked)
    }
}
