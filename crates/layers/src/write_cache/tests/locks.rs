//! Locks that a request of a small range takes in the layer: they are what its threads meet at.

use spillway_core::Works;
use spillway_core::sync::locks_taken;

use super::*;
use crate::small::null::{self, Null};

/// A cache over devices that answer at once and take no lock.
fn at_once() -> (House, Arc<WriteCache>) {
    let house = House::new(1 << 20, 1 << 20);
    let null = |size: u64| Null::new(&null::Config { size }).unwrap();
    let (env, budget) = (house.world.clone(), house.budget.clone());
    let opening = async move {
        WriteCache::open(&config(), null(64 << 20), null(64 << 20), env, budget, Works::default()).await
    };
    let (cache, _) = house.world.run(Answer::pending(opening)).unwrap();
    // The timer of commits runs from the first write on.
    house.write(&cache, 0, 1, 1);
    (house, cache)
}

/// Locks that the request takes, which is answered when it is polled once.
fn locks(cache: &Arc<WriteCache>, request: Request) -> u64 {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let before = locks_taken();
    let mut answer = std::pin::pin!(cache.submit(request));
    let std::task::Poll::Ready(reply) = answer.as_mut().poll(&mut context) else { panic!("it waits") };
    let taken = locks_taken() - before;
    assert_eq!(reply.result, Ok(()));
    taken
}

#[test]
fn a_cached_write_takes_two_locks_and_a_read_hit_one() {
    let (house, cache) = at_once();
    let write = |block: u64| Request::write(block * BLOCK as u64, IoBuf::new(BLOCK));
    let read = |block: u64| Request::read(block * BLOCK as u64, IoBuf::new(BLOCK));
    assert_eq!(locks(&cache, write(1)), 2, "of a block that is new");
    assert_eq!(locks(&cache, write(1)), 2, "over an uncommitted version");
    assert_eq!(locks(&cache, read(1)), 1, "of an uncommitted version");
    house.flush(&cache);
    assert_eq!(locks(&cache, write(1)), 2, "over a committed version");
    house.flush(&cache);
    assert_eq!(locks(&cache, read(1)), 1, "of a committed version");
    let long = 128 * BLOCK as u64;
    assert_eq!(locks(&cache, Request::write(2 * long, IoBuf::new(long as usize))), 2, "within a region");
    assert_eq!(locks(&cache, Request::read(2 * long, IoBuf::new(long as usize))), 1, "within a region");
}
