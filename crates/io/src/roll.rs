//! Who is connected, and who has only begun to be.
//!
//! A connection *shakes hands* until its session knows what the peer wants. Such connections are limited in number and age,
//! so that peers that never get on keep nobody out: where there are too many, the oldest gives way to the newcomer, once it
//! has had its [`GRACE`]; a crowd of honest clients that arrive together is only made to wait for each other.
//!
//! States of a connection: shaking hands, established, leaving (closed to make room, and not gone yet).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::control::{Control, Order};

/// What a handshake gets in any case before it has to give way: many times what one takes on a busy machine.
pub(crate) const GRACE: Duration = Duration::from_millis(50);

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) connections_max: usize,
    pub(crate) handshakes_max: usize,
}

/// Whether one more can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Now,
    /// Some are about to leave, or will have to.
    Later,
    /// All places are taken for good.
    No,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Handshake,
    Established,
    Leaving,
}

struct Entry {
    control: Arc<Control>,
    stage: Stage,
}

/// The connections of one listener.
#[derive(Default)]
pub(crate) struct Roll {
    all: HashMap<u64, Entry>,
    /// When each handshake began. Numbers grow, so the oldest comes first.
    handshakes: BTreeMap<u64, Duration>,
    leaving: usize,
}

impl Roll {
    /// Connections, in whatever stage.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn controls(&self) -> Vec<Arc<Control>> {
        self.all.values().map(|entry| entry.control.clone()).collect()
    }

    /// A connection arrives. Numbers are given in the order of arrival.
    pub(crate) fn enter(&mut self, number: u64, control: Arc<Control>, now: Duration) {
        self.all.insert(number, Entry { control, stage: Stage::Handshake });
        self.handshakes.insert(number, now);
    }

    /// Its handshake is complete.
    pub(crate) fn establish(&mut self, number: u64) {
        if self.handshakes.remove(&number).is_some() {
            self.all.get_mut(&number).expect("it shakes hands").stage = Stage::Established;
        }
    }

    /// It is gone.
    pub(crate) fn leave(&mut self, number: u64) {
        self.handshakes.remove(&number);
        let entry = self.all.remove(&number);
        self.leaving -= usize::from(entry.is_some_and(|entry| entry.stage == Stage::Leaving));
    }

    /// Whether one more may enter now. Where that needs it, the oldest handshake is closed if it has had its grace.
    pub(crate) fn make_room(&mut self, capacity: Capacity, now: Duration) -> Room {
        let full = |roll: &Self| roll.all.len() >= capacity.connections_max;
        if !full(self) && self.handshakes.len() < capacity.handshakes_max {
            return Room::Now;
        }
        match self.handshakes.first_key_value() {
            // With enough of them on their way out nobody else has to go.
            _ if full(self) && self.leaving > 0 => Room::Later,
            Some((&oldest, &since)) if now.saturating_sub(since) >= GRACE => {
                self.close(oldest);
                if full(self) { Room::Later } else { Room::Now }
            }
            Some(_) => Room::Later,
            None => Room::No,
        }
    }

    /// Closes the handshakes that have lasted for `age`.
    pub(crate) fn close_older_than(&mut self, age: Duration, now: Duration) {
        while let Some((&oldest, &since)) = self.handshakes.first_key_value()
            && now.saturating_sub(since) >= age
        {
            self.close(oldest);
        }
    }

    fn close(&mut self, number: u64) {
        self.handshakes.remove(&number);
        let entry = self.all.get_mut(&number).expect("it shakes hands");
        entry.stage = Stage::Leaving;
        self.leaving += 1;
        entry.control.order(Order::Abort);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity = Capacity { connections_max: 8, handshakes_max: 2 };

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn arrive(roll: &mut Roll, number: u64, now: Duration) -> Arc<Control> {
        let control = Arc::new(Control::new(Order::Serve));
        roll.enter(number, control.clone(), now);
        control
    }

    #[test]
    fn the_oldest_handshake_gives_way_after_its_grace() {
        let mut roll = Roll::default();
        let [first, second] = [1, 2].map(|number| arrive(&mut roll, number, at(number)));
        assert_eq!(roll.make_room(CAPACITY, at(3)), Room::Later, "both have just come");
        assert_eq!(roll.make_room(CAPACITY, at(51)), Room::Now);
        assert_eq!((first.ordered(), second.ordered()), (Order::Abort, Order::Serve));
        arrive(&mut roll, 3, at(51));
        assert_eq!(roll.make_room(CAPACITY, at(51)), Room::Later);
        roll.establish(2);
        assert_eq!(roll.make_room(CAPACITY, at(51)), Room::Now, "a finished one counts no more");
        assert_eq!(second.ordered(), Order::Serve);
    }

    #[test]
    fn established_connections_are_never_closed_for_others() {
        let mut roll = Roll::default();
        let controls: Vec<_> = (0..8).map(|number| arrive(&mut roll, number, at(0))).collect();
        (0..7).for_each(|number| roll.establish(number));
        assert_eq!(roll.make_room(CAPACITY, at(1000)), Room::Later, "the eighth has to leave first");
        assert_eq!(controls[7].ordered(), Order::Abort);
        roll.leave(7);
        assert_eq!(roll.make_room(CAPACITY, at(1000)), Room::Now);
        arrive(&mut roll, 8, at(1000));
        roll.establish(8);
        assert_eq!(roll.make_room(CAPACITY, at(2000)), Room::No);
        assert!(controls[..7].iter().all(|control| control.ordered() == Order::Serve));
    }

    #[test]
    fn a_full_house_waits_for_who_leaves_instead_of_closing_more() {
        let mut roll = Roll::default();
        let capacity = Capacity { connections_max: 3, handshakes_max: 3 };
        let controls: Vec<_> = (0..3).map(|number| arrive(&mut roll, number, at(0))).collect();
        (0..5).for_each(|_| assert_eq!(roll.make_room(capacity, at(100)), Room::Later));
        assert_eq!(controls.iter().filter(|control| control.ordered() == Order::Abort).count(), 1);
    }

    #[test]
    fn old_handshakes_end_and_their_places_come_back() {
        let mut roll = Roll::default();
        let [first, second, third] = [1, 2, 3].map(|number| arrive(&mut roll, number, at(number * 1000)));
        roll.establish(1);
        roll.close_older_than(at(10_000), at(12_000));
        assert_eq!(
            (first.ordered(), second.ordered(), third.ordered()),
            (Order::Serve, Order::Abort, Order::Serve)
        );
        (1..4).for_each(|number| roll.leave(number));
        assert_eq!((roll.len(), roll.leaving, roll.handshakes.len()), (0, 0, 0));
    }
}
