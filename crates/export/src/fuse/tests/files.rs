//! Names, sizes, opening, and what a disk file does.

use super::super::wire::{FOR_A_CALL, Fields, ROOT};
use super::*;
use spillway_core::random::Random;
use spillway_core::session::Peer;
use spillway_core::{Kind, Op};

const PAGE: usize = 4096;

fn number_at(reply: &[u8], offset: usize) -> u64 {
    Fields::of(&reply[offset..]).u64().unwrap()
}

#[test]
fn versions_are_agreed_on_and_old_kernels_are_refused() {
    let (_, _, tree, _) = mounted();
    let mut kernel = Kernel::new(&tree, Config::default());
    let all = words32(&[7, 45, 65536, u32::MAX]);
    let (errno, reply) = kernel.ask(opcode::INIT, 0, &all);
    assert_eq!((errno, reply.len()), (0, 64));
    let mut fields = Fields::of(&reply);
    let words: Vec<u32> = std::iter::from_fn(|| fields.u32()).collect();
    assert_eq!(words[..3], [7, 31, 65536]);
    assert_ne!(words[3] & init_flag::ASYNC_DIO, 0);
    assert_eq!((words[5], words[7] & 0xffff), (1 << 20, 256), "payloads and pages of a message");
    assert_eq!(kernel.ask(opcode::INIT, 0, &words32(&[7, 27, 0, u32::MAX])).0, errno::EPROTO);
    assert_eq!(kernel.ask(opcode::INIT, 0, &words32(&[7, 31, 0, 0])).0, errno::EPROTO, "short messages only");
    let (errno, reply) = kernel.ask(opcode::INIT, 0, &words32(&[8, 0]));
    assert_eq!((errno, Fields::of(&reply).u32()), (0, Some(7)), "a later major version asks again");
}

#[test]
fn a_mount_lists_its_devices_and_each_has_a_disk() {
    let (_, _, tree, mut kernel, disk) = reading();
    let list = |kernel: &mut Kernel, node| {
        let (mut names, mut from) = (Vec::new(), 0);
        loop {
            // Room for two entries at a time.
            let (errno, reply) = kernel.ask(opcode::READDIR, node, &portion(from, 64, 0));
            assert_eq!(errno, 0);
            if reply.is_empty() {
                return names;
            }
            let mut at = 0;
            while at < reply.len() {
                let len = Fields::of(&reply[at + 16..]).u32().unwrap() as usize;
                names.push(String::from_utf8(reply[at + 24..at + 24 + len].to_vec()).unwrap());
                from = number_at(&reply, at + 8);
                at += (24 + len).next_multiple_of(8);
            }
        }
    };
    assert_eq!(list(&mut kernel, ROOT), [".", "..", "ram0", "zram-control"]);
    let folder = kernel.find("ram0").unwrap();
    assert_eq!(list(&mut kernel, folder), [".", "..", "disk", "toy"]);
    for (node, expected) in [(disk, errno::ENOTDIR), (99, errno::ENOENT), (disk + 1, errno::ENOENT)] {
        assert_eq!(kernel.ask(opcode::READDIR, node, &portion(0, 4096, 0)).0, expected);
    }
    assert_eq!(kernel.find("ram1"), Err(errno::ENOENT));
    assert_eq!(kernel.find("ram0/disc"), Err(errno::ENOENT));
    tree.remove("ram0").unwrap();
    assert_eq!(kernel.find("ram0"), Err(errno::ENOENT));
    assert_eq!(kernel.read(disk, 0, 512).0, errno::ENOENT);
    assert_eq!(list(&mut kernel, ROOT), [".", "..", "zram-control"], "devices can be added");
}

