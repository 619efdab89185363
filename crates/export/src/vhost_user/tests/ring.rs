//! What a ring takes, and what it does not.

use super::super::memory::{GuestMemory, RegionPlace, SharedRegion};
use super::super::ring::{Broken, Ring, Segment};
use super::guest::{BASE, Guest, Heap, INDIRECT, LAYOUT, NEXT, SIZE, WRITE};

fn ring(guest: &Guest, event_index: bool) -> Ring {
    Ring::new(LAYOUT, event_index, 0, &guest.memory).unwrap()
}

fn refusal(guest: &mut Guest, head: u16) -> &'static str {
    guest.offer(head);
    let Broken(why) = ring(guest, true).take(&guest.memory).expect_err("it breaks the rules");
    why
}

#[test]
fn pieces_come_in_their_order_by_the_table_or_by_one_of_their_own() {
    let mut guest = Guest::new();
    let head = guest.chain(&[(1 << 20, 16, 0), (2 << 20, 512, 0), (3 << 20, 7, WRITE), (4 << 20, 1, WRITE)]);
    guest.offer(head);
    let table = guest.room(64);
    guest.entry(table, 0, 5 << 20, 16, NEXT, 1);
    guest.entry(table, 1, 6 << 20, 1, WRITE, 0);
    let head = guest.chain(&[(table, 32, INDIRECT)]);
    guest.offer(head);
    // The header by the queue's own table, and the rest by another.
    let head = guest.chain(&[(1 << 20, 16, 0), (table + 16, 16, INDIRECT)]);
    guest.offer(head);
    let mut ring = ring(&guest, true);
    let chain = ring.take(&guest.memory).unwrap().unwrap();
    let segments = |pieces: &[(u64, u32)]| -> Vec<Segment> {
        pieces.iter().map(|&(at, len)| Segment { at, len }).collect()
    };
    assert_eq!(chain.readable.to_vec(), segments(&[(1 << 20, 16), (2 << 20, 512)]));
    assert_eq!(chain.writable.to_vec(), segments(&[(3 << 20, 7), (4 << 20, 1)]));
    let chain = ring.take(&guest.memory).unwrap().unwrap();
    assert_eq!(chain.readable.to_vec(), segments(&[(5 << 20, 16)]));
    assert_eq!(chain.writable.to_vec(), segments(&[(6 << 20, 1)]));
    let chain = ring.take(&guest.memory).unwrap().unwrap();
    assert_eq!(chain.readable.to_vec(), segments(&[(1 << 20, 16)]));
    assert_eq!(chain.writable.to_vec(), segments(&[(6 << 20, 1)]));
    assert!(ring.take(&guest.memory).unwrap().is_none());
    assert_eq!(ring.base(), 3);
}

#[test]
fn a_chain_that_breaks_the_rules_is_not_followed() {
    let pieces = |pieces: &[(u64, u32, u16)]| {
        let mut guest = Guest::new();
        let head = guest.chain(pieces);
        refusal(&mut guest, head)
    };
    assert!(pieces(&[(BASE, 1, WRITE), (BASE, 1, 0)]).contains("comes after"));
    assert!(pieces(&[(BASE, 1, 0), (BASE, 0, INDIRECT)]).contains("table is none"));
    assert!(pieces(&[(BASE, 0, INDIRECT)]).contains("table is none"));
    assert!(pieces(&[(BASE, 17, INDIRECT)]).contains("table is none"));
    assert!(pieces(&[(BASE, 16, INDIRECT | NEXT)]).contains("table is none"));
    assert!(pieces(&[(BASE, !15, INDIRECT)]).contains("table is none"));
    assert!(pieces(&[(7, 16, INDIRECT)]).contains("not shared"));
    assert!(pieces(&[(u64::MAX - 3, 16, INDIRECT)]).contains("not shared"));
    let mut guest = Guest::new();
    assert!(refusal(&mut guest, SIZE).contains("does not have"));
    guest = Guest::new();
    guest.entry(BASE, 0, BASE, 1, NEXT, SIZE);
    assert!(refusal(&mut guest, 0).contains("table does not have"));
    guest = Guest::new();
    guest.entry(BASE, 0, BASE, 1, NEXT, 1);
    guest.entry(BASE, 1, BASE, 1, NEXT, 0);
    assert!(refusal(&mut guest, 0).contains("no end"));
    // A table of its own that names itself.
    guest = Guest::new();
    let table = guest.room(16);
    guest.entry(table, 0, table, 16, INDIRECT, 0);
    let head = guest.chain(&[(table, 16, INDIRECT)]);
    assert!(refusal(&mut guest, head).contains("names another"));
}

