//! Two engines in one process: each has its own limit of buffers, count, waiters and idle memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::pin::pin;
use std::task::{Context, Waker};

use spillway_core::IoBuf;
use spillway_core::buffer::{self, Buffers, Reserve};

const LEN: usize = 4096;
const LIMIT: u64 = 1 << 20;

/// Runs `work` on a thread of that engine.
fn on_a_thread_of<T: Send>(engine: &Buffers, work: impl FnOnce() -> T + Send) -> T {
    let entered = || {
        engine.enter();
        work()
    };
    std::thread::scope(|scope| {
        scope.spawn(entered).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// All that the engine of this thread still has, as buffers of `len` bytes.
fn all_of(len: usize) -> Vec<IoBuf> {
    std::iter::from_fn(|| IoBuf::try_new(len)).collect()
}

fn bytes(bufs: &[IoBuf]) -> u64 {
    bufs.iter().map(|buf| buf.capacity() as u64).sum()
}

#[test]
fn an_engine_that_has_used_up_its_buffers_leaves_another_its_own() {
    let [first, second] = [LIMIT, 2 * LIMIT].map(Buffers::new);
    let all = on_a_thread_of(&first, || all_of(LEN));
    assert_eq!((bytes(&all), first.bytes_in_use()), (LIMIT, LIMIT));
    on_a_thread_of(&first, || {
        assert!(buffer::is_short() && IoBuf::try_new(1).is_none() && Reserve::try_new(1).is_none());
    });
    on_a_thread_of(&second, || {
        let reserve = Reserve::try_new(LIMIT).expect("half of the limit");
        assert!(!buffer::is_short());
        let rest = all_of(LEN);
        assert_eq!((bytes(&rest), reserve.bytes(), buffer::is_short()), (LIMIT, LIMIT, true));
    });
    assert_eq!((first.bytes_in_use(), second.bytes_in_use()), (LIMIT, 0));
    drop(all);
    assert_eq!(first.bytes_in_use(), 0);
}

#[test]
fn a_buffer_goes_back_to_the_engine_that_it_was_taken_of() {
    let [first, second] = [LIMIT, LIMIT].map(Buffers::new);
    // Of both kinds of memory that threads keep.
    for len in [LEN, 64 << 10] {
        let (buf, reserve) = on_a_thread_of(&first, || (IoBuf::new(len), Reserve::force(100)));
        assert_eq!(first.bytes_in_use(), len as u64 + 100);
        on_a_thread_of(&second, || {
            drop((buf, reserve));
            assert_eq!(
                (first.bytes_in_use(), second.bytes_in_use()),
                (0, 0),
                "{len} bytes kept by a stranger"
            );
            let own = IoBuf::new(len);
            assert_eq!((first.bytes_in_use(), second.bytes_in_use()), (0, own.capacity() as u64));
        });
    }
}

#[test]
fn a_thread_of_the_same_engine_keeps_what_another_took() {
    let engine = Buffers::new(LIMIT);
    let buf = on_a_thread_of(&engine, || IoBuf::new(LEN));
    on_a_thread_of(&engine, || {
        let address = buf.as_ptr() as usize;
        drop(buf);
        assert_eq!((engine.bytes_in_use(), engine.bytes_held()), (LEN as u64, 0));
        assert_eq!(IoBuf::new(LEN).as_ptr() as usize, address);
    });
}

#[test]
fn a_task_waits_for_memory_of_its_own_engine_only() {
    let [first, second] = [LIMIT, LIMIT].map(Buffers::new);
    on_a_thread_of(&first, || {
        let mut all = all_of(LEN);
        let mut waiting = pin!(buffer::room(LEN));
        let mut poll = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!poll() && first.waiting() == 1);
        on_a_thread_of(&second, || {
            let others = [IoBuf::new(LEN), IoBuf::new(64 << 10)];
            drop(others);
            assert_eq!((second.bytes_held(), second.waiting()), (0, 0));
            assert!(second.bytes_in_use() > 0, "nobody waits here: what is idle is kept");
        });
        assert!(!poll(), "what another engine has does not help");
        all.pop();
        assert!(poll() && first.waiting() == 0);
    });
    assert_eq!(first.bytes_in_use(), 0);
}

#[test]
fn a_thread_that_changes_engines_leaves_nothing_behind_but_what_is_in_use() {
    let [first, second] = [LIMIT, LIMIT].map(Buffers::new);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            first.enter();
            drop([IoBuf::new(LEN), IoBuf::new(64 << 10)]);
            let held = IoBuf::new(LEN);
            second.enter();
            assert_eq!((first.bytes_in_use(), first.bytes_held()), (LEN as u64, LEN as u64));
            drop(held);
            assert_eq!((first.bytes_in_use(), second.bytes_in_use()), (0, 0));
        });
    });
}

#[test]
fn a_thread_that_entered_no_engine_counts_for_itself() {
    let count = |len: usize| {
        let _buf = IoBuf::new(len);
        Buffers::here().bytes_held()
    };
    let threads = [LEN, 2 * LEN].map(|len| std::thread::spawn(move || count(len)));
    assert_eq!(threads.map(|thread| thread.join().unwrap()), [LEN as u64, 2 * LEN as u64]);
}
