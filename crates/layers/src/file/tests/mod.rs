//! The promises of the module's head, over a simulated disk.

mod bounce;
mod errseq;
mod growing;
mod thin;

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use spillway_core::contract::{self, Subject};
use spillway_core::{
    Answer, BlockDevice, BlockSize, ByteRange, Env, IoBuf, Kind, Op, Reply, Request, Seam, Submission,
};
use spillway_sim::disk::{Call, Disk, Effect, Fault, Latency, Medium, Plan};
use spillway_sim::world::World;

use super::File;
use super::device::LEFT_MAX;

struct House {
    world: Arc<World>,
    disk: Arc<Disk>,
    seam: Seam,
}

impl House {
    fn new(faults: &[Fault], latency: Latency) -> Self {
        Self::over(Medium::new(1 << 20), faults, latency)
    }

    fn over(medium: Medium, faults: &[Fault], latency: Latency) -> Self {
        let world = World::new(1);
        let plan = Plan { faults: faults.to_vec(), latency, ..Plan::default() };
        let disk = Arc::new(Disk::new(world.clone(), medium, BlockSize::PAGE, plan, 1));
        let seam = Seam::new(Arc::new(File::new(disk.clone(), world.clone())));
        Self { world, disk, seam }
    }

    fn ask(&self, request: Request) -> Reply {
        self.world.run(self.seam.submit(request))
    }

    fn write(&self, at: u64, value: u8, len: usize) -> Result<(), Kind> {
        self.ask(Request::write(at, filled(value, len))).result
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let reply = self.ask(Request::read(at, IoBuf::new(len)));
        assert_eq!(reply.result, Ok(()));
        reply.buf.to_vec()
    }

    fn flush(&self) -> Result<(), Kind> {
        self.ask(Request::flush()).result
    }
}

fn filled(value: u8, len: usize) -> IoBuf {
    let mut buf = IoBuf::new(len);
    buf.fill(value);
    buf
}

const fn once(call: Call, nth: u64, effect: Effect) -> Fault {
    Fault { call: Some(call), nth, effect, sticky: false }
}

#[test]
fn it_keeps_the_contract() {
    for latency in Latency::ALL {
        let house = House::new(&[], latency);
        let device: Arc<dyn BlockDevice> = Arc::new(File::new(house.disk.clone(), house.world.clone()));
        let run = |submission: Submission| house.world.run(submission);
        contract::check(&Subject { device, run: &run, stores: true });
    }
}

#[test]
fn a_flush_that_failed_once_fails_for_ever() {
    let house = House::new(&[once(Call::Sync, 1, Effect::Fail(Kind::NoSpace))], Latency::None);
    assert_eq!((house.write(0, 1, 4096), house.flush()), (Ok(()), Ok(())));
    assert_eq!((house.write(0, 2, 4096), house.flush()), (Ok(()), Err(Kind::NoSpace)));
    assert_eq!((house.write(0, 3, 4096), house.flush()), (Ok(()), Err(Kind::NoSpace)), "the sync worked");
    let zero = Request::bare(Op::WriteZeroes, ByteRange::new(0, 4096)).with_fua();
    assert_eq!(house.ask(zero).result, Err(Kind::NoSpace), "a zeroing is made durable by a flush");
    assert_eq!(house.ask(Request::write(0, filled(4, 4096)).with_fua()).result, Ok(()), "durable by itself");
}

#[test]
fn a_flush_covers_what_others_had_acknowledged() {
    for seed in 0..16u8 {
        let house = House::new(&[], Latency::Nvme);
        let writes = (0..8).map(|index| house.seam.submit(Request::write(index << 12, filled(seed, 4096))));
        house.world.run_all(writes.collect());
        assert_eq!(house.flush(), Ok(()));
        house.disk.cut();
        let again = House::over(house.disk.survivors(), &[], Latency::None);
        assert!(again.read(0, 8 << 12).iter().all(|&byte| byte == seed));
    }
}

#[test]
fn it_tells_how_long_requests_take() {
    let house = House::new(&[], Latency::Network);
    let file = Arc::new(File::new(house.disk.clone(), house.world.clone()));
    let seam = Seam::new(file.clone());
    let latencies = || {
        let all = &file.core.latencies;
        [all.read.micros(), all.write.micros(), all.flush.micros()]
    };
    assert_eq!(latencies(), [0; 3]);
    let micros = |request| {
        let before = house.world.now();
        assert_eq!(house.world.run(seam.submit(request)).result, Ok(()));
        (house.world.now() - before).as_micros() as u64
    };
    let first = micros(Request::write(0, filled(1, 4096)));
    assert_eq!(latencies(), [0, first, 0]);
    let flushed = micros(Request::flush());
    let next = micros(Request::write(0, filled(1, 256 << 10)));
    let [read, write, flush] = latencies();
    assert_eq!((read, flush), (0, flushed));
    assert!(write.abs_diff(first - first / 8 + next / 8) <= 1 && next != first, "{first} {next} {write}");
}

