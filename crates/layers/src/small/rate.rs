//! A layer that emulates a slow disk: a throughput cap, and a seek penalty for each request that does not start where the
//! previous one ended.
//!
//! The model is one medium that serves one request after another. Its whole state is the time until which it is busy and
//! where its head then stands; a read or write is booked at once, behind all that was booked before, and begins below when
//! its time is over. Nothing is saved up while the medium rests. A request withdrawn while it waits never begins, but keeps
//! its time: the medium was on its way. Zeroes, discards and flushes pass free of charge.
//!
//! The lock covers the booking, never a wait.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::Mutex;
use spillway_core::{
    Answer, BlockDevice, ByteRange, Env, Error, Geometry, Preset, Request, Seam, Submission, Table, Type,
    Unit, forward,
};

use crate::open_context::{Below, Open, OpenContext, OpenDevice};
use crate::options::{options, unrelated};

const NANOS: u128 = 1_000_000_000;

/// Longest seek in microseconds: an hour.
const SEEK_US_MAX: u64 = 3_600_000_000;

options! {
    /// What a configuration says about a rate.
    pub struct Config;
    struct Settings: unrelated;
    Live bytes_per_second: u64 = Type::COUNT, "How much the medium moves in a second; 0 is no limit"
        .unit(Unit::BytesPerSecond).preset(Preset::Number(0));
    Live seek_us: u64 = Type::Number(0, SEEK_US_MAX),
        "Time to reach a request that does not start where the previous one ended, at most an hour. If it is not 0 at the start, the \
         device reports itself as rotational"
        .unit(Unit::Microseconds).preset(Preset::Number(0));
}

/// The medium after all that is booked.
#[derive(Default)]
struct Medium {
    busy_until: Duration,
    head: u64,
}

/// See the head of this file.
pub struct Rate {
    below: Seam,
    env: Arc<dyn Env>,
    rotational: bool,
    settings: Settings,
    medium: Mutex<Medium>,
}

impl Rate {
    /// A limit over `below`; [`spillway_core::Kind::Invalid`] for a number outside its range.
    pub fn new(config: &Config, below: Arc<dyn BlockDevice>, env: Arc<dyn Env>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            rotational: below.geometry().rotational || config.seek_us > 0,
            below: Seam::new(below),
            env,
            settings: Settings::new(config)?,
            medium: Mutex::default(),
        }))
    }

    fn limits(&self) -> bool {
        self.settings.bytes_per_second.get() > 0 || self.settings.seek_us.get() > 0
    }

    /// Takes the medium for `range`, and returns how long it is until that is done.
    fn book(&self, range: ByteRange) -> Duration {
        let transfer = self.transfer(range.len);
        let seek = Duration::from_micros(self.settings.seek_us.get());
        let now = self.env.now();
        let mut medium = self.medium.lock();
        let reach = if medium.head == range.offset { Duration::ZERO } else { seek };
        medium.busy_until = medium.busy_until.max(now) + reach + transfer;
        medium.head = range.offset + range.len;
        assert!(medium.busy_until >= now + transfer, "a request takes its time");
        medium.busy_until - now
    }

    fn transfer(&self, bytes: u64) -> Duration {
        let rate = u128::from(self.settings.bytes_per_second.get());
        let nanos = (u128::from(bytes) * NANOS).checked_div(rate).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Open<Below> for Config {
    async fn open(&self, below: Below, context: &OpenContext) -> Result<OpenDevice, Error> {
        Ok(OpenDevice::new(Rate::new(self, below, context.env.clone())?, attributes))
    }
}

impl BlockDevice for Rate {
    fn geometry(&self) -> Geometry {
        Geometry { rotational: self.rotational, ..self.below.geometry() }
    }

    fn submit(&self, request: Request) -> Submission {
        if !request.op.carries_buffer() || !self.limits() {
            return self.below.submit(request);
        }
        let wait = self.book(request.range);
        let (below, env) = (self.below.clone(), self.env.clone());
        Answer::pending(async move {
            env.sleep(wait).await;
            below.submit(request).await
        })
    }

    forward!(below: extents, verify);
}

/// The attributes of `rate`.
pub fn attributes(rate: Arc<Rate>) -> Table<Rate> {
    Table::new(rate, &[]).with(
        Settings::ROWS,
        |rate| &rate.settings,
        // Requests from now on do not queue behind what was booked under the old limit.
        |rate, _| rate.medium.lock().busy_until = Duration::ZERO,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small::memory::{self, Memory};
    use spillway_core::{Attributes, Budget, IoBuf, Op};
    use spillway_sim::world::World;

    const MIB: u64 = 1 << 20;

    fn rate(bytes_per_second: u64, seek_us: u64, world: &Arc<World>) -> Arc<Rate> {
        let config = memory::Config { size: 64 << 20, block_size: 4096 };
        let memory = Memory::new(&config, Budget::new(Budget::UNLIMITED)).unwrap();
        let config = Config { bytes_per_second, seek_us };
        Rate::new(&config, memory, world.clone()).unwrap()
    }

    fn read(offset: u64) -> Request {
        Request::read(offset, IoBuf::new(MIB as usize))
    }

    #[test]
    fn bytes_take_their_time_one_request_after_another() {
        let world = World::new(1);
        let layer = rate(4 * MIB, 0, &world);
        world.run_all((0..8).map(|index| layer.submit(read(index * MIB))).collect());
        assert_eq!(world.now(), Duration::from_secs(2));
        world.advance(Duration::from_secs(10));
        world.run(layer.submit(Request::write(0, IoBuf::zeroed(2 << 20))));
        assert_eq!(world.now(), Duration::from_millis(12_500), "rest is not saved up");
    }

    #[test]
    fn only_a_request_elsewhere_costs_a_seek() {
        let world = World::new(1);
        let layer = rate(0, 8000, &world);
        assert!(layer.geometry().rotational);
        let at = |offset| {
            world.run(layer.submit(read(offset)));
            world.now().as_millis()
        };
        assert_eq!([at(0), at(MIB), at(2 * MIB)], [0, 0, 0]);
        assert_eq!([at(2 * MIB), at(3 * MIB), at(0)], [8, 8, 16]);
    }

    #[test]
    fn what_moves_no_data_is_free() {
        let world = World::new(1);
        let layer = rate(1024, 1000, &world);
        for op in [Op::Discard, Op::WriteZeroes, Op::Flush] {
            assert!(matches!(layer.submit(Request::bare(op, ByteRange::new(0, MIB))), Answer::Done(_)));
        }
        attributes(layer.clone()).store("bytes_per_second", "0").now().unwrap();
        attributes(layer.clone()).store("seek_us", "0").now().unwrap();
        assert!(matches!(layer.submit(read(0)), Answer::Done(_)));
    }

    #[test]
    fn a_new_limit_does_not_queue_behind_the_old() {
        let world = World::new(1);
        let layer = rate(1, 0, &world);
        let _slow = layer.submit(read(0));
        attributes(layer.clone()).store("bytes_per_second", "1M").now().unwrap();
        world.run(layer.submit(read(MIB)));
        assert_eq!(world.now(), Duration::from_secs(1));
    }

    #[test]
    fn a_withdrawn_write_keeps_its_time_and_never_lands() {
        let world = World::new(1);
        let layer = rate(MIB, 0, &world);
        drop(layer.submit(Request::write(0, IoBuf::copy_of(&[9; 4096]))));
        let reply = world.run(layer.submit(Request::read(0, IoBuf::new(4096))));
        assert!(reply.buf.iter().all(|&byte| byte == 0));
        assert_eq!(world.now(), Duration::from_nanos(2 * 3_906_250));
    }
}