#[test]
fn the_file_is_as_large_as_the_device_is_now_and_belongs_to_the_servers_user() {
    let (device, _, _, mut kernel, disk) = reading();
    let (errno, reply) = kernel.ask(opcode::GETATTR, disk, &[0; 16]);
    assert_eq!((errno, reply.len()), (0, 104));
    assert_eq!((number_at(&reply, 0), number_at(&reply, 24)), (0, SIZE), "kept for no time");
    let mut fields = Fields::of(&reply[16 + 60..]);
    assert_eq!((fields.u32(), fields.u32()), (Some(0o100_600), Some(1)));
    assert_eq!((fields.u32(), fields.u32()), (Some(1000), Some(100)));
    device.change(|geometry| geometry.size *= 2);
    assert_eq!(number_at(&kernel.ask(opcode::GETATTR, disk, &[0; 16]).1, 24), 2 * SIZE);
    device.change(|geometry| geometry.read_only = true);
    let reply = kernel.ask(opcode::GETATTR, disk, &[0; 16]).1;
    assert_eq!(Fields::of(&reply[76..]).u32(), Some(0o100_400));
}

#[test]
fn an_open_file_is_a_client_and_holds_the_device() {
    let (device, export, tree, mut kernel, disk) = reading();
    let handle = kernel.open(disk, 2).unwrap();
    assert_eq!(export.clients(), 1);
    assert!(export.reserve().is_err(), "no reset under an open file");
    let openers = tree.remove("ram0").unwrap_err();
    assert_eq!((openers.len(), openers[0].thread, openers[0].device.as_str()), (1, 77, "ram0"));
    assert_eq!(kernel.ask(opcode::RELEASE, disk, &words64(&[handle, 0, 0])).0, 0);
    let Ok(reserved) = export.reserve() else { panic!("the last client has left") };
    assert_eq!(kernel.open(disk, 0), Err(errno::EBUSY), "during a reset");
    drop(reserved);
    device.change(|geometry| geometry.size = 0);
    assert_eq!(kernel.open(disk, 0), Err(errno::ENOMEDIUM));
    assert_eq!(export.clients(), 0);
}

#[test]
fn a_closed_export_is_opened_no_more_and_open_files_go_on() {
    let (_, export, _, mut kernel, disk) = reading();
    kernel.open(disk, 2).unwrap();
    export.close();
    assert_eq!(kernel.open(disk, 0), Err(Kind::ShuttingDown.errno()));
    assert_eq!((kernel.read(disk, 0, 512).0, export.clients()), (0, 1));
}

#[test]
fn what_nobody_will_close_is_closed_with_the_last_session() {
    let (_, export, tree, mut kernel, disk) = reading();
    let control = kernel.find("ram0/toy/level").unwrap();
    let other = Kernel::new(&tree, Config::default());
    kernel.open(disk, 2).unwrap();
    kernel.open(control, 0).unwrap();
    drop(other);
    assert_eq!(export.clients(), 1);
    drop(kernel);
    assert_eq!(export.clients(), 0);
    assert!(tree.remove("ram0").is_ok());
}

#[test]
fn a_device_that_is_taken_away_is_kept_by_no_session() {
    let (_, export, tree, mut kernel, disk) = reading();
    assert_eq!(kernel.read(disk, 0, 512).0, 0);
    let gone = Arc::downgrade(&export);
    drop(export);
    assert!(tree.remove("ram0").is_ok());
    assert!(gone.upgrade().is_none(), "it is kept by a session that is asked nothing");
    assert_eq!(kernel.read(disk, 0, 512).0, errno::ENOENT);
}

#[test]
fn a_device_that_is_held_has_one_client_until_that_leaves() {
    let (_, export, tree, mut kernel, disk) = reading();
    let hold = || tree.hold("ram0", THREAD);
    assert_eq!(hold(), Err(Kind::NotFound), "nobody is there to hold it");
    let first = kernel.open(disk, 2).unwrap();
    let second = kernel.open(disk, 0).unwrap();
    assert_eq!(hold(), Err(Kind::Busy), "two cannot hold it");
    kernel.ask(opcode::RELEASE, disk, &words64(&[second, 0, 0]));
    assert_eq!(hold(), Ok(()));
    assert_eq!(hold(), Err(Kind::Busy), "it is held");
    assert_eq!(export.clients(), 1);
    assert_eq!(kernel.open(disk, 0), Err(errno::EBUSY));
    assert!(export.reserve().is_err());
    kernel.ask(opcode::RELEASE, disk, &words64(&[first, 0, 0]));
    assert_eq!(export.clients(), 0);
    assert!(kernel.open(disk, 0).is_ok() && kernel.open(disk, 0).is_ok(), "it is held no longer");
    assert_eq!(export.clients(), 2);
}