#[test]
fn more_than_the_queue_has_cannot_be_available() {
    let guest = Guest::new();
    guest.memory.store(LAYOUT.available + 2, SIZE + 1).unwrap();
    assert!(ring(&guest, true).take(&guest.memory).is_err());
    guest.memory.store(LAYOUT.available + 2, u16::MAX).unwrap();
    assert!(ring(&guest, true).arm(&guest.memory).is_err());
}

/// Interrupts of a driver that wants one at an entry, for so many given back from entry 0 on.
fn interrupts(wanted: u16, counts: &[u16]) -> Vec<bool> {
    let guest = Guest::new();
    guest.interrupt_at(wanted);
    let mut ring = ring(&guest, true);
    let asked = counts.iter().map(|&count| {
        (0..count).for_each(|_| ring.give_back(&guest.memory, 0, 0).unwrap());
        ring.interrupts(&guest.memory).unwrap()
    });
    asked.collect()
}

#[test]
fn a_driver_is_interrupted_for_the_entry_that_it_waits_for_and_no_other() {
    assert_eq!(interrupts(0, &[1, 1, 0]), [true, false, false]);
    assert_eq!(interrupts(2, &[1, 1, 1, 1]), [false, false, true, false]);
    assert_eq!(interrupts(2, &[5]), [true]);
    assert_eq!(interrupts(u16::MAX, &[3]), [false], "it was behind");
    let (guest, mut quiet) = (Guest::new(), Vec::new());
    let mut plain = ring(&guest, false);
    for flags in [0, 1] {
        guest.set_flags(flags);
        plain.give_back(&guest.memory, 0, 0).unwrap();
        quiet.push(plain.interrupts(&guest.memory).unwrap());
    }
    assert_eq!(quiet, [true, false], "without event indices a flag says it");
}

#[test]
fn kicks_are_asked_for_before_the_last_look() {
    let mut guest = Guest::new();
    let mut ring = ring(&guest, true);
    assert!(ring.arm(&guest.memory).unwrap());
    assert_eq!(guest.kick_at(), 0);
    guest.offer(0);
    assert!(!ring.arm(&guest.memory).unwrap(), "something came meanwhile");
    let mut plain = Ring::new(LAYOUT, false, 1, &guest.memory).unwrap();
    plain.hush(&guest.memory).unwrap();
    assert_eq!(guest.used_flags(), 1);
    assert!(plain.arm(&guest.memory).unwrap());
    assert_eq!(guest.used_flags(), 0);
}

#[test]
fn memory_in_two_regions_is_one_and_what_lies_between_is_none() {
    let mut memory = GuestMemory::default();
    let heaps = [Heap::new(64), Heap::new(64), Heap::new(64)];
    for (heap, guest) in heaps.iter().zip([100, 164, 300]) {
        let place = RegionPlace { guest, len: 64, user: guest + 1000 };
        assert!(memory.add(SharedRegion { place, memory: heap.clone() }));
    }
    let overlapping = RegionPlace { guest: 220, len: 9, user: 0 };
    assert!(!memory.add(SharedRegion { place: overlapping, memory: Heap::new(64) }));
    memory.write(160, b"12345678").unwrap();
    assert_eq!((&heaps[0].bytes()[60..], &heaps[1].bytes()[..4]), (&b"1234"[..], &b"5678"[..]));
    assert!(memory.write(99, b"1").is_err() && memory.write(224, b"123456").is_err());
    assert!(memory.write(u64::MAX, b"12").is_err() && memory.load(163).is_err() && memory.load(227).is_err());
    assert_eq!(memory.guest_address(1100 + 32, 32), Some(132));
    assert_eq!([memory.guest_address(1100, 65), memory.guest_address(99, 1)], [None; 2]);
    assert!(memory.remove(RegionPlace { guest: 300, len: 64, user: 1300 }) && memory.load(300).is_err());
}
