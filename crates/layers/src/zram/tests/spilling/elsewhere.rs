//! Batches that another thread writes, while it has no time for them, and once it has ended.

use std::task::{Context, Poll, Waker};

use spillway_core::sync::{AtomicBool, Mutex, Ordering};
use spillway_core::{BlockSize, Env, LocalFuture, OpenStorage, Place, Suspend, Task};
use spillway_sim::disk::{Disk, Plan};

use super::super::on_disk::open_in;
use super::*;

/// A world whose compute threads begin nothing new while they are busy.
struct Busy {
    world: Arc<World>,
    busy: AtomicBool,
    waiting: Mutex<Vec<Task>>,
}

impl Busy {
    fn begin(&self) {
        self.busy.store(true, Ordering::Relaxed);
    }

    /// They have time again.
    fn end(&self) {
        self.busy.store(false, Ordering::Relaxed);
        self.waiting.lock().drain(..).for_each(|task| self.world.spawn(Place::Compute, task));
    }

    /// They end, with what waits for them.
    fn abandon(&self) {
        self.busy.store(false, Ordering::Relaxed);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop(waiting);
    }
}

impl Env for Busy {
    fn now(&self) -> Duration {
        self.world.now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        self.world.sleep(duration)
    }

    fn spawn(&self, place: Place, task: Task) {
        if place == Place::Compute && self.busy.load(Ordering::Relaxed) {
            self.waiting.lock().push(task);
        } else {
            self.world.spawn(place, task);
        }
    }

    fn spawn_here(&self, task: LocalFuture<()>) {
        self.world.spawn_here(task);
    }

    fn idle_workers(&self) -> usize {
        self.world.idle_workers()
    }

    fn random(&self) -> u64 {
        self.world.random()
    }
}

/// A device in such a world, of which 64 pages are to be written back, in more batches than are gathered ahead.
fn device() -> (Arc<Busy>, Spilling) {
    let world = World::new(1);
    let env =
        Arc::new(Busy { world: world.clone(), busy: AtomicBool::new(false), waiting: Mutex::default() });
    let disk = Arc::new(Disk::new(world.clone(), medium(100), BlockSize::PAGE, Plan::default(), 1));
    let storage = disk.clone();
    let opened = move || OpenStorage { storage: storage.clone(), notes: Vec::new() };
    let open_file = Arc::new(move |_: &BackingDevice| Answer::Done(Ok(opened())));
    let device = open_in(env.clone(), world, disk, "ram0", config(), open_file).expect("it is blank");
    device.fill(0..64, 1);
    device.set("writeback_limit_enable", "1");
    device.set("writeback_limit", "100");
    (env, device)
}

/// Begins to write all pages back, and lets everything go on that can.
fn begin_to_write_back(device: &Spilling) -> Answer<Result<(), Error>> {
    let mut command = device.table.store("writeback", "page_indexes=0-63");
    let pending = go_on(device, &mut command);
    assert!(pending.is_none(), "the batches are not written: {pending:?}");
    command
}

/// Lets everything go on for a while; what `answer` came to, if it did.
fn go_on<T: Unpin + 'static>(device: &Spilling, answer: &mut Answer<T>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..200 {
        if let Poll::Ready(value) = std::pin::Pin::new(&mut *answer).poll(&mut context) {
            return Some(value);
        }
        device.world.turn();
        device.world.advance(Duration::from_millis(1));
    }
    None
}

/// Batches that are gathered or written.
fn batches(device: &Spilling) -> u32 {
    device.zram.core.pressure.batches.load(Ordering::Relaxed)
}

#[test]
fn batches_are_gathered_ahead_while_another_thread_writes_and_publishes_them() {
    let (env, device) = device();
    env.begin();
    let calls = device.disk.calls();
    let command = begin_to_write_back(&device);
    // All buffers are taken.
    assert_eq!((batches(&device), device.disk.calls()), (4, calls), "gathered, and not written");
    assert!(device.number("writeback_limit") < 100 && device.bd_stat() == [0; 3]);
    env.end();
    device.run(command).unwrap();
    device.settle();
    assert_eq!((device.bd_stat(), device.number("writeback_limit")), ([64, 0, 64], 36));
    device.check(0..64, 1);
}

#[test]
fn a_device_ends_and_is_reset_after_the_batches_of_another_thread() {
    for reset in [false, true] {
        let (env, device) = device();
        env.begin();
        let command = begin_to_write_back(&device);
        let mut end = match reset {
            true => device.table.store("reset", "1"),
            false => Answer::pending(device.zram.suspend()),
        };
        assert!(go_on(&device, &mut end).is_none(), "batches are on their way");
        env.end();
        device.run(end).unwrap();
        assert_eq!(batches(&device), 0);
        let ended = device.run(command).map_err(|error| error.kind);
        assert_eq!(ended, Err(Kind::ShuttingDown), "reset: {reset}");
        device.settle();
    }
}

/// Nothing of a batch is lost with its thread: neither pages, nor memory, nor room in the file, nor the limit.
#[test]
fn what_a_thread_has_not_written_when_it_ends_stays_in_memory() {
    let (env, device) = device();
    let (held, segments) = (device.number("compr_data_size"), store(&device).free_segments());
    env.begin();
    let command = begin_to_write_back(&device);
    env.abandon();
    assert_eq!(device.run(command).map_err(|error| error.kind), Err(Kind::ShuttingDown));
    device.settle();
    assert_eq!((device.bd_stat(), batches(&device)), ([0; 3], 0));
    assert_eq!((device.number("compr_data_size"), device.number("writeback_limit")), (held, 100));
    assert_eq!(store(&device).free_segments(), segments);
    device.check(0..64, 1);
    device.set("writeback", "page_indexes=0-63");
    device.settle();
    assert_eq!((device.bd_stat(), device.number("writeback_limit")), ([64, 0, 64], 36));
    device.check(0..64, 1);
}

fn store(device: &Spilling) -> Arc<crate::spill::Store> {
    device.zram.core.backing.get().expect("it spills").store.clone()
}
