//! Who is connected, and who has only begun to be.
//!
//! A connection *shakes hands* until its session knows what the peer wants. Such connections are limited in number and age,
//! so that peers that never get on keep nobody out: where there are too many, the oldest are asked to give way.
//!
//! Who is asked answers in a turn of its own, after it has looked for what has come: it gives way if its peer has been silent
//! for the *grace* since it was served last. So nobody loses its place because the server is slow. A peer that goes on
//! with its handshake stays, but only for a few graces: a byte now and then keeps no place.
//!
//! The grace is long where handshakes are few, for slow networks, and is halved with each peer that was asked and said nothing:
//! a flood of them holds up others only once. Where less than half of the places are taken it grows again.
//!
//! States of a connection: shaking hands, asked, established, leaving (closed to make room, and not gone yet).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use spillway_core::Phase;

use crate::net::control::Control;
use crate::net::peer::Account;
use crate::net::shares::Shares;

/// How long a peer may be silent in its handshake before it gives way to others: while there is no flood, and at the least.
const GRACE_MAX: Duration = Duration::from_secs(1);
pub(crate) const GRACE_MIN: Duration = Duration::from_millis(50);

/// After so many halvings the grace is at its least.
const HALVINGS_MAX: u32 = 5;

/// For so many graces a peer may keep its place because it was not silent: a byte in each is no handshake that goes on.
const SPARED_GRACES: u32 = 4;

/// Part of the handshakes that is asked at a time: one in so many.
const ASKED_SHARE: usize = 8;

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) connections_max: usize,
    pub(crate) handshakes_max: usize,
}

/// Whether one more can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vacancy {
    Now,
    /// Some are about to leave, or will have to.
    Later,
    /// All places are taken for good.
    No,
    /// Its host has its share, of so many.
    Crowded(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// With its place in line.
    Handshake(u64),
    Established,
    Leaving,
}

struct Entry {
    control: Arc<Control>,
    stage: Stage,
    peer: Account,
}

struct Handshake {
    number: u64,
    begun: Duration,
    /// Its peer was served last, as far as is known here.
    since: Duration,
    /// Graces that it was given because its peer was not silent.
    spared: Duration,
    asked: bool,
}

/// The connections of one listener.
#[derive(Default)]
pub(crate) struct ConnectionTable {
    all: HashMap<u64, Entry>,
    shares: Shares,
    /// By their places in line. Those that are asked come first.
    handshakes: BTreeMap<u64, Handshake>,
    next_place: u64,
    leaving: usize,
    /// How often the grace is halved now.
    halvings: u32,
}

