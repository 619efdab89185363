//! How clients reach the device of a story: what they speak, and what limits them.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::buffer::{Buffers, bytes_for};
use spillway_core::random::Random;
use spillway_core::{Aligned, BlockDevice, Budget, ByteRange, Error, SECTOR};
use spillway_export::nbd::CONNECTION_BYTES;
use spillway_export::vhost_user::QUEUE_BYTES;
use spillway_sim::pace::Pace;
use spillway_sim::stream::StreamShape;

use super::fuse::Habits;
use super::nbd::Style;
use super::parts::{PAGE, parts};
use super::vhost;

/// Connections at a time.
const LINKS_MAX: u64 = 3;

/// Readers of a mount, and queues of a machine.
const READERS_MAX: u64 = 3;
const QUEUES_MAX: u64 = 3;

/// How clients reach the device in a story.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub(super) protocol: Protocol,
    pub(super) links: u64,
    pub(super) held_bytes_max: usize,
    pub(super) shape: StreamShape,
    /// Buffers have hardly room for two requests.
    short: bool,
    pub(super) seed: u64,
}

/// What they speak.
#[derive(Clone, Copy, Debug)]
pub(super) enum Protocol {
    Nbd { style: Style, requests_max: usize },
    Fuse { readers: u64, habits: Habits },
    Vhost { habits: vhost::Habits },
}

impl Way {
    /// A way of its own for each `random`.
    pub fn draw(random: &mut Random) -> Self {
        let mut one_of = |values: &[u64]| values[random.below(values.len() as u64) as usize];
        let style = [Style::Simple, Style::Structured, Style::Extended][one_of(&[0, 1, 2]) as usize];
        let room = one_of(&[700, 5_000, 1 << 20, 1 << 20]) as usize;
        let turn = one_of(&[15, 60, 2_000]) as u32;
        let delay = Duration::from_micros(one_of(&[0, 20, 500, 20_000]));
        let way = Self {
            links: one_of(&[1, 2, LINKS_MAX]),
            protocol: Protocol::Nbd { style, requests_max: one_of(&[1, 3, 1024]) as usize },
            held_bytes_max: one_of(&[6_000, 20 << 10, 8 << 20]) as usize,
            shape: StreamShape { room, pace: Pace { turn, delay } },
            short: one_of(&[0, 0, 1]) == 1,
            seed: random.draw(),
        };
        // By a chance of their own, so that what goes over NBD is the same either way.
        let mut random = Random(way.seed ^ 0x6675_7365_0000);
        let way = if random.below(3) > 0 { way } else { way.mounted(&mut random) };
        let mut random = Random(way.seed ^ 0x7669_7274_696f);
        if random.below(4) > 0 { way } else { way.shared(&mut random) }
    }

    /// The same by rings in the memory of a machine.
    fn shared(self, random: &mut Random) -> Self {
        // So that the memory of a machine is small.
        let (slots, pages) = [(16, 1), (4, 8), (2, 32)][random.below(3) as usize];
        let habits = vhost::Habits {
            queues: 1 + random.below(QUEUES_MAX) as u16,
            slots,
            len_max: pages * PAGE,
            event_index: random.below(4) > 0,
            indirect: random.below(2) == 0,
            write_through: random.below(4) == 0,
        };
        Self { protocol: Protocol::Vhost { habits }, ..self }
    }

    /// The same through a mount.
    fn mounted(self, random: &mut Random) -> Self {
        let pages = [1, 8, 256][random.below(3) as usize];
        let habits = Habits { pages, parallel: random.below(2) == 0 };
        Self { protocol: Protocol::Fuse { readers: 1 + random.below(READERS_MAX), habits }, ..self }
    }

    /// The device as its clients want it: of bytes, where it is a file.
    pub(crate) fn serve(
        way: Option<Self>,
        device: Arc<dyn BlockDevice>,
        budget: &Arc<Budget>,
    ) -> Result<Aligned, Error> {
        let open = if way.is_some_and(|way| way.is_mounted()) { Aligned::to_bytes } else { Aligned::charged };
        open(device, budget)
    }

    /// Whether clients have the device as a file.
    pub(super) fn is_mounted(&self) -> bool {
        matches!(self.protocol, Protocol::Fuse { .. })
    }

    /// Whether requests are cut where they cross a page, as a kernel's are.
    pub(super) fn is_cut(&self) -> bool {
        !matches!(self.protocol, Protocol::Nbd { .. })
    }

    /// Whether what `range` holds is carried by one request.
    pub(super) fn is_one_request(&self, range: ByteRange) -> bool {
        let len_max = match self.protocol {
            Protocol::Nbd { .. } => return true,
            Protocol::Fuse { habits, .. } => habits.pages * PAGE,
            Protocol::Vhost { habits } => habits.len_max,
        };
        parts(range, len_max).len() <= 1
    }

    /// Whether every write is durable once it is acknowledged.
    pub(super) fn writes_through(&self) -> bool {
        matches!(self.protocol, Protocol::Vhost { habits } if habits.write_through)
    }

    /// Whether clients are told that something has failed, and not what.
    pub(super) fn has_one_error(&self) -> bool {
        matches!(self.protocol, Protocol::Vhost { .. })
    }

    /// Whether a connection that is lost ends only once all that was asked is answered.
    pub(crate) fn outlasts_requests(&self) -> bool {
        matches!(self.protocol, Protocol::Vhost { .. })
    }

    /// Buffers for it, where the longest request is of so many sectors.
    pub(crate) fn buffers(&self, sectors: u64) -> Buffers {
        match self.short {
            true => Buffers::new(2 * longest(sectors) + (128 << 10)),
            false => Buffers::default(),
        }
    }

    /// Bytes that the sessions of a connection hold at most, as `export::nbd::memory` says.
    pub(super) fn bytes_max(&self, sectors: u64) -> u64 {
        let held = (self.held_bytes_max as u64).max(longest(sectors)) + longest(sectors);
        let (sessions, each) = match self.protocol {
            Protocol::Nbd { .. } => (1, CONNECTION_BYTES),
            Protocol::Fuse { readers, .. } => (readers, CONNECTION_BYTES),
            Protocol::Vhost { habits } => (habits.queues.into(), QUEUE_BYTES),
        };
        sessions * (held + each)
    }
}

fn longest(sectors: u64) -> u64 {
    bytes_for((sectors * SECTOR) as usize) as u64
}
