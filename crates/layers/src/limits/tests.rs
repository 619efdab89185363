//! Limits over a device that counts what it has acknowledged.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::{AtomicBool, AtomicU64, Ordering, WaitList};
use spillway_core::{
    Answer, AtRisk, Attributes, BlockDevice, BlockSize, ByteRange, Env, Error, Geometry, IoBuf, Kind, Op,
    Reply, Request, Seam, Submission, Value,
};
use spillway_sim::world::World;

use super::{Limits, attributes};

const BLOCK: u64 = 4096;

/// Acknowledges writes at once, and makes them durable by a flush, which ends while that is allowed.
struct Store {
    bytes: AtomicU64,
    /// Bytes of writes with FUA that are under way.
    forcing: AtomicU64,
    /// Writes, those with FUA among them, and flushes that have ended.
    writes: AtomicU64,
    forced: AtomicU64,
    flushes: AtomicU64,
    /// Flushes do not end, and writes do not.
    stuck: AtomicBool,
    writes_stuck: AtomicBool,
    forced_stuck: AtomicBool,
    fails: AtomicBool,
    freed: WaitList,
}

impl Store {
    fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::SeqCst);
        self.freed.wake_all();
    }

    fn set_writes_stuck(&self, stuck: bool) {
        self.writes_stuck.store(stuck, Ordering::SeqCst);
        self.freed.wake_all();
    }

    fn set_forced_stuck(&self, stuck: bool) {
        self.forced_stuck.store(stuck, Ordering::SeqCst);
        self.freed.wake_all();
    }

    fn write(&self, request: Request) -> Reply {
        self.writes.fetch_add(1, Ordering::SeqCst);
        match request.flags.fua {
            true => self.forced.fetch_add(1, Ordering::SeqCst),
            false => self.bytes.fetch_add(request.range.len, Ordering::SeqCst),
        };
        request.answer(Ok(()))
    }
}

impl AtRisk for Store {
    fn at_risk_bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst) + self.forcing.load(Ordering::SeqCst)
    }
}

struct Device(Arc<Store>);

impl BlockDevice for Device {
    fn geometry(&self) -> Geometry {
        Geometry { volatile: false, block_size: BlockSize::PAGE, ..Geometry::in_memory(1 << 20) }
    }

    fn submit(&self, request: Request) -> Submission {
        let store = self.0.clone();
        if request.flags.fua {
            let len = request.range.len;
            store.forcing.fetch_add(len, Ordering::SeqCst);
            return Answer::pending(async move {
                store.freed.until(|| (!store.forced_stuck.load(Ordering::SeqCst)).then_some(())).await;
                store.forcing.fetch_sub(len, Ordering::SeqCst);
                store.write(request)
            });
        }
        if request.op != Op::Flush {
            if !store.writes_stuck.load(Ordering::SeqCst) {
                return Answer::Done(store.write(request));
            }
            return Answer::pending(async move {
                store.freed.until(|| (!store.writes_stuck.load(Ordering::SeqCst)).then_some(())).await;
                store.write(request)
            });
        }
        let covers = store.bytes.load(Ordering::SeqCst);
        Answer::pending(async move {
            store.freed.until(|| (!store.stuck.load(Ordering::SeqCst)).then_some(())).await;
            if store.fails.load(Ordering::SeqCst) {
                return request.answer(Err(Kind::Io));
            }
            store.bytes.fetch_sub(covers, Ordering::SeqCst);
            store.flushes.fetch_add(1, Ordering::SeqCst);
            request.answer(Ok(()))
        })
    }
}

struct House {
    world: Arc<World>,
    store: Arc<Store>,
    limits: Arc<Limits>,
}

type Answered = Rc<Cell<Option<Result<(), Kind>>>>;

impl House {
    fn new(settings: &[(&str, u64)]) -> Self {
        let (world, zero) = (World::new(7), AtomicU64::default);
        let store = Arc::new(Store {
            bytes: zero(),
            forcing: zero(),
            writes: zero(),
            forced: zero(),
            flushes: zero(),
            stuck: AtomicBool::new(false),
            writes_stuck: AtomicBool::new(false),
            forced_stuck: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            freed: WaitList::default(),
        });
        let parts: Vec<Arc<dyn AtRisk>> = vec![store.clone()];
        let below = Arc::new(Device(store.clone()));
        let limits = Limits::new("disk0", below, parts, world.clone()).expect("no limit is set");
        let house = Self { world, store, limits };
        settings.iter().for_each(|(name, value)| house.set(name, *value).expect("it keeps data"));
        (0..10).for_each(|_| _ = house.world.go_on());
        house
    }

