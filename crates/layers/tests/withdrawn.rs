//! What requests that were withdrawn leave behind in a file is charged to the limit on buffers, with every allocation counted.
//!
//! Alone in its process: the allocator is the whole process's.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Waker};

use spillway_core::buffer::Buffers;
use spillway_core::storage::{FallocateMode, Moved, Storage};
use spillway_core::sync::WaitList;
use spillway_core::{
    Answer, BlockDevice, ByteRange, Extent, Geometry, IoBuf, Kind, LocalFuture, Op, Request,
};
use spillway_counting::{Bytes, Counting};
use spillway_layers::file::File;
use spillway_sim::world::World;

#[global_allocator]
static MEMORY: Counting<Bytes> = Counting(Bytes::new());

/// Withdrawn together: more than one after the other would be let begin.
const WITHDRAWN: u64 = 3000;

/// Most extents in an answer of [`Slow`], and asked for.
const EXTENTS: usize = 2048;

/// A system that answers nothing before it is told to.
#[derive(Default)]
struct Slow {
    answers: Arc<(AtomicI64, WaitList)>,
}

impl Slow {
    /// Ready with `value` after [`Slow::answer_all`]; as large as what a call of the system takes.
    fn later<T: 'static>(&self, value: T) -> LocalFuture<T> {
        let answers = self.answers.clone();
        let state = [1u8; 768];
        Box::pin(async move {
            answers.1.until(|| (answers.0.load(Ordering::Relaxed) != 0).then_some(())).await;
            assert!(state[0] == 1);
            value
        })
    }

    fn answer_all(&self) {
        self.answers.0.store(1, Ordering::Relaxed);
        self.answers.1.wake_all();
    }
}

impl Storage for Slow {
    fn geometry(&self) -> Geometry {
        Geometry::in_memory(1 << 30)
    }

    fn read(&self, _at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        self.later((Ok(buf.len() - done), buf))
    }

    fn write(&self, _at: u64, buf: IoBuf, done: usize, _durable: bool) -> LocalFuture<Moved> {
        self.later((Ok(buf.len() - done), buf))
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        self.later(Ok(()))
    }

    fn zero(&self, _range: ByteRange, _mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        self.later(Ok(()))
    }

    /// The list exists while it is waited for.
    fn extents(&self, _range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let list = (0..count_max).map(|_| Extent::stored(4096)).collect();
        Answer::Pending(self.later(Ok(list)))
    }
}

fn request(index: u64) -> Request {
    let at = index % 64 * 4096;
    let range = ByteRange::new(at, 4096);
    match index % 5 {
        0 => Request::bare(Op::Discard, range),
        1 => Request::bare(Op::WriteZeroes, range).with_fua(),
        2 => Request::read(at, IoBuf::new(4096)),
        3 => Request::write(at, IoBuf::zeroed(4096)).with_fua(),
        _ => Request::flush(),
    }
}

fn live() -> i64 {
    MEMORY.0.live() as i64
}

fn charged() -> i64 {
    Buffers::here().bytes_in_use() as i64
}

/// Has requests begin together, and withdraws them.
fn withdraw<T>(count: u64, mut ask: impl FnMut(u64) -> Answer<T>) {
    let mut begun: Vec<_> = (0..count)
        .map(|index| {
            let Answer::Pending(mut future) = ask(index) else { panic!("the system takes its time") };
            let _ = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            future
        })
        .collect();
    begun.clear();
}

#[test]
fn what_withdrawn_requests_hold_is_charged_until_they_end() {
    let world = World::new(1);
    let storage = Arc::new(Slow::default());
    let file = File::new(storage.clone(), world.clone());
    let before = (live(), charged());
    withdraw(WITHDRAWN / 10, |_| file.extents(ByteRange::new(0, 1 << 20), EXTENTS));
    let held = live() - before.0;
    assert!(held > 1 << 20 && held <= charged() - before.1, "{held} bytes are held by lists of extents");
    withdraw(WITHDRAWN, |index| file.submit(request(index)));
    let held = live() - before.0;
    assert!(held <= charged() - before.1, "{held} bytes are held, {} are charged", charged() - before.1);
    storage.answer_all();
    world.run(file.submit(request(2)));
    // A thread keeps some buffers for the next.
    world.run_until(|| charged() - before.1 <= 3 << 20);
}
