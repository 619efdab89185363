//! Room that tasks wait for.

use super::changes::Changes;
use super::semaphore::Semaphore;

/// Room that tasks wait for in the order of arrival, however much each of them needs.
///
/// Only the first one looks for it, at once and after each change. So nobody who needs little takes what comes free from one that
/// needs much. A task that has found room, or is dropped, lets the next one look. A newcomer that would look without waiting asks
/// [`Room::is_waited_for`] before.
pub struct Room(Semaphore);

impl Default for Room {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

impl Room {
    /// Room that each task waits for by itself: all of them look.
    pub const fn unordered() -> Self {
        Self(Semaphore::new(u64::MAX))
    }

    /// Whether any task waits. Two loads.
    pub fn is_waited_for(&self) -> bool {
        // Also while one leaves and the next has not looked yet.
        self.0.used() > 0 || self.0.waiting() > 0
    }

    /// Waits, after all that came before, for what `look` gives; it is asked again after each of `changes`.
    pub async fn until<T>(&self, changes: &Changes, look: impl FnMut() -> Option<T>) -> T {
        let _turn = self.0.hold().await;
        changes.until(look).await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_first_one_gets_room_before_those_that_need_less() {
        let (room, changes, units) = (Room::default(), Changes::default(), &Cell::new(0u32));
        let mut context = Context::from_waker(Waker::noop());
        let take = |count: u32| {
            room.until(&changes, move || units.get().checked_sub(count).map(|left| units.set(left)))
        };
        let (mut large, mut dropped, mut small) = (pin!(take(3)), Box::pin(take(2)), pin!(take(1)));
        assert!(large.as_mut().poll(&mut context).is_pending());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        assert!(small.as_mut().poll(&mut context).is_pending());
        units.set(2);
        changes.wake_all();
        assert!(small.as_mut().poll(&mut context).is_pending(), "it would fit, but is not the first");
        assert!(large.as_mut().poll(&mut context).is_pending() && room.is_waited_for());
        units.set(4);
        changes.wake_all();
        assert_eq!(large.as_mut().poll(&mut context), Poll::Ready(()));
        drop(dropped);
        assert_eq!(small.as_mut().poll(&mut context), Poll::Ready(()));
        assert_eq!((units.get(), room.is_waited_for()), (0, false));
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use std::sync::Arc;

    use shuttle::future::block_on;
    use shuttle::thread;

    use super::*;
    use crate::sync::models::{every_order, finds, leave_early};
    use crate::sync::{AtomicU64, Ordering};

    /// Two units, and who wants some.
    #[derive(Default)]
    struct Units {
        room: Room,
        changes: Changes,
        used: AtomicU64,
    }

    impl Units {
        async fn take(&self, units: u64) {
            let take = |used: u64| Some(used + units).filter(|sum| *sum <= 2);
            let look = || self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).ok();
            self.room.until(&self.changes, look).await;
            self.used.fetch_sub(units, Ordering::SeqCst);
            self.changes.wake_all();
        }
    }

    /// Four want units, one of whom may leave.
    #[test]
    fn everybody_who_stays_gets_room() {
        every_order(20_000, || {
            let shared = Arc::new(Units::default());
            let takers = [2, 1, 2].map(|units| {
                let shared = shared.clone();
                thread::spawn(move || block_on(shared.take(units)))
            });
            block_on(leave_early(shared.take(2)));
            takers.into_iter().for_each(|taker| taker.join().expect("a taker ends"));
            assert_eq!((shared.used.load(Ordering::SeqCst), shared.room.is_waited_for()), (0, false));
        });
    }

    #[test]
    fn the_checker_finds_a_look_that_misses_a_change() {
        finds("changes: read the number after the look", everybody_who_stays_gets_room);
    }

    #[test]
    fn the_checker_finds_a_place_that_is_kept_by_who_has_left() {
        finds("semaphore: keep what a waiter left", everybody_who_stays_gets_room);
    }
}
