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
fn a_write_that_fails_may_have_stored_some_sectors() {
    let (result, bytes) = after_a_write(Effect::Fail(Kind::NoSpace), 7);
    assert_eq!(result, Err(Kind::NoSpace));
    let stored = bytes.iter().take_while(|&&byte| byte == 7).count();
    assert!(stored.is_multiple_of(512) && bytes[stored..].iter().all(|&byte| byte == 0), "{stored}");
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
