//! Writes that wait for room in a full cache.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::write_cache::index::block::OriginBlock;
use crate::write_cache::write::WriteTarget;
use spillway_policy::free_runs::Run;

/// A write that waits for blocks of the cache.
struct Waiting<'a>(Pin<Box<dyn Future<Output = Result<WriteTarget, Kind>> + 'a>>);

impl<'a> Waiting<'a> {
    fn new(cache: &'a WriteCache, origin: u32, len: u32) -> Self {
        Self(Box::pin(cache.core.room_for(OriginBlock(origin), len)))
    }

    /// Blocks of the cache that it gets now; 0 where it goes on to wait.
    fn look(&mut self) -> u32 {
        match self.0.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => 0,
            Poll::Ready(Ok(WriteTarget::Cache(reservation))) => {
                let len = reservation.len;
                // It keeps them.
                std::mem::forget(reservation);
                len
            }
            Poll::Ready(_) => panic!("it fails, or bypasses the cache"),
        }
    }
}

#[test]
fn who_waits_for_room_is_not_overtaken() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    house.write(&cache, 0, 1, 64);
    let space = &cache.core.space;
    let mut all = space.reserve(u32::MAX);
    let mut free = |count: u32| {
        let run = all.last_mut().unwrap();
        run.len -= count;
        space.give_back(vec![Run { start: run.start + run.len, len: count }], &[], Duration::ZERO);
        cache.core.changes.wake_all();
    };
    let [mut long, mut withdrawn, mut small] =
        [(0, 64), (9, 1), (3, 1)].map(|(origin, len)| Waiting::new(&cache, origin, len));
    assert_eq!([long.look(), withdrawn.look(), small.look()], [0; 3], "nothing is free");
    free(8);
    let mut newcomer = Waiting::new(&cache, 5, 1);
    assert_eq!([newcomer.look(), small.look()], [0; 2], "they came later");
    assert_eq!(long.look(), 8);
    drop(withdrawn);
    free(1);
    assert_eq!([newcomer.look(), small.look(), newcomer.look()], [0, 1, 0]);
    free(1);
    assert_eq!(newcomer.look(), 1);
    assert!(cache.core.rooms.iter().all(|room| !room.is_waited_for()));
}
