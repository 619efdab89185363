//! Attributes as files.

use super::super::wire::{self, Fields};
use super::*;
use spillway_core::exchange::Exchange;
use spillway_core::sync::Ordering;
use spillway_core::work;

fn control() -> (Arc<Toy>, Kernel, u64, u64) {
    let (_, _, tree, toy) = mounted();
    let mut kernel = Kernel::new(&tree, Config::default());
    let level = kernel.find("ram0/toy/level").unwrap();
    let poke = kernel.find("ram0/toy/poke").unwrap();
    (toy, kernel, level, poke)
}

fn read_at(kernel: &mut Kernel, node: u64, handle: u64, offset: u64, len: u32) -> (i32, String) {
    let body = [words64(&[handle, offset]), words32(&[len, wire::FOR_A_CALL]), words64(&[0, 0])].concat();
    let (errno, text) = kernel.ask(opcode::READ, node, &body);
    (errno, String::from_utf8(text).unwrap())
}

#[test]
fn a_part_is_a_folder_and_each_attribute_a_file() {
    let (.., mut kernel, level, poke) = control();
    let mode = |kernel: &mut Kernel, node| {
        let (errno, reply) = kernel.ask(opcode::GETATTR, node, &[0; 16]);
        assert_eq!(errno, 0);
        Fields::of(&reply[76..]).u32().unwrap()
    };
    assert_eq!((mode(&mut kernel, level), mode(&mut kernel, poke)), (0o100_644, 0o100_200));
    let part = kernel.find("ram0/toy").unwrap();
    assert_eq!(mode(&mut kernel, part), 0o040_755);
    let (errno, listing) = kernel.ask(opcode::READDIR, part, &portion(0, 4096, 0));
    let listing = String::from_utf8_lossy(&listing).into_owned();
    assert!(errno == 0 && listing.contains("level") && listing.contains("poke"), "{listing}");
    for (node, errno) in [(part + (1 << 16), errno::ENOENT), (poke + 2, errno::ENOENT)] {
        assert_eq!(kernel.ask(opcode::GETATTR, node, &[0; 16]).0, errno);
    }
    assert_eq!(kernel.find("ram0/toy/other"), Err(errno::ENOENT));
    assert_eq!(kernel.find("ram0/toy/level/deeper"), Err(errno::ENOTDIR));
}

#[test]
fn a_read_from_the_start_takes_the_value_anew_and_later_ones_go_on_in_it() {
    let (toy, mut kernel, level, _) = control();
    let handle = kernel.open(level, 0).unwrap();
    toy.level.store(12345, Ordering::SeqCst);
    assert_eq!(read_at(&mut kernel, level, handle, 0, 3), (0, "123".into()));
    toy.level.store(99, Ordering::SeqCst);
    assert_eq!(read_at(&mut kernel, level, handle, 3, 100), (0, "45\n".into()));
    assert_eq!(read_at(&mut kernel, level, handle, 6, 100), (0, String::new()));
    assert_eq!(read_at(&mut kernel, level, handle, u64::MAX, 100), (0, String::new()));
    assert_eq!(read_at(&mut kernel, level, handle, 0, 100), (0, "99\n".into()));
    assert_eq!(kernel.ask(opcode::RELEASE, level, &words64(&[handle, 0, 0])).0, 0);
    assert_eq!(read_at(&mut kernel, level, handle, 0, 100).0, errno::EINVAL, "a handle that is closed");
}

/// Who reads one over and over keeps a worker from nobody.
#[test]
fn a_value_that_is_taken_anew_is_a_part_of_a_turn() {
    let (_, mut kernel, level, _) = control();
    let handle = kernel.open(level, 0).unwrap();
    let mut work_of = |offset| {
        let _turn = work::turn(work::TURN);
        assert_eq!(read_at(&mut kernel, level, handle, offset, 100).0, 0);
        work::so_far()
    };
    let (anew, further) = (work_of(0), work_of(1));
    assert!(anew >= further + u64::from(work::TURN / 4), "{anew} and {further} units");
}