    fn set(&self, name: &str, value: u64) -> Result<(), Error> {
        attributes(self.limits.clone()).set(name, Value::U64(value)).now()
    }

    fn number(&self, name: &str) -> Option<u64> {
        attributes(self.limits.clone()).get(name).expect("there is such an attribute").number()
    }

    fn spawn(&self, request: Request) -> Answered {
        let (answer, submission) = (Answered::default(), Seam::new(self.limits.clone()).submit(request));
        let told = answer.clone();
        self.world.spawn_here(Box::pin(async move { told.set(Some(submission.await.result)) }));
        answer
    }

    fn write(&self, blocks: u64) -> Answered {
        self.spawn(Request::write(0, IoBuf::new((blocks * BLOCK) as usize)))
    }

    fn run_until(&self, time: Duration) {
        while self.world.now() < time && self.world.go_on() {}
    }

    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        assert!(
            (0..10_000).any(|_| condition() || !self.world.go_on()) && condition(),
            "{what} does not come"
        );
    }
}

const OK: Option<Result<(), Kind>> = Some(Ok(()));

#[test]
fn no_more_bytes_are_ever_at_risk_and_every_write_has_its_turn() {
    let house = House::new(&[("at_risk_bytes_max", 4 * BLOCK)]);
    let writes: Vec<Answered> = (0..30).map(|write| house.write(1 + write % 4)).collect();
    house.until("an answer to each", || {
        assert!(house.number("at_risk_bytes") <= Some(4 * BLOCK));
        writes.iter().all(|write| write.get() == OK)
    });
    assert!(house.number("at_risk_waits") > Some(10) && house.number("at_risk_flushes") > Some(5));
    assert_eq!(house.store.forced.load(Ordering::SeqCst), 0);
}

#[test]
fn what_is_larger_than_the_limit_is_never_at_risk() {
    let house = House::new(&[("at_risk_bytes_max", 4 * BLOCK)]);
    let large = house.write(5);
    house.until("an answer", || large.get() == OK);
    assert_eq!(house.store.forced.load(Ordering::SeqCst), 1);
    assert_eq!((house.number("at_risk_bytes"), house.number("at_risk_seconds")), (Some(0), None));
}

/// A flush has failed before it came; since then nothing fails.
#[test]
fn a_write_that_waits_is_not_failed_by_a_flush_that_ended_before() {
    let house = House::new(&[("at_risk_bytes_max", 4 * BLOCK)]);
    house.store.fails.store(true, Ordering::SeqCst);
    let flush = house.spawn(Request::flush());
    house.until("an answer", || flush.get() == Some(Err(Kind::Io)));
    house.store.fails.store(false, Ordering::SeqCst);
    house.store.set_writes_stuck(true);
    let (first, second) = (house.write(4), house.write(1));
    house.run_until(house.world.now() + Duration::from_secs(1));
    assert_eq!((first.get(), second.get()), (None, None), "it looks now and then, and waits");
    house.store.set_writes_stuck(false);
    house.until("an answer", || second.get().is_some());
    assert_eq!((first.get(), second.get()), (OK, OK));
}

/// It was small enough when it came.
#[test]
fn a_limit_that_is_lowered_below_a_write_in_line_lets_it_go() {
    let house = House::new(&[("at_risk_bytes_max", 8 * BLOCK)]);
    house.store.set_stuck(true);
    let writes = [house.write(8), house.write(6), house.write(1)];
    house.run_until(house.world.now() + Duration::from_secs(1));
    assert_eq!(writes.each_ref().map(|write| write.get()), [OK, None, None]);
    house.set("at_risk_bytes_max", 4 * BLOCK).expect("it may be set at any time");
    house.store.set_stuck(false);
    house.until("an answer to each", || {
        assert!(house.number("at_risk_bytes") <= Some(8 * BLOCK));
        writes.iter().all(|write| write.get() == OK)
    });
    assert_eq!(house.store.forced.load(Ordering::SeqCst), 1, "the one that is larger than the limit now");
}