#[test]
fn a_device_is_held_by_who_opened_its_file_and_by_no_other_client() {
    let (_, export, tree, mut kernel, disk) = reading();
    let elsewhere = export.connect(Peer::Unknown).expect("another protocol's client");
    assert_eq!(tree.hold("ram0", THREAD), Err(Kind::NotFound), "it is not the one client's");
    let handle = kernel.open(disk, 2).unwrap();
    assert_eq!(tree.hold("ram0", THREAD), Err(Kind::Busy), "it is not alone");
    drop(elsewhere);
    assert_eq!(tree.hold("ram0", THREAD + 1), Err(Kind::NotFound), "another program has it open");
    assert_eq!(tree.hold("other", THREAD), Err(Kind::NotFound));
    assert_eq!(tree.hold("ram0", THREAD), Ok(()));
    kernel.ask(opcode::RELEASE, disk, &words64(&[handle, 0, 0]));
    assert_eq!(tree.hold("ram0", THREAD), Err(Kind::NotFound), "it is closed");
}

#[test]
fn a_disk_keeps_its_size_and_its_name() {
    let (_, _, _, mut kernel, disk) = reading();
    assert_eq!(kernel.open(disk, 1 | open_mode::TRUNC), Err(errno::EPERM));
    let set = |wanted: u32, size: u64| [words32(&[wanted, 0]), words64(&[0, size, 0])].concat();
    assert_eq!(kernel.ask(opcode::SETATTR, disk, &set(1 << 3, 0)).0, errno::EPERM);
    assert_eq!(kernel.ask(opcode::SETATTR, disk, &set(1 << 3, SIZE + 1)).0, errno::EPERM);
    assert_eq!(kernel.ask(opcode::SETATTR, disk, &set(1 << 3, SIZE)).0, 0, "changes nothing");
    assert_eq!(kernel.ask(opcode::SETATTR, disk, &set(1 << 4 | 1 << 5, 0)).0, 0, "times are not kept");
    assert_eq!(kernel.ask(opcode::SETATTR, disk, &set(1, 0)).0, errno::EPERM, "nor is a mode changed");
    for opcode in [opcode::CREATE, opcode::MKNOD, opcode::MKDIR, opcode::UNLINK, opcode::RENAME2] {
        assert_eq!(kernel.ask(opcode, disk, b"x\0").0, errno::EPERM);
    }
}

#[test]
fn a_device_that_is_only_read_opens_for_readers() {
    let device = TestDevice::new(SIZE);
    device.change(|geometry| geometry.read_only = true);
    let (_, _, _, mut kernel, disk) = reading_from(device);
    assert_eq!(kernel.open(disk, 1), Err(errno::EROFS));
    assert!(kernel.open(disk, 0).is_ok());
    assert_eq!(kernel.write(disk, 0, &[1; 512]).0, errno::EROFS);
}