#[test]
fn lines_are_read_to_their_end_an_excerpt_at_a_time() {
    let (toy, mut kernel, ..) = control();
    let lines = kernel.find("ram0/toy/lines").unwrap();
    let handle = kernel.open(lines, 0).unwrap();
    // A mount keeps 1 MiB of texts, and the last of these files is longer.
    for (count, len) in [(0, 65536), (1, 100), (LINES_SHOWN, 4096), (LINES_SHOWN + 1, 65536), (30_000, 65536)]
    {
        toy.level.store(count, Ordering::SeqCst);
        let mut text = String::new();
        loop {
            let (errno, part) = read_at(&mut kernel, lines, handle, text.len() as u64, len);
            assert!(errno == 0 && part.len() <= len as usize, "errno {errno} after {} bytes", text.len());
            if part.is_empty() {
                break;
            }
            text += &part;
        }
        let expected: String = (0..count).map(|line| format!("{line:0>39}\n")).collect();
        assert!(text == expected, "{} bytes of {count} lines", text.len());
    }
    let elsewhere = read_at(&mut kernel, lines, handle, 5, 10).0;
    assert_eq!(elsewhere, errno::ESTALE, "what was read before is gone");
}

#[test]
fn a_write_sets_the_value_and_its_refusal_is_the_errno() {
    let (toy, mut kernel, level, poke) = control();
    let handle = kernel.open(level, 1 | open_mode::TRUNC).expect("shells cut what they write to");
    let (errno, reply) = kernel.write(level, 0, b"7\n");
    assert_eq!((errno, Fields::of(&reply).u32()), (0, Some(2)));
    assert_eq!(toy.level.load(Ordering::SeqCst), 7);
    assert_eq!(kernel.write(level, 5, b"8").0, 0, "wherever it is written to");
    assert_eq!(toy.level.load(Ordering::SeqCst), 8);
    for (text, expected) in
        [(&b"bogus\n"[..], errno::EINVAL), (b"\xff", errno::EINVAL), (&[b'1'; 4097], errno::E2BIG)]
    {
        assert_eq!(kernel.write(level, 0, text).0, expected);
    }
    assert_eq!(toy.level.load(Ordering::SeqCst), 8);
    let set = [words32(&[1 << 3, 0]), words64(&[0, 0, 0])].concat();
    assert_eq!(kernel.ask(opcode::SETATTR, level, &set).0, 0, "so do shells that cut it first");
    assert_eq!(kernel.ask(opcode::FSYNC, level, &[0; 16]).0, 0);
    assert_eq!(kernel.ask(opcode::RELEASE, level, &words64(&[handle, 0, 0])).0, 0);
    assert_eq!(kernel.open(poke, 0), Err(errno::EACCES), "not even root reads it");
    assert_eq!(kernel.open(poke, 2), Err(errno::EACCES));
    assert!(kernel.open(poke, 1).is_ok());
}

#[test]
fn a_change_that_takes_long_stops_nothing_else() {
    let (toy, mut kernel, level, _) = control();
    let disk = kernel.find("ram0/disk").unwrap();
    toy.slow.store(true, Ordering::SeqCst);
    let (unique, _) = kernel.send(opcode::WRITE, level, &writing(0, b"5", 0));
    kernel.poll();
    assert!(kernel.reply().is_none() && kernel.session.takes());
    assert_eq!(kernel.read(disk, 0, 512).0, 0);
    toy.finish();
    kernel.poll();
    assert_eq!(kernel.reply().map(|(number, (errno, _))| (number, errno)), Some((unique, 0)));
    assert_eq!(toy.level.load(Ordering::SeqCst), 5);
}

