//! Answers that take their time, and limits.

use super::super::config::PAYLOAD_OFFSET;
use super::kernel::message;
use super::*;
use spillway_core::buffer::bytes_for;
use spillway_core::exchange::Exchange;
use spillway_core::work;

#[test]
fn requests_are_answered_in_the_order_of_the_answers_and_wake_the_reader() {
    let (device, _, _, mut kernel, disk) = reading();
    device.hold();
    let (first, kept) = kernel.send(opcode::WRITE, disk, &writing(0, &[1; 65536], 0));
    assert!(kept, "a large payload stays where it is");
    let (second, kept) = kernel.send(opcode::WRITE, disk, &writing(0, &[2; 4096], 0));
    assert!(!kept, "a small one is copied");
    kernel.poll();
    assert_eq!((kernel.session.pending(), kernel.wakes()), (2, 0));
    assert!(kernel.reply().is_none());
    device.release(2);
    assert_eq!(kernel.wakes(), 1);
    kernel.poll();
    let answered = [kernel.reply().unwrap(), kernel.reply().unwrap()];
    assert_eq!(answered.map(|(unique, (errno, _))| (unique, errno)), [(first, 0), (second, 0)]);
    assert_eq!(kernel.session.pending(), 0);
}

#[test]
fn what_is_pending_is_limited_and_a_request_beyond_waits_for_its_buffer() {
    let (device, _, tree, _, disk) = reading();
    let held_bytes_max = 4 * bytes_for(32768) + 16384;
    let mut kernel = Kernel::new(&tree, Config { held_bytes_max });
    device.hold();
    let mut sent = 0;
    while kernel.session.takes() {
        kernel.send(opcode::READ, disk, &portion(0, 32768, 0));
        kernel.poll();
        sent += 1;
        assert!(sent < 10, "nothing limits the session");
    }
    assert_eq!((sent, kernel.session.pending()), (5, 5), "four hold buffers, and one waits");
    for round in 0..5 {
        device.release(1);
        kernel.poll();
        let (_, (errno, data)) = kernel.reply().unwrap_or_else(|| panic!("answer {round}"));
        assert_eq!((errno, data.len()), (0, 32768));
    }
    assert!(kernel.session.takes() && kernel.session.pending() == 0);
}

#[test]
fn what_waits_for_a_buffer_is_written_as_it_was() {
    let (device, _, tree, _, disk) = reading();
    let mut kernel = Kernel::new(&tree, Config { held_bytes_max: 65536 });
    device.hold();
    kernel.send(opcode::READ, disk, &portion(0, 65536, 0));
    let (_, kept) = kernel.send(opcode::WRITE, disk, &writing(8192, &[9; 4096], 0));
    assert!(kept && !kernel.session.takes(), "the message itself waits");
    kernel.poll();
    assert!(kernel.session.returned().is_none(), "it still waits");
    device.release(1);
    kernel.poll();
    assert!(kernel.session.returned().is_some() && kernel.session.takes(), "it is copied by now");
    assert!(kernel.session.returned().is_none());
    device.release(1);
    kernel.poll();
    assert_eq!(kernel.session.pending(), 0);
    while kernel.reply().is_some() {}
    device.release(1);
    assert_eq!(kernel.read(disk, 8190, 4).1, [0, 0, 9, 9]);
}

/// The device writes from the buffer that the kernel's message was read into.
#[test]
fn the_buffer_of_a_message_is_lent_to_the_device() {
    let (device, _, _, mut kernel, disk) = reading();
    let message = message(opcode::WRITE, disk, 1, &writing(0, &[7; 65536], 0));
    let payload = message[PAYLOAD_OFFSET..].as_ptr() as usize;
    assert!(kernel.session.receive(message, false).is_none());
    assert_eq!(device.written_from(), payload);
}

/// A device that never answers keeps no buffer that a driver needs for the next message.
#[test]
fn the_last_buffer_is_not_kept_for_a_device() {
    let (device, _, tree, mut kernel, disk) = reading();
    kernel.last = true;
    device.hold();
    let (_, kept) = kernel.send(opcode::WRITE, disk, &writing(0, &[1; 65536], 0));
    assert!(!kept && kernel.session.takes(), "it is copied");
    let mut full = Kernel::new(&tree, Config { held_bytes_max: 65536 });
    full.last = true;
    full.send(opcode::READ, disk, &portion(0, 65536, 0));
    let (_, kept) = full.send(opcode::WRITE, disk, &writing(65536, &[9; 65536], 0));
    assert!(kept && !full.session.takes(), "nothing is taken without it");
    full.poll();
    device.release(2);
    full.poll();
    assert!(full.session.takes() && full.session.returned().is_some());
}

/// A look covers 256 KiB of the test device, four units of work.
#[test]
fn a_search_for_holes_goes_on_in_the_next_turn() {
    let (device, _, _, mut kernel, disk) = reading();
    kernel.write(disk, 0, &[1; SIZE as usize]);
    let body = [words64(&[1, 0]), words32(&[whence::HOLE, 0])].concat();
    let turn = work::turn(work::REQUEST + 1);
    let (unique, _) = kernel.send(opcode::LSEEK, disk, &body);
    drop(turn);
    assert_eq!((device.looks(), kernel.reply()), (1, None));
    for looks in 2..=4 {
        let _turn = work::turn(1);
        kernel.poll();
        assert_eq!((device.looks(), kernel.reply()), (looks, None));
    }
    kernel.poll();
    assert_eq!(kernel.reply(), Some((unique, (0, words64(&[SIZE])))));
}

#[test]
fn a_hung_up_session_has_withdrawn_everything() {
    let (device, export, _, mut kernel, disk) = reading();
    device.hold();
    kernel.send(opcode::WRITE, disk, &writing(0, &[1; 4096], 0));
    kernel.poll();
    kernel.session.hang_up();
    device.release(10);
    kernel.poll();
    assert!(kernel.reply().is_none() && kernel.session.pending() == 0);
    assert!(device.log().is_empty(), "a withdrawn write reached the device");
    assert_eq!(export.statistics().writes, 0);
}