#[test]
fn any_bytes_are_written_and_read() {
    let (device, _, _, mut kernel, disk) = reading();
    let mut random = Random(5);
    let mut model = vec![0u8; SIZE as usize];
    for round in 0..400 {
        let longest = [10, 1000, 9000, 300_000][round % 4];
        let offset = random.below(SIZE);
        let len = random.below(longest).min(SIZE - offset) as usize;
        let range = offset as usize..offset as usize + len;
        match random.below(4) {
            0 | 1 => {
                let data: Vec<u8> = (0..len).map(|at| (at as u64 ^ random.0) as u8).collect();
                random.draw();
                model[range].copy_from_slice(&data);
                let (errno, reply) = kernel.write(disk, offset, &data);
                assert_eq!((errno, Fields::of(&reply).u32()), (0, Some(len as u32)));
            }
            2 => {
                model[range].fill(0);
                let mode = [fallocate_mode::PUNCH_HOLE, fallocate_mode::ZERO_RANGE][round % 2];
                let body = [words64(&[1, offset, len as u64]), words32(&[mode | 1, 0])].concat();
                assert_eq!(kernel.ask(opcode::FALLOCATE, disk, &body).0, 0);
            }
            _ => assert_eq!(kernel.read(disk, offset, len as u32), (0, model[range].to_vec())),
        }
    }
    assert!(kernel.read(disk, 0, SIZE as u32) == (0, model));
    assert!(device.log().iter().any(|(op, ..)| *op == Op::WriteZeroes), "holes are not written");
}

#[test]
fn the_end_of_the_file_is_the_end_of_the_device() {
    let (_, _, _, mut kernel, disk) = reading();
    assert_eq!(kernel.read(disk, SIZE, 512), (0, Vec::new()));
    assert_eq!(kernel.read(disk, u64::MAX, 512), (0, Vec::new()));
    assert_eq!(kernel.read(disk, SIZE - 10, 512), (0, vec![0; 10]));
    let (errno, reply) = kernel.write(disk, SIZE - 10, &[1; 512]);
    assert_eq!((errno, Fields::of(&reply).u32()), (0, Some(10)), "what fits is written");
    assert_eq!(kernel.write(disk, SIZE, &[1]).0, errno::ENOSPC);
    assert_eq!(kernel.write(disk, u64::MAX, &[1]).0, errno::ENOSPC);
    let zero = |offset: u64, len: u64, mode: u32| [words64(&[1, offset, len]), words32(&[mode, 0])].concat();
    let mut fallocate = |body: Vec<u8>| kernel.ask(opcode::FALLOCATE, disk, &body).0;
    assert_eq!(fallocate(zero(SIZE - 4096, 8192, fallocate_mode::ZERO_RANGE)), errno::ENOSPC);
    assert_eq!(fallocate(zero(SIZE - 4096, 8192, fallocate_mode::ZERO_RANGE | 1)), 0);
    assert_eq!(fallocate(zero(SIZE * 2, 8192, fallocate_mode::PUNCH_HOLE | 1)), 0);
    assert_eq!(fallocate(zero(u64::MAX, 2, fallocate_mode::PUNCH_HOLE | 1)), errno::EINVAL);
    assert_eq!(fallocate(zero(0, 4096, 0)), errno::EOPNOTSUPP, "room is not reserved");
    assert_eq!(fallocate(zero(0, 4096, 8 | 1)), errno::EOPNOTSUPP, "nor are ranges cut out");
}

#[test]
fn holes_are_punched_only_where_that_costs_nothing() {
    let (device, _, _, mut kernel, disk) = reading();
    device.change(|geometry| geometry.fast_zeroes = false);
    let body = |mode: u32| [words64(&[1, 0, 4096]), words32(&[mode | 1, 0])].concat();
    assert_eq!(kernel.ask(opcode::FALLOCATE, disk, &body(fallocate_mode::PUNCH_HOLE)).0, errno::EOPNOTSUPP);
    assert!(device.log().is_empty());
    assert_eq!(kernel.ask(opcode::FALLOCATE, disk, &body(fallocate_mode::ZERO_RANGE)).0, 0);
    assert_eq!(device.log()[0].0, Op::WriteZeroes);
}