/// The files of the folder that adds and removes devices.
fn class() -> (Arc<Toy>, Kernel, u64, u64) {
    let (toy, mut kernel, ..) = control();
    let [add, remove] =
        ["hot_add", "hot_remove"].map(|name| kernel.find(&format!("zram-control/{name}")).unwrap());
    (toy, kernel, add, remove)
}

#[test]
fn devices_come_and_go_by_the_files_of_a_folder() {
    let (toy, mut kernel, add, remove) = class();
    let mode = |kernel: &mut Kernel, node| {
        let (errno, reply) = kernel.ask(opcode::GETATTR, node, &[0; 16]);
        assert_eq!(errno, 0);
        Fields::of(&reply[76..]).u32().unwrap()
    };
    assert_eq!((mode(&mut kernel, add), mode(&mut kernel, remove)), (0o100_400, 0o100_200));
    let (errno, listing) = kernel.ask(opcode::READDIR, wire::ROOT, &portion(0, 4096, 0));
    assert!(errno == 0 && String::from_utf8_lossy(&listing).contains("zram-control"));
    let folder = kernel.find("zram-control").unwrap();
    let (errno, listing) = kernel.ask(opcode::READDIR, folder, &portion(0, 4096, 0));
    let listing = String::from_utf8_lossy(&listing).into_owned();
    assert!(errno == 0 && listing.contains("hot_add") && listing.contains("hot_remove"), "{listing}");
    assert_eq!((kernel.open(add, 1), kernel.open(remove, 0)), (Err(errno::EACCES), Err(errno::EACCES)));
    let handle = kernel.open(add, 0).unwrap();
    assert_eq!(read_at(&mut kernel, add, handle, 0, 100), (0, "1\n".into()));
    assert_eq!(read_at(&mut kernel, add, handle, 2, 100), (0, String::new()), "read to its end");
    assert_eq!(toy.added.load(Ordering::SeqCst), 1, "and once");
    assert_eq!(read_at(&mut kernel, add, handle, 0, 100), (0, "2\n".into()), "read again");
    for (text, errno) in [
        (&b"3\n"[..], errno::ENODEV),
        (b"0", errno::EBUSY),
        (b"-1", errno::EINVAL),
        (b"ram2", errno::EINVAL),
        (b"99999999999", errno::ERANGE),
        (b"2\n", 0),
        (b"2\n", errno::ENODEV),
        (b"1", 0),
    ] {
        assert_eq!(kernel.write(remove, 0, text).0, errno, "{text:?}");
    }
    assert_eq!(toy.added.load(Ordering::SeqCst), 0);
    toy.added.store(ADDED_MAX, Ordering::SeqCst);
    assert_eq!(read_at(&mut kernel, add, handle, 0, 100).0, errno::ENOSPC);
}

#[test]
fn a_reader_goes_on_while_a_device_is_added() {
    let (toy, mut kernel, add, _) = class();
    let handle = kernel.open(add, 0).unwrap();
    toy.slow.store(true, Ordering::SeqCst);
    let body = [words64(&[handle, 0]), words32(&[4096, wire::FOR_A_CALL]), words64(&[0, 0])].concat();
    let (unique, _) = kernel.send(opcode::READ, add, &body);
    kernel.poll();
    assert!(kernel.reply().is_none());
    assert!(kernel.find("ram0/disk").is_ok(), "others are answered");
    toy.finish();
    assert_eq!(kernel.wakes(), 1);
    kernel.poll();
    assert_eq!(kernel.reply(), Some((unique, (0, b"1\n".to_vec()))));
}

#[test]
fn without_the_folder_nothing_is_added() {
    let tree = Arc::new(Tree::new(1000, 100, 7));
    let mut kernel = Kernel::new(&tree, Config::default());
    assert_eq!(kernel.find("zram-control"), Err(errno::ENOENT));
    assert_eq!(kernel.ask(opcode::GETATTR, 1 << 16, &[0; 16]).0, errno::ENOENT);
    assert_eq!(kernel.open(1 << 16 | 1, 0), Err(errno::ENOENT));
}
