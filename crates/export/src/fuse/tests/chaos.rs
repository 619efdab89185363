//! Messages that no kernel sends.

use super::kernel::message;
use super::*;
use spillway_core::IoBuf;
use spillway_core::exchange::Exchange;
use spillway_core::random::Random;

/// Every operation on every node with a body of any length and content has one answer at most, and the next is understood.
#[test]
fn any_body_is_survived() {
    let (_, export, _, mut kernel, disk) = reading();
    let control = kernel.find("ram0/toy/level").unwrap();
    let nodes = [0, 1, disk - 1, disk, disk + 1, control - 1, control, u64::MAX];
    let mut random = Random(1);
    for _ in 0..20_000 {
        let len = random.below(60) as usize;
        let numbers = [0, 1, 4096, SIZE, u64::MAX, random.draw()];
        let body: Vec<u8> =
            (0..8).flat_map(|_| numbers[random.below(6) as usize].to_ne_bytes()).take(len).collect();
        let node = nodes[random.below(8) as usize];
        let (unique, _) = kernel.send(random.below(55) as u32, node, &body);
        kernel.poll();
        if let Some((answered, _)) = kernel.reply() {
            assert_eq!(answered, unique);
        }
        assert!(kernel.reply().is_none());
    }
    assert_eq!(kernel.read(disk, 0, 512).1.len(), 512);
    assert!(export.clients() <= 1024, "open files are limited");
}

#[test]
fn a_message_that_is_not_as_long_as_it_says_is_dropped() {
    let (_, _, _, mut kernel, disk) = reading();
    let mut short = message(opcode::GETATTR, disk, 1, &[0; 16]);
    let len = short.len();
    short.narrow(0, len - 1);
    for odd in [short, IoBuf::copy_of(&[0; 39]), IoBuf::copy_of(&[0; 40]), IoBuf::empty()] {
        assert!(kernel.session.receive(odd, false).is_some());
        assert!(kernel.reply().is_none());
    }
}