#[test]
fn data_and_holes_are_found() {
    let (_, _, _, mut kernel, disk) = reading();
    let page = PAGE as u64;
    kernel.write(disk, 3 * page, &[1; 2 * PAGE]);
    let mut seek = |offset: u64, whence: u32| {
        let body = [words64(&[1, offset]), words32(&[whence, 0])].concat();
        match kernel.ask(opcode::LSEEK, disk, &body) {
            (0, reply) => Ok(number_at(&reply, 0)),
            (errno, _) => Err(errno),
        }
    };
    assert_eq!(seek(0, whence::DATA), Ok(3 * page));
    assert_eq!(seek(3 * page + 5, whence::DATA), Ok(3 * page + 5));
    assert_eq!(seek(5 * page, whence::DATA), Err(errno::ENXIO));
    assert_eq!(seek(5, whence::HOLE), Ok(5));
    assert_eq!(seek(3 * page, whence::HOLE), Ok(5 * page));
    assert_eq!(seek(SIZE - 1, whence::HOLE), Ok(SIZE - 1));
    assert_eq!(seek(SIZE, whence::HOLE), Err(errno::ENXIO));
    assert_eq!(seek(0, 0), Err(errno::EINVAL));
}

#[test]
fn flushes_and_durable_writes_reach_the_device() {
    let (device, _, _, mut kernel, disk) = reading();
    assert_eq!(kernel.ask(opcode::FSYNC, disk, &[0; 16]).0, 0);
    let body = writing(0, &[1; PAGE], open_mode::DSYNC);
    assert_eq!(kernel.ask(opcode::WRITE, disk, &body).0, 0);
    kernel.write(disk, 0, &[1; PAGE]);
    let log: Vec<_> = device.log().into_iter().map(|(op, _, fua)| (op, fua)).collect();
    assert_eq!(log, [(Op::Flush, false), (Op::Write, true), (Op::Write, false)]);
}

#[test]
fn zeroes_are_durable_where_their_file_was_opened_so() {
    let (device, _, _, mut kernel, disk) = reading();
    let [durable, plain] =
        [open_mode::DSYNC, 0].map(|mode| kernel.open(disk, 2 | mode).expect("it is opened"));
    for (handle, mode) in [(durable, fallocate_mode::ZERO_RANGE), (plain, fallocate_mode::PUNCH_HOLE)] {
        let body = [words64(&[handle, 0, 4096]), words32(&[mode | 1, 0])].concat();
        assert_eq!(kernel.ask(opcode::FALLOCATE, disk, &body).0, 0);
    }
    let log: Vec<_> = device.log().into_iter().map(|(op, _, fua)| (op, fua)).collect();
    assert_eq!(log, [(Op::WriteZeroes, true), (Op::WriteZeroes, false)]);
}

#[test]
fn failures_of_the_device_reach_the_program() {
    let (device, export, _, mut kernel, disk) = reading();
    for (kind, errno) in [(Kind::Io, 5), (Kind::NoSpace, 28), (Kind::ShuttingDown, 108)] {
        device.fail(Some(kind));
        assert_eq!(kernel.write(disk, 0, &[1; PAGE]).0, errno);
        assert_eq!(kernel.read(disk, 0, 512).0, errno);
        assert_eq!(kernel.ask(opcode::FSYNC, disk, &[0; 16]).0, errno);
    }
    device.fail(None);
    kernel.write(disk, 0, &[1; 100]);
    let counts = export.statistics();
    assert_eq!((counts.errors, counts.writes, counts.write_bytes), (9, 1, 100));
}

/// It is for no call that reads: the kernel would keep what it shows, whatever another client writes since.
#[test]
fn what_would_fill_the_kernel_s_page_cache_is_not_read() {
    let (_, _, tree, _) = mounted();
    let mut kernel = Kernel::new(&tree, Config::default());
    for path in ["ram0/disk", "ram0/toy/level"] {
        let file = kernel.find(path).unwrap();
        assert_eq!(kernel.open(file, 0), Ok(1));
        for (flags, expected) in [(0, errno::EINVAL), (FOR_A_CALL, 0)] {
            let answered = kernel.ask(opcode::READ, file, &portion_with(0, 4096, 0, flags));
            assert_eq!(answered.0, expected, "{path}");
        }
    }
}
