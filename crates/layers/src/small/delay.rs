//! A layer that makes a device slow to answer: a fixed time for each kind of operation, more or less at random.
//!
//! It promises that a request begins below no earlier than its delay after it was polled first; requests wait side by
//! side, so throughput at depth is not limited (see `rate` for that). A request withdrawn while it waits never begins.
//! It needs a clock and, for jitter, chance; it holds no lock.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::{
    Answer, BlockDevice, Env, Error, Op, Preset, Request, Seam, Submission, Table, Type, Unit, forward,
};

use crate::open_context::{Below, Open, OpenContext, OpenDevice};
use crate::options::{options, unrelated};

/// Up to an hour.
const DELAY: Type = Type::Number(0, 3_600_000_000);

options! {
    /// What a configuration says about a delay.
    pub struct Config;
    struct Settings: unrelated;
    Live read_us: u64 = DELAY, "Time before each read, at most an hour"
        .unit(Unit::Microseconds).preset(Preset::Number(0));
    Live write_us: u64 = DELAY, "Time before each write, zeroes included, at most an hour"
        .unit(Unit::Microseconds).preset(Preset::Number(0));
    Live discard_us: u64 = DELAY, "Time before each discard, at most an hour"
        .unit(Unit::Microseconds).preset(Preset::Number(0));
    Live flush_us: u64 = DELAY, "Time before each flush, at most an hour"
        .unit(Unit::Microseconds).preset(Preset::Number(0));
    Live jitter_percent: u64 = Type::Number(0, 100), "Up to this share of a delay is added to it at random"
        .unit(Unit::Percent).preset(Preset::Number(0));
}

/// See the head of this file.
pub struct Delay {
    below: Seam,
    env: Arc<dyn Env>,
    settings: Settings,
}

impl Delay {
    /// Delays over `below`; [`spillway_core::Kind::Invalid`] for a number outside its range.
    pub fn new(config: &Config, below: Arc<dyn BlockDevice>, env: Arc<dyn Env>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { below: Seam::new(below), env, settings: Settings::new(config)? }))
    }

    fn wait(&self, op: Op) -> Duration {
        let fixed = match op {
            Op::Read => &self.settings.read_us,
            Op::Write | Op::WriteZeroes => &self.settings.write_us,
            Op::Discard => &self.settings.discard_us,
            Op::Flush => &self.settings.flush_us,
        };
        let nanos = fixed.get() * 1000;
        let most = nanos / 100 * self.settings.jitter_percent.get();
        let extra = if most == 0 { 0 } else { self.env.random() % (most + 1) };
        Duration::from_nanos(nanos + extra)
    }
}

impl Open<Below> for Config {
    async fn open(&self, below: Below, context: &OpenContext) -> Result<OpenDevice, Error> {
        Ok(OpenDevice::new(Delay::new(self, below, context.env.clone())?, attributes))
    }
}

impl BlockDevice for Delay {
    forward!(below: geometry, extents, verify);

    fn submit(&self, request: Request) -> Submission {
        let wait = self.wait(request.op);
        if wait.is_zero() {
            return self.below.submit(request);
        }
        let (below, env) = (self.below.clone(), self.env.clone());
        Answer::pending(async move {
            env.sleep(wait).await;
            below.submit(request).await
        })
    }
}

/// The attributes of `delay`.
pub fn attributes(delay: Arc<Delay>) -> Table<Delay> {
    Table::new(delay, &[]).with(Settings::ROWS, |delay| &delay.settings, |_, _| {})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small::null::{self, Null};
    use spillway_core::{Attributes, ByteRange, IoBuf};
    use spillway_sim::world::World;

    fn delay(config: &Config, world: &Arc<World>) -> Arc<Delay> {
        let null = Null::new(&null::Config { size: 1 << 20 }).unwrap();
        Delay::new(config, null, world.clone()).unwrap()
    }

    fn read() -> Request {
        Request::read(0, IoBuf::new(4096))
    }

    fn micros(world: &World, submit: impl FnOnce() -> Submission) -> u128 {
        let start = world.now();
        assert_eq!(world.run(submit()).result, Ok(()));
        (world.now() - start).as_micros()
    }

    #[test]
    fn each_kind_of_operation_has_its_time() {
        let world = World::new(1);
        let config = Config { read_us: 100, write_us: 20, flush_us: 3000, ..Config::default() };
        let layer = delay(&config, &world);
        let zeroes = || Request::bare(Op::WriteZeroes, ByteRange::new(0, 4096));
        let discard = || Request::bare(Op::Discard, ByteRange::new(0, 4096));
        assert_eq!(micros(&world, || layer.submit(read())), 100);
        assert_eq!(micros(&world, || layer.submit(Request::write(0, IoBuf::zeroed(4096)))), 20);
        assert_eq!(micros(&world, || layer.submit(zeroes())), 20);
        assert_eq!(micros(&world, || layer.submit(discard())), 0);
        assert_eq!(micros(&world, || layer.submit(Request::flush())), 3000);
        attributes(layer.clone()).store("read_us", "7").now().unwrap();
        assert_eq!(micros(&world, || layer.submit(read())), 7);
    }

    #[test]
    fn requests_wait_side_by_side() {
        let world = World::new(1);
        let layer = delay(&Config { read_us: 100, ..Config::default() }, &world);
        world.run_all((0..8).map(|_| layer.submit(read())).collect());
        assert_eq!(world.now(), Duration::from_micros(100));
    }

    #[test]
    fn jitter_stays_in_its_share_and_follows_from_the_seed() {
        let times = |seed| -> Vec<u128> {
            let world = World::new(seed);
            let layer = delay(&Config { read_us: 1000, jitter_percent: 20, ..Config::default() }, &world);
            (0..50).map(|_| micros(&world, || layer.submit(read()))).collect()
        };
        let first = times(3);
        assert!(first.iter().all(|micros| (1000..=1200).contains(micros)));
        assert!(first.iter().min().unwrap() + 100 < *first.iter().max().unwrap());
        assert_eq!(first, times(3));
    }

    #[test]
    fn a_number_out_of_range_is_refused_by_name() {
        let world = World::new(1);
        let table = attributes(delay(&Config::default(), &world));
        for (key, value) in [("jitter_percent", "101"), ("read_us", "3600000001"), ("flush_us", "soon")] {
            let text = table.store(key, value).now().unwrap_err().to_string();
            assert!(text.contains(key) && text.contains(value) && text.contains("from 0 to"), "{text}");
        }
    }
}
