//! Tests of compression streams.

use super::*;
use crate::zram::page::PAGE;
use spillway_core::block_on;
use spillway_core::contract::Wakes;
use spillway_sim::world::World;
use std::sync::atomic::AtomicUsize as Count;

use crate::zram::tests::Idle;
use std::future::Future;

fn streams(limit: usize) -> Streams {
    Streams::new(limit, Choice::default(), Budget::new(1 << 30)).unwrap()
}

#[test]
fn where_memory_is_short_there_is_always_the_first_stream() {
    let budget = Budget::new(Choice::default().encoder_bytes() * 5 / 2);
    let streams = Streams::new(4, Choice::default(), budget.clone()).unwrap();
    let first = streams.try_take().unwrap();
    let second = streams.try_take().unwrap();
    assert!(streams.try_take().is_none(), "a third is not charged for, and not made");
    assert!(budget.used() <= budget.limit());
    drop((first, second));
    streams.set_limit(1);
    assert_eq!(budget.used(), Choice::default().encoder_bytes());
    budget.set_limit(budget.used());
    drop(streams.try_take().unwrap());
    assert_eq!(Streams::new(1, Choice::default(), budget).err(), Some(Kind::NoSpace));
}

#[test]
fn no_more_writers_than_streams_at_any_time() {
    let (streams, env) = (streams(2), Idle::new());
    let (now, most) = (Count::new(0), Count::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let mut stream = block_on(streams.take(&env));
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    assert!(stream.compress(&[7; PAGE], PAGE).is_some());
                    now.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 2);
}

#[test]
fn the_number_changes_while_writers_work_and_surplus_streams_go() {
    let (streams, env) = (streams(4), Idle::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    block_on(streams.take(&env)).compress(&[7; PAGE], PAGE);
                }
            });
        }
        for limit in [1, 8, 2, 1, 3].repeat(50) {
            streams.set_limit(limit);
        }
        streams.set_limit(1);
    });
    assert!(streams.all[1..].iter().all(|stream| stream.encoder.lock().is_none()));
    assert_eq!(streams.waiting.load(Ordering::Relaxed), 0);
}

use std::task::Context;

/// Polls once, with a waker that counts its wakes.
fn poll<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>, wakes: &Arc<Wakes>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(&wakes.waker()))
}

/// Uses the stream for some units of work.
fn work_on(mut taken: StreamGuard<'_>, units: u32) {
    let pages = units.div_ceil(taken.units_a_page());
    (0..pages).for_each(|_| assert!(taken.compress(&[7; PAGE], PAGE).is_some()));
}

#[test]
fn a_stream_stays_with_a_warm_writer_for_its_time_and_is_then_kept_for_the_first_in_line() {
    let (streams, world) = (streams(1), World::new(1));
    let (first, second) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
    let held = streams.try_take().unwrap();
    let mut one = Box::pin(streams.take(&*world));
    let mut two = Box::pin(streams.take(&*world));
    assert!(poll(&mut one, &first).is_pending() && poll(&mut two, &second).is_pending());
    work_on(held, WARM_UNITS / 2);
    assert_eq!(first.count(), 0, "the writer comes back soon");
    work_on(streams.try_take().expect("it is warm"), WARM_UNITS / 2);
    assert_eq!((first.count(), second.count()), (1, 0));
    assert!(streams.try_take().is_none(), "it has had its time");
    assert!(poll(&mut two, &second).is_pending(), "nor is it the second's turn");
    let Poll::Ready(taken) = poll(&mut one, &first) else { panic!("it was kept for the first") };
    drop(taken);
    drop(one);
    let Poll::Ready(_) = poll(&mut two, &second) else { panic!("the second is first now") };
}

#[test]
fn a_waiter_looks_by_itself_when_it_is_not_woken() {
    let (streams, world) = (streams(1), World::new(1));
    let wakes = Arc::new(Wakes::default());
    let held = streams.try_take().unwrap();
    let mut waiting = Box::pin(streams.take(&*world));
    assert!(poll(&mut waiting, &wakes).is_pending());
    drop(held);
    assert_eq!(wakes.count(), 0);
    world.advance(PATIENCE);
    assert_eq!(wakes.count(), 1);
    assert!(poll(&mut waiting, &wakes).is_ready());
}

#[test]
fn a_stream_kept_for_a_task_that_leaves_or_never_comes_is_free_again() {
    let (streams, world) = (streams(1), World::new(1));
    let wakes = Arc::new(Wakes::default());
    for leaves in [true, false] {
        let held = streams.try_take().unwrap();
        let mut kept = Box::pin(streams.take(&*world));
        let mut other = Box::pin(streams.take(&*world));
        assert!(poll(&mut kept, &wakes).is_pending() && poll(&mut other, &wakes).is_pending());
        work_on(held, WARM_UNITS);
        assert!(streams.try_take().is_none(), "it is kept");
        if leaves {
            drop(kept);
            drop(streams.try_take().expect("it is free again"));
        } else {
            world.advance(PATIENCE);
            assert!(poll(&mut other, &wakes).is_ready(), "its patience is over");
        }
    }
    assert!(streams.try_take().is_some() && streams.waiting.load(Ordering::Relaxed) == 0);
}
