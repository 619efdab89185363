//! Which of two hosts has the device in a phase of a story, and how it loses it.

use std::fmt;

use spillway_core::random::Random;

/// What a phase is about where hosts share an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The host, 0 or 1.
    pub host: usize,
    /// It asks for the lock before it takes it over.
    pub asks: bool,
    /// What it does with a cache that is refused because another host has written.
    pub refused: Refused,
    /// How it ends.
    pub ends: Ends,
    /// Microseconds after its clients have begun, where it does not wait for them.
    pub after: u64,
    /// Microseconds after which its link is cut, and how many later it is there again.
    pub cut_off: Option<(u64, u64)>,
    /// Microseconds that its requests to the image wait for, where they do not wait for ever.
    pub patience: Option<u64>,
    /// Microseconds after which the image's pool is full, and how many later it has room again.
    pub full: Option<(u64, u64)>,
}

/// How a host loses the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// In order: its cache is drained, it flushes, gives the lock back and stops.
    #[default]
    HandOver,
    /// The same without a drain.
    Stop,
    /// Its power goes.
    Cut,
    /// Not by itself: it goes on while the next phase begins.
    TakenOver,
}

/// What is done with a cache that is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refused {
    /// What it holds counts.
    #[default]
    Recover,
    /// What it holds is destroyed.
    Destroy,
    /// Nothing: the host does not come back in this phase.
    GiveUp,
}

impl Turn {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let longest = 1 << (4 + random.below(17));
        let some_time = |random: &mut Random| random.below(longest);
        Self {
            host: random.below(2) as usize,
            asks: random.below(4) == 0,
            refused: [Refused::Recover, Refused::Destroy, Refused::GiveUp][random.below(3) as usize],
            ends: [Ends::TakenOver, Ends::TakenOver, Ends::TakenOver, Ends::Cut, Ends::HandOver, Ends::Stop]
                [random.below(6) as usize],
            after: some_time(random),
            cut_off: (random.below(3) == 0).then(|| (some_time(random), some_time(random))),
            ..Self::default()
        }
    }

    /// In a quarter of the phases each, requests do not wait for ever, and the pool is full for a while.
    pub(crate) fn put_wants(&mut self, random: &mut Random) {
        let longest = 1 << (4 + random.below(17));
        self.patience = (random.below(4) == 0).then(|| 1000 << random.below(8));
        self.full = (random.below(4) == 0).then(|| (random.below(longest), random.below(longest)));
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, asks, refused, ends, after, cut_off, patience, full } = self;
        write!(
            f,
            "host {host}{}, ends by {ends:?} after {after} us",
            if *asks { ", asks first" } else { "" }
        )?;
        write!(f, ", if refused {refused:?}")?;
        cut_off.map_or(Ok(()), |(at, len)| write!(f, ", its link is cut after {at} us for {len} us"))?;
        patience.map_or(Ok(()), |patience| write!(f, ", it waits for {patience} us"))?;
        full.map_or(Ok(()), |(at, len)| write!(f, ", the pool is full after {at} us for {len} us"))
    }
}