#[test]
fn short_transfers_are_continued() {
    let short = |call| Fault { call: Some(call), nth: 0, effect: Effect::Short, sticky: true };
    let house = House::new(&[short(Call::Read), short(Call::Write)], Latency::None);
    assert_eq!(house.write(8192, 5, 65536), Ok(()));
    assert_eq!(house.read(8192, 65536), vec![5; 65536]);
}

#[test]
fn zeroing_works_where_the_system_has_no_call_for_it() {
    let unknown =
        Fault { call: Some(Call::Zero), nth: 0, effect: Effect::Fail(Kind::NotSupported), sticky: true };
    let house = House::new(&[unknown], Latency::None);
    assert_eq!(house.write(0, 5, 1 << 20), Ok(()));
    let zero = Request::bare(Op::WriteZeroes, ByteRange::new(4096, 600 << 10));
    assert_eq!(house.ask(zero).result, Ok(()));
    let bytes = house.read(0, 1 << 20);
    assert!(bytes[4096..4096 + (600 << 10)].iter().all(|&byte| byte == 0));
    assert!(bytes[..4096].iter().chain(&bytes[4096 + (600 << 10)..]).all(|&byte| byte == 5));
    assert_eq!(house.ask(Request::bare(Op::Discard, ByteRange::new(0, 4096))).result, Ok(()));
}

#[test]
fn a_dropped_write_lands_before_a_later_one() {
    for round in 0..50u8 {
        let house = House::new(&[], Latency::Network);
        let Answer::Pending(mut write) = house.seam.submit(Request::write(0, filled(0xee, 65536))) else {
            panic!("a file takes its time")
        };
        assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(write);
        assert_eq!(house.write(4096, round, 8192), Ok(()));
        house.world.turn_until(Duration::from_millis(1), 100, || house.disk.calls() == 2);
        assert_eq!(house.read(4096, 8192), vec![round; 8192], "the dropped write came later");
    }
}

#[test]
fn a_write_that_has_not_begun_never_begins() {
    let house = House::new(&[], Latency::None);
    drop(house.seam.submit(Request::write(0, filled(1, 4096))));
    assert_eq!((house.read(0, 4096), house.disk.calls()), (vec![0; 4096], 1));
}

/// Has a request begin, and drops it.
fn withdraw<T>(answer: Answer<T>) {
    let Answer::Pending(mut future) = answer else { panic!("a file takes its time") };
    let _ = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
}

#[test]
fn who_withdraws_and_asks_again_leaves_only_so_many_requests_behind() {
    let house = House::over(Medium::new(64 << 20), &[], Latency::Network);
    for index in 0..4 * LEFT_MAX as u64 {
        // None has to wait for another's range.
        let range = ByteRange::new(index * 4096, 4096);
        match index % 3 {
            0 => withdraw(house.seam.submit(Request::bare(Op::Discard, range))),
            1 => withdraw(house.seam.submit(Request::bare(Op::WriteZeroes, range))),
            _ => withdraw(house.seam.submit(Request::flush())),
        }
    }
    assert!(house.disk.calls() <= LEFT_MAX as u64, "{} calls are under way", house.disk.calls());
    let others = (0..64).map(|index| house.seam.submit(Request::write(index << 12, filled(7, 4096))));
    let replies = house.world.run_all(others.collect());
    assert!(replies.iter().all(|reply| reply.result == Ok(())), "others go on once there is room");
    assert_eq!(house.read(0, 64 << 12), vec![7; 64 << 12]);
}

#[test]
fn the_errors_of_the_disk_reach_who_asked() {
    let faults = [
        once(Call::Write, 0, Effect::Fail(Kind::Io)),
        once(Call::Read, 0, Effect::Fail(Kind::Io)),
        once(Call::Zero, 0, Effect::Fail(Kind::NoSpace)),
    ];
    let house = House::new(&faults, Latency::None);
    assert_eq!(house.write(0, 1, 4096), Err(Kind::Io));
    assert_eq!(house.ask(Request::read(0, IoBuf::new(4096))).result, Err(Kind::Io));
    let zero = Request::bare(Op::WriteZeroes, ByteRange::new(0, 4096));
    assert_eq!(house.ask(zero).result, Err(Kind::NoSpace));
    assert_eq!((house.write(0, 1, 4096), house.read(0, 4096)), (Ok(()), vec![1; 4096]));
}
