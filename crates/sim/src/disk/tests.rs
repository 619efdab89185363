//! What single faults do to a disk.

use super::*;
use crate::world::World;

/// What lies in the first two blocks after `bytes` were written to the first, with `effect`.
fn after_a_write(effect: Effect, byte: u8) -> (Result<usize, Kind>, Vec<u8>) {
    let world = World::new(1);
    let plan = Plan {
        faults: vec![Fault { call: Some(Call::Write), nth: 0, effect, sticky: false }],
        ..Plan::default()
    };
    let disk = Disk::new(world.clone(), Medium::new(32 << 10), BlockSize::PAGE, plan, 1);
    let mut buf = IoBuf::new(4096);
    buf.fill(byte);
    let (result, _) = world.run(Answer::Pending(disk.write(0, buf, 0, false)));
    let (_, read) = world.run(Answer::Pending(disk.read(0, IoBuf::new(8192), 0)));
    (result, read.to_vec())
}

#[test]
fn rot_changes_a_bit_and_says_nothing() {
    let (result, bytes) = after_a_write(Effect::Rot, 7);
    let wrong: u32 = bytes[..4096].iter().map(|byte| (byte ^ 7).count_ones()).sum();
    assert_eq!((result, wrong), (Ok(4096), 1));
}

#[test]
fn a_misdirected_write_lands_elsewhere_and_says_nothing() {
    let (result, bytes) = after_a_write(Effect::Misdirect, 7);
    assert_eq!(result, Ok(4096));
    assert!(bytes[..4096].iter().all(|&byte| byte == 0) && bytes[4096..].iter().all(|&byte| byte == 7));
}

#[test]
fn a_misdirected_read_shows_another_block_and_says_nothing() {
    let world = World::new(1);
    let misread = Fault { call: Some(Call::Read), nth: 0, effect: Effect::Misread, sticky: false };
    let medium = Medium::of(16 << 10, |sector| [sector as u8; 512]);
    let plan = Plan { faults: vec![misread], ..Plan::default() };
    let disk = Disk::new(world.clone(), medium, BlockSize::PAGE, plan, 1);
    let read = |at| world.run(Answer::Pending(disk.read(at, IoBuf::new(4096), 0))).1[0];
    assert_eq!([read(0), read(0)], [8, 0]);
}

#[test]
fn a_write_that_fails_may_have_stored_some_sectors() {
    let (result, bytes) = after_a_write(Effect::Fail(Kind::NoSpace), 7);
    assert_eq!(result, Err(Kind::NoSpace));
    let stored = bytes.iter().take_while(|&&byte| byte == 7).count();
    assert!(stored.is_multiple_of(512) && bytes[stored..].iter().all(|&byte| byte == 0), "{stored}");
}

#[test]
fn a_failure_is_one_of_its_call_and_of_its_moment() {
    let world = World::new(1);
    let fail = Fault { call: Some(Call::Sync), nth: 0, effect: Effect::Fail(Kind::Io), sticky: false };
    let plan = Plan { faults: vec![fail], ..Plan::default() };
    let disk = Disk::new(world.clone(), Medium::new(4096), BlockSize::PAGE, plan, 1);
    assert!(!disk.answers().has_error_since(None, Duration::ZERO), "a fault is planned, and none has struck");
    world.run(Answer::Pending(disk.sync())).unwrap_err();
    let now = world.now();
    assert!(
        disk.answers().has_error_since(None, now) && disk.answers().has_error_since(Some(Call::Sync), now)
    );
    assert!(!disk.answers().has_error_since(Some(Call::Read), Duration::ZERO));
    assert!(!disk.answers().has_error_since(None, now + Duration::from_nanos(1)));
}