#[test]
fn what_is_larger_than_the_limit_comes_after_those_that_wait() {
    let house = House::new(&[("at_risk_bytes_max", 4 * BLOCK)]);
    house.store.set_stuck(true);
    let before = [house.write(4), house.write(1)];
    house.until("a write that waits", || house.number("at_risk_waits") == Some(1));
    let large = house.write(5);
    house.run_until(house.world.now() + Duration::from_secs(1));
    assert_eq!([before[0].get(), before[1].get(), large.get()], [OK, None, None]);
    assert_eq!(house.store.forced.load(Ordering::SeqCst), 0);
    house.store.set_stuck(false);
    house.until("an answer to each", || [&before[1], &large].iter().all(|write| write.get() == OK));
    assert_eq!(house.store.forced.load(Ordering::SeqCst), 1);
}

/// The parts have data of theirs, which nobody is told is safe before it is durable.
#[test]
fn writes_larger_than_the_limit_hold_up_no_small_one() {
    let house = House::new(&[("at_risk_bytes_max", 4 * BLOCK)]);
    let before = house.write(2);
    house.store.set_forced_stuck(true);
    let large = [house.write(5), house.write(9)];
    assert_eq!((house.store.at_risk_bytes(), house.number("at_risk_bytes")), (16 * BLOCK, Some(2 * BLOCK)));
    house.store.set_stuck(true);
    let small = [house.write(2), house.write(1)];
    house.until("a small write", || [&before, &small[0]].iter().all(|write| write.get() == OK));
    assert_eq!(house.number("at_risk_bytes"), Some(4 * BLOCK), "what is acknowledged counts all the same");
    house.run_until(house.world.now() + Duration::from_secs(1));
    assert_eq!(small[1].get(), None);
    house.store.set_stuck(false);
    house.until("room by a flush", || small[1].get() == OK);
    assert!(large.iter().all(|write| write.get().is_none()), "they are under way");
    house.store.set_forced_stuck(false);
    house.until("an answer to each", || large.iter().all(|write| write.get() == OK));
}

#[test]
fn half_of_the_bytes_start_a_flush_before_anybody_waits() {
    let house = House::new(&[("at_risk_bytes_max", 8 * BLOCK)]);
    let flushes = || house.store.flushes.load(Ordering::SeqCst);
    let before = flushes();
    let first = house.write(4);
    house.run_until(house.world.now() + Duration::from_secs(5));
    assert_eq!((first.get(), flushes()), (OK, before), "half is not more than half");
    let second = house.write(1);
    house.until("a flush", || flushes() > before && house.number("at_risk_bytes") == Some(0));
    assert_eq!((second.get(), house.number("at_risk_waits")), (OK, Some(0)));
}

#[test]
fn nothing_stays_at_risk_for_longer_than_the_limit() {
    let house = House::new(&[("at_risk_seconds_max", 4)]);
    let begun = house.world.now();
    let write = house.write(1);
    house.run_until(begun + Duration::from_millis(1500));
    assert_eq!((write.get(), house.number("at_risk_bytes")), (OK, Some(BLOCK)), "it is not yet due");
    house.run_until(begun + Duration::from_secs(3));
    assert_eq!((house.number("at_risk_bytes"), house.number("at_risk_waits")), (Some(0), Some(0)));
}

#[test]
fn while_a_write_is_too_old_new_ones_wait_and_go_on_when_it_is_durable() {
    let house = House::new(&[("at_risk_seconds_max", 2)]);
    house.store.set_stuck(true);
    let first = house.write(1);
    house.run_until(house.world.now() + Duration::from_secs(1));
    let young = house.write(1);
    house.run_until(house.world.now() + Duration::from_secs(3));
    assert_eq!([first.get(), young.get()], [OK; 2]);
    let late = [house.write(1), house.spawn(Request::bare(Op::WriteZeroes, ByteRange::new(0, BLOCK)))];
    house.run_until(house.world.now() + Duration::from_secs(3));
    assert!(late.iter().all(|late| late.get().is_none()), "they are held");
    assert!(house.number("at_risk_seconds") >= Some(5), "{:?}", house.number("at_risk_seconds"));
    house.store.set_stuck(false);
    house.until("an answer to each", || late.iter().all(|late| late.get() == OK));
    assert_eq!(house.number("at_risk_waits"), Some(2));
}