impl ConnectionTable {
    /// Connections, in whatever stage.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn controls(&self) -> Vec<Arc<Control>> {
        self.all.values().map(|entry| entry.control.clone()).collect()
    }

    fn grace(&self) -> Duration {
        (GRACE_MAX / (1 << self.halvings)).max(GRACE_MIN)
    }

    /// A connection arrives, with a number that no other has had.
    pub(crate) fn enter(&mut self, number: u64, peer: Account, control: Arc<Control>, now: Duration) {
        let before = self.all.insert(number, Entry { control, stage: Stage::Established, peer });
        assert!(before.is_none(), "connection {number} enters while it is there");
        self.shares.enter(peer);
        self.stand_in_line(Handshake {
            number,
            begun: now,
            since: now,
            spared: Duration::ZERO,
            asked: false,
        });
    }

    fn stand_in_line(&mut self, handshake: Handshake) {
        let place = self.next_place;
        self.next_place += 1;
        self.all.get_mut(&handshake.number).expect("it has entered").stage = Stage::Handshake(place);
        self.handshakes.insert(place, handshake);
    }

    /// Takes a connection that shakes hands out of the line, to be in another stage.
    fn step_out(&mut self, number: u64, stage: Stage) -> Option<Handshake> {
        let entry = self.all.get_mut(&number)?;
        let Stage::Handshake(place) = entry.stage else { return None };
        entry.stage = stage;
        let handshake = self.handshakes.remove(&place).expect("who shakes hands stands in line");
        Some(handshake)
    }

    /// Its handshake is complete.
    pub(crate) fn establish(&mut self, number: u64) {
        self.step_out(number, Stage::Established);
    }

    /// It is gone.
    pub(crate) fn leave(&mut self, number: u64) {
        self.step_out(number, Stage::Established);
        if let Some(entry) = self.all.remove(&number) {
            self.shares.leave(entry.peer);
            let left = usize::from(entry.stage == Stage::Leaving);
            assert!(self.leaving >= left, "connection {number} was leaving, and none is counted");
            self.leaving -= left;
        }
    }

    /// Whether one more of `peer` may enter now. Where that needs it, the oldest handshakes are asked to give way.
    pub(crate) fn make_room(&mut self, capacity: Capacity, peer: Account, now: Duration) -> Vacancy {
        let (all, handshakes, leaving) = (self.all.len(), self.handshakes.len(), self.leaving);
        assert!(handshakes + leaving <= all, "{handshakes} shake hands and {leaving} leave, of {all}");
        // In a full house the share is what it has already, so that who has none waits for a place as anybody.
        let free = capacity.connections_max.saturating_sub(self.all.len()).max(1);
        if !self.shares.admits(peer, free) {
            return Vacancy::Crowded(self.shares.of(peer));
        }
        let full = self.all.len() >= capacity.connections_max;
        if !full && self.handshakes.len() < capacity.handshakes_max {
            if self.handshakes.len() < capacity.handshakes_max.div_ceil(2) {
                self.halvings = self.halvings.saturating_sub(1);
            }
            return Vacancy::Now;
        }
        // With enough of them on their way out nobody else has to go.
        if full && self.leaving > 0 {
            return Vacancy::Later;
        }
        if self.handshakes.is_empty() {
            return Vacancy::No;
        }
        self.ask(if full { 1 } else { capacity.handshakes_max.div_ceil(ASKED_SHARE) }, now);
        Vacancy::Later
    }

    /// Has the first in line asked, so many at a time, whose peers may have been silent for the grace.
    fn ask(&mut self, asked_max: usize, now: Duration) {
        let grace = self.grace();
        let first = self.handshakes.values_mut().take(asked_max);
        for handshake in first.filter(|handshake| !handshake.asked) {
            if now.saturating_sub(handshake.since) < grace {
                return;
            }
            handshake.asked = true;
            self.all[&handshake.number].control.ask();
        }
    }

    /// The answer of a connection that was asked, whose peer has been `silent` for so long. True if it has to go.
    pub(crate) fn gives_way(&mut self, number: u64, silent: Duration, now: Duration) -> bool {
        let grace = self.grace();
        let Some(handshake) = self.step_out(number, Stage::Leaving) else { return false };
        if silent < grace && handshake.spared < grace * SPARED_GRACES {
            let (spared, since) = (handshake.spared + grace, now.saturating_sub(silent));
            self.stand_in_line(Handshake { spared, since, asked: false, ..handshake });
            return false;
        }
        self.halvings = (self.halvings + 1).min(HALVINGS_MAX);
        self.leaving += 1;
        true
    }

    /// Closes the handshakes that have lasted for `age`.
    pub(crate) fn close_older_than(&mut self, age: Duration, now: Duration) {
        let old = self.handshakes.values().filter(|handshake| now.saturating_sub(handshake.begun) >= age);
        let old: Vec<u64> = old.map(|handshake| handshake.number).collect();
        for number in old {
            self.step_out(number, Stage::Leaving);
            self.leaving += 1;
            self.all[&number].control.shutdown.ask(Phase::Aborting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Account = Account::User(0);
    const CAPACITY: Capacity = Capacity { connections_max: 8, handshakes_max: 2 };

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn arrive(table: &mut ConnectionTable, number: u64, now: Duration) -> Arc<Control> {
        let control = Arc::new(Control::default());
        table.enter(number, OWNER, control.clone(), now);
        control
    }

    #[test]
    fn the_oldest_is_asked_after_the_grace_and_gives_way_if_its_peer_is_silent() {
        let mut table = ConnectionTable::default();
        let [first, second] = [1, 2].map(|number| arrive(&mut table, number, at(number)));
        assert_eq!(table.make_room(CAPACITY, OWNER, at(1000)), Vacancy::Later, "both have just come");
        assert!(!first.is_asked());
        assert_eq!(table.make_room(CAPACITY, OWNER, at(1001)), Vacancy::Later, "it has to answer first");
        assert!(first.is_asked() && !second.is_asked(), "one in eight, one at least");
        assert!(table.gives_way(1, at(1000), at(1001)));
        assert_eq!(table.make_room(CAPACITY, OWNER, at(1001)), Vacancy::Now);
        arrive(&mut table, 3, at(1001));
        assert_eq!(table.make_room(CAPACITY, OWNER, at(1001)), Vacancy::Later);
        assert!(second.is_asked(), "after a silent peer the grace is shorter");
        table.establish(2);
        assert!(!table.gives_way(2, at(2000), at(2000)), "it has finished in time");
        assert_eq!(table.make_room(CAPACITY, OWNER, at(2000)), Vacancy::Now);
    }

    #[test]
    fn who_goes_on_stays_but_not_for_ever() {
        let mut table = ConnectionTable::default();
        for number in [1, 2] {
            arrive(&mut table, number, at(0));
        }
        for turn in 1..=u64::from(SPARED_GRACES) {
            for number in [1, 2] {
                assert_eq!(table.make_room(CAPACITY, OWNER, at(turn * 2000)), Vacancy::Later);
                assert!(!table.gives_way(number, at(999), at(turn * 2000)));
            }
        }
        assert_eq!(table.make_room(CAPACITY, OWNER, at(100_000)), Vacancy::Later);
        assert!(table.gives_way(1, at(0), at(100_000)));
    }

    /// How long a flood of ten times the places lasts, whose peers have been silent for a part of the grace when they are asked.
    fn flood_of_who_is_silent_for(part_of_grace: f64) -> Duration {
        let mut table = ConnectionTable::default();
        let capacity = Capacity { connections_max: 1000, handshakes_max: 16 };
        let mut now = at(0);
        for number in 0..160 {
            while table.make_room(capacity, OWNER, now) == Vacancy::Later {
                let asked = table.handshakes.values().filter(|handshake| handshake.asked);
                let asked: Vec<_> = asked.map(|handshake| handshake.number).collect();
                for number in asked {
                    if table.gives_way(number, table.grace().mul_f64(part_of_grace), now) {
                        table.leave(number);
                    }
                }
                now += at(1);
            }
            arrive(&mut table, number, now);
        }
        now
    }

    #[test]
    fn a_flood_of_peers_that_say_a_byte_now_and_then_passes_too() {
        let lasted = flood_of_who_is_silent_for(0.5);
        assert!(lasted <= (GRACE_MAX + 10 * GRACE_MIN) * (SPARED_GRACES + 1), "it took {lasted:?}");
    }

    #[test]
    fn a_single_place_for_handshakes_gets_its_long_grace_back() {
        let mut table = ConnectionTable::default();
        let capacity = Capacity { connections_max: 4, handshakes_max: 1 };
        for number in 0..5 {
            arrive(&mut table, number, at(0));
            assert!(table.gives_way(number, GRACE_MAX, GRACE_MAX));
            table.leave(number);
        }
        assert_eq!(table.grace(), GRACE_MIN);
        (0..5).for_each(|_| assert_eq!(table.make_room(capacity, OWNER, GRACE_MAX), Vacancy::Now));
        assert_eq!(table.grace(), GRACE_MAX);
    }

    #[test]
    fn a_flood_waits_for_the_long_grace_once_and_calm_brings_it_back() {
        let mut table = ConnectionTable::default();
        let capacity = Capacity { connections_max: 1000, handshakes_max: 16 };
        let (mut number, mut now) = (0, at(0));
        for _ in 0..160 {
            while table.make_room(capacity, OWNER, now) == Vacancy::Later {
                let asked = table.handshakes.values().filter(|handshake| handshake.asked);
                let asked: Vec<_> = asked.map(|handshake| (handshake.number, handshake.since)).collect();
                asked.iter().for_each(|&(number, since)| {
                    assert!(table.gives_way(number, now - since, now));
                    table.leave(number);
                });
                now += at(if asked.is_empty() { 1 } else { 0 });
            }
            number += 1;
            arrive(&mut table, number, now);
        }
        assert!(now <= GRACE_MAX + 10 * GRACE_MIN, "a flood of ten times the places took {now:?}");
        assert_eq!(table.grace(), GRACE_MIN);
        (0..=number).for_each(|number| table.leave(number));
        (0..5).for_each(|_| assert_eq!(table.make_room(capacity, OWNER, now), Vacancy::Now));
        assert_eq!(table.grace(), GRACE_MAX);
        assert_eq!(table.leaving, 0);
    }

    #[test]
    fn established_connections_are_never_closed_for_others() {
        let mut table = ConnectionTable::default();
        let controls: Vec<_> = (0..8).map(|number| arrive(&mut table, number, at(0))).collect();
        (0..7).for_each(|number| table.establish(number));
        assert_eq!(
            table.make_room(CAPACITY, OWNER, at(1000)),
            Vacancy::Later,
            "the eighth has to leave first"
        );
        assert!(controls[7].is_asked() && table.gives_way(7, at(1000), at(1000)));
        assert_eq!(table.make_room(CAPACITY, OWNER, at(1000)), Vacancy::Later, "it is not gone");
        table.leave(7);
        assert_eq!(table.make_room(CAPACITY, OWNER, at(1000)), Vacancy::Now);
        arrive(&mut table, 8, at(1000));
        table.establish(8);
        assert_eq!(table.make_room(CAPACITY, OWNER, at(2000)), Vacancy::No);
        assert!(
            controls[..7]
                .iter()
                .all(|control| control.shutdown.phase() == Phase::Serving && !control.is_asked())
        );
    }

    #[test]
    fn a_full_house_waits_for_who_leaves_instead_of_closing_more() {
        let mut table = ConnectionTable::default();
        let capacity = Capacity { connections_max: 3, handshakes_max: 3 };
        let controls: Vec<_> = (0..3).map(|number| arrive(&mut table, number, at(0))).collect();
        (0..5).for_each(|_| assert_eq!(table.make_room(capacity, OWNER, at(1000)), Vacancy::Later));
        assert!(table.gives_way(0, at(1000), at(1000)));
        (0..5).for_each(|_| assert_eq!(table.make_room(capacity, OWNER, at(1000)), Vacancy::Later));
        assert_eq!(controls.iter().filter(|control| control.is_asked()).count(), 1);
    }

    #[test]
    fn old_handshakes_end_and_their_places_come_back() {
        let mut table = ConnectionTable::default();
        let [first, second, third] = [1, 2, 3].map(|number| arrive(&mut table, number, at(number * 1000)));
        table.establish(1);
        table.close_older_than(at(10_000), at(12_000));
        assert_eq!(
            (first.shutdown.phase(), second.shutdown.phase(), third.shutdown.phase()),
            (Phase::Serving, Phase::Aborting, Phase::Serving)
        );
        (1..4).for_each(|number| table.leave(number));
        assert_eq!((table.len(), table.leaving, table.handshakes.len()), (0, 0, 0));
    }
}