#[test]
fn a_call_that_hangs_is_carried_out_in_the_end_or_holds_nothing_up() {
    let world = World::new(1);
    let hang =
        |nth, seconds| Fault { call: Some(Call::Write), nth, effect: Effect::Hang(seconds), sticky: false };
    let plan = Plan { faults: vec![hang(0, Some(60)), hang(1, None)], ..Plan::default() };
    let disk = Disk::new(world.clone(), Medium::new(8192), BlockSize::PAGE, plan, 1);
    let write = |at, byte| {
        let mut buf = IoBuf::new(4096);
        buf.fill(byte);
        disk.write(at, buf, 0, false)
    };
    let (result, _) = world.run(Answer::Pending(write(0, 1)));
    assert_eq!((result, world.now().as_secs()), (Ok(4096), 60));
    assert_eq!(
        (disk.answers().longest().as_secs(), disk.answers().has_error_since(None, Duration::ZERO)),
        (60, false)
    );
    let mut hung = write(4096, 2);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while disk.hung().is_empty() {
        assert!(hung.as_mut().poll(&mut context).is_pending());
        world.go_on();
    }
    let (_, read) = world.run(Answer::Pending(disk.read(0, IoBuf::new(8192), 0)));
    assert_eq!((read[0], read[4096]), (1, 0));
    assert!(hung.as_mut().poll(&mut context).is_pending());
    assert_eq!(disk.hung(), [(Call::Write, ByteRange::new(4096, 4096))]);
}

#[test]
fn what_an_ignored_sync_was_to_keep_may_go_until_a_later_one_keeps_it() {
    let left = |syncs: u64, seed| {
        let world = World::new(1);
        let ignore = Fault { call: Some(Call::Sync), nth: 0, effect: Effect::Ignore, sticky: false };
        let plan = Plan { faults: vec![ignore], ..Plan::default() };
        let disk = Disk::new(world.clone(), Medium::new(4096), BlockSize::PAGE, plan, seed);
        let mut buf = IoBuf::new(4096);
        buf.fill(7);
        world.run(Answer::Pending(disk.write(0, buf, 0, false))).0.unwrap();
        (0..syncs).for_each(|_| world.run(Answer::Pending(disk.sync())).unwrap());
        assert_eq!(disk.has_ignored(), syncs == 1);
        disk.cut();
        let mut bytes = [0; 512];
        disk.survivors().read_durable(0, &mut bytes);
        bytes[0]
    };
    assert!((0..20).any(|seed| left(1, seed) == 0) && (0..20).any(|seed| left(1, seed) == 7));
    assert!((0..20).all(|seed| left(2, seed) == 7));
}

#[test]
fn without_power_nothing_is_answered() {
    let world = World::new(1);
    let plan = Plan { cut_at: Some(1), ..Plan::default() };
    let disk = Disk::new(world.clone(), Medium::new(4096), BlockSize::PAGE, plan, 1);
    let mut write = disk.write(0, IoBuf::zeroed(4096), 0, true);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while !disk.is_cut() {
        assert!(write.as_mut().poll(&mut context).is_pending());
        world.go_on();
    }
    assert!(write.as_mut().poll(&mut context).is_pending());
    drop(write);
    assert_eq!(disk.survivors().bytes(), 4096);
}

#[test]
fn a_length_that_was_not_synced_may_be_lost_with_what_lies_behind_it() {
    let lengths = |story: fn(&mut Cache)| {
        let mut seen: Vec<u64> = (0..200)
            .map(|seed| {
                let mut cache = Cache::new(Medium::new(70 * SECTOR));
                story(&mut cache);
                cache.lose_power(&mut Random(seed)).bytes() / SECTOR
            })
            .collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    };
    let twice = |cache: &mut Cache| {
        cache.enlarge(200 * SECTOR);
        cache.enlarge(300 * SECTOR);
        cache.write(250 * SECTOR, &[1; 512], false);
    };
    assert_eq!(lengths(twice), [70, 300]);
    assert_eq!(lengths(|cache| cache.sync(cache.newest())), [70]);
    let synced = |cache: &mut Cache| {
        cache.enlarge(200 * SECTOR);
        cache.sync(cache.newest());
    };
    assert_eq!(lengths(synced), [200]);
    let too_late = |cache: &mut Cache| {
        let covered = cache.newest();
        cache.enlarge(200 * SECTOR);
        cache.sync(covered);
    };
    assert_eq!(lengths(too_late), [70, 200]);
    let durable = |cache: &mut Cache| {
        cache.enlarge(200 * SECTOR);
        cache.write(0, &[1; 512], true);
    };
    assert_eq!(lengths(durable), [200]);
}
