//! The journal beside a list of blocks.

use std::sync::Arc;

use spillway_core::buffer::Shared;
use spillway_core::random::Random;
use spillway_core::{ByteRange, Extent, IoBuf};

use super::super::journal::{Content, ReplayJournal};
use super::super::payload::Payload;

const BLOCKS: u64 = 12;

/// Of each block what it has to be sent as again, and the flushes that had begun before.
type Model = [Option<(u8, u64)>; BLOCKS as usize];

fn blocks_of(range: ByteRange) -> std::ops::Range<usize> {
    range.offset as usize..(range.offset + range.len) as usize
}

fn payload(value: u8, len: u64) -> Content {
    let buf = IoBuf::copy_of(&(0..len).map(|at| value.wrapping_add(at as u8)).collect::<Vec<_>>());
    Content::Bytes(Payload { bytes: Arc::new(Shared::new(buf, IoBuf::empty())), start: 0 })
}

fn shown(journal: &ReplayJournal) -> [Option<u8>; BLOCKS as usize] {
    let mut blocks = [None; BLOCKS as usize];
    for (range, content) in journal.entries() {
        for at in 0..range.len {
            let value = match &content {
                Content::Bytes(payload) => payload.view(range.len as usize)[at as usize],
                Content::Zeroes { .. } => 0,
            };
            let twice = blocks[(range.offset + at) as usize].replace(value);
            assert_eq!(twice, None, "two entries have block {}", range.offset + at);
        }
    }
    blocks
}

#[test]
fn entries_are_what_no_flush_has_covered() {
    let mut random = Random(1);
    for _ in 0..2000 {
        let (mut journal, mut model): (_, Model) = (ReplayJournal::default(), [None; BLOCKS as usize]);
        let (mut flushes, mut open) = (0, Vec::new());
        for _ in 0..random.below(30) {
            let start = random.below(BLOCKS);
            let range = ByteRange::new(start, 1 + random.below(BLOCKS - start));
            let blocks = blocks_of(range);
            match random.below(8) {
                0 => {
                    open.push((journal.seal(), flushes));
                    flushes += 1;
                }
                1 if !open.is_empty() => {
                    let (number, flush) = open.swap_remove(random.below(open.len() as u64) as usize);
                    drop(journal.forget(number));
                    model
                        .iter_mut()
                        .filter(|block| block.is_some_and(|(_, epoch)| epoch <= flush))
                        .for_each(|block| *block = None);
                }
                2 => {
                    drop(journal.record(range, None));
                    model[blocks].fill(None);
                }
                3 => {
                    drop(journal.record(range, Some(Content::Zeroes { _charge: Arc::new(IoBuf::empty()) })));
                    model[blocks].fill(Some((0, flushes)));
                }
                _ => {
                    let value = 1 + random.below(100) as u8;
                    drop(journal.record(range, Some(payload(value, range.len))));
                    for (at, block) in model[blocks].iter_mut().enumerate() {
                        *block = Some((value + at as u8, flushes));
                    }
                }
            }
            let values = model.map(|block| block.map(|(value, _)| value));
            assert_eq!(shown(&journal), values);
            let mut read = vec![0xee; range.len as usize];
            journal.overlay(range, &mut read);
            assert_eq!(
                read,
                values[blocks_of(range)].iter().map(|value| value.unwrap_or(0xee)).collect::<Vec<_>>()
            );
            let zero = |len| Extent { len, hole: false, zero: true };
            // The server may tell of more than it was asked about.
            let told = 1 + random.below(BLOCKS);
            let mut extents = vec![Extent::hole(told), zero(BLOCKS + 1 - told)];
            journal.overlay_extents(0, &mut extents);
            let each =
                extents.iter().flat_map(|extent| (0..extent.len).map(|_| Extent { len: 1, ..*extent }));
            let bytes =
                |at: u64| values.get(at as usize).is_some_and(|value| value.is_some_and(|value| value > 0));
            let expected = (0..=BLOCKS).map(|at| match at {
                at if bytes(at) => Extent::stored(1),
                at if at < told => Extent::hole(1),
                _ => zero(1),
            });
            assert!(each.eq(expected) && extents.iter().all(|extent| extent.len > 0), "{extents:?}");
        }
        let expected = model.iter().flatten().count() as u64;
        assert_eq!(journal.bytes(), expected);
    }
}

/// The pieces that remain share the memory of the whole.
#[test]
fn zeroes_that_are_cut_to_pieces_fill_the_journal() {
    let (mut journal, mut flushes) = (ReplayJournal::new(1 << 20), 0);
    let zeroes = Content::Zeroes { _charge: Arc::new(IoBuf::empty()) };
    drop(journal.record(ByteRange::new(0, 1 << 30), Some(zeroes.clone())));
    for number in 0..100_000 {
        if journal.is_full() {
            let flush = journal.seal();
            drop(journal.forget(flush));
            drop(journal.record(ByteRange::new(0, 1 << 30), Some(zeroes.clone())));
            flushes += 1;
        }
        drop(journal.record(ByteRange::new(number * 1024, 512), None));
        assert!(journal.entries().len() <= 256, "{} entries for 256 pages", journal.entries().len());
    }
    assert!(flushes > 300, "{flushes} flushes");
}