#[test]
fn where_flushes_fail_who_waits_is_told_and_who_fits_goes_on() {
    let house = House::new(&[("at_risk_bytes_max", 4 * BLOCK)]);
    house.store.fails.store(true, Ordering::SeqCst);
    let writes: Vec<Answered> = [2, 1, 4, 1].map(|blocks| house.write(blocks)).into();
    house.until("an answer to each", || writes.iter().all(|write| write.get().is_some()));
    let answers: Vec<_> = writes.iter().map(|write| write.get()).collect();
    assert_eq!(answers[..3], [OK, OK, Some(Err(Kind::Io))]);
}

#[test]
fn a_clients_flush_counts_and_a_limit_that_is_taken_away_lets_writes_go() {
    let house = House::new(&[("at_risk_bytes_max", 4 * BLOCK), ("at_risk_seconds_max", 60)]);
    let write = house.write(2);
    let flush = house.spawn(Request::flush());
    house.until("an answer to both", || flush.get() == OK && write.get() == OK);
    assert_eq!(house.number("at_risk_seconds"), None);
    house.store.set_stuck(true);
    let held = [house.write(4), house.write(1)];
    house.run_until(house.world.now() + Duration::from_secs(1));
    assert_eq!([held[0].get(), held[1].get()], [OK, None]);
    let none = attributes(house.limits.clone()).set("at_risk_bytes_max", Value::None).now();
    assert_eq!(none, Ok(()));
    house.until("the write that was held", || held[1].get() == OK);
}

#[test]
fn nothing_is_limited_where_nothing_is_ever_durable() {
    struct Memory;
    impl BlockDevice for Memory {
        fn geometry(&self) -> Geometry {
            Geometry::in_memory(1 << 20)
        }
        fn submit(&self, request: Request) -> Submission {
            Answer::Done(request.answer(Ok(())))
        }
    }
    let limits = Limits::new("ram0", Arc::new(Memory), vec![], World::new(1)).expect("none is set");
    let table = attributes(limits);
    for name in ["at_risk_bytes_max", "at_risk_seconds_max"] {
        let refused = table.set(name, Value::U64(86_400)).now().expect_err("it keeps nothing");
        assert!(refused.kind == Kind::Invalid && refused.message().contains("in memory only"), "{refused}");
        assert_eq!(table.set(name, Value::None).now(), Ok(()));
    }
    assert_eq!(table.get("at_risk_bytes"), Ok(Value::None));
}

/// No flush can make room for a write that waits for another one: it is not tried again and again.
#[test]
fn who_waits_for_writes_under_way_waits_without_flushes() {
    let house = House::new(&[("at_risk_bytes_max", 4 * BLOCK)]);
    house.store.set_writes_stuck(true);
    let writes = [house.write(4), house.write(1), house.write(5)];
    let before = house.store.flushes.load(Ordering::SeqCst);
    house.run_until(house.world.now() + Duration::from_secs(2));
    assert!(writes.iter().all(|write| write.get().is_none()));
    assert_eq!(house.store.flushes.load(Ordering::SeqCst), before);
    house.store.set_writes_stuck(false);
    house.until("an answer to each", || writes.iter().all(|write| write.get() == OK));
}

/// The parts commit and write back by themselves, and tell nobody.
#[test]
fn what_becomes_durable_without_a_flush_lets_a_write_go() {
    let house = House::new(&[("at_risk_bytes_max", 4 * BLOCK)]);
    house.store.bytes.store(4 * BLOCK, Ordering::SeqCst);
    let write = house.write(1);
    house.run_until(house.world.now() + Duration::from_millis(50));
    assert_eq!(write.get(), None);
    house.store.bytes.store(0, Ordering::SeqCst);
    house.until("an answer", || write.get() == OK);
}

/// The flush that begins with the limit does not cover it, and no other write follows.
#[test]
fn a_write_under_way_when_a_limit_is_set_is_durable_in_time() {
    let house = House::new(&[]);
    house.store.set_writes_stuck(true);
    let write = house.write(1);
    house.set("at_risk_seconds_max", 4).expect("it keeps data");
    house.until("the flush of that", || house.store.flushes.load(Ordering::SeqCst) == 1);
    house.store.set_writes_stuck(false);
    house.until("an answer", || write.get() == OK);
    assert_eq!(house.number("at_risk_seconds"), Some(0));
    house.run_until(house.world.now() + Duration::from_secs(3));
    assert_eq!(house.number("at_risk_bytes"), Some(0));
}
