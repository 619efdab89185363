//! Readers, and what is read ahead of them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const K: u64 = 1 << 10;
const BLOCK: u64 = 4 * K;
const LIMITS: ReadaheadLimits =
    ReadaheadLimits { size: 1 << 32, window_max: 256 * K, unit: 16 * K, windows: WINDOWS_MAX };

/// Memory without end, above the policy: which blocks were read ahead, where a window begins, and what readers found.
#[derive(Default)]
struct Memory {
    policy: Readahead,
    blocks: BTreeSet<u64>,
    marks: BTreeSet<u64>,
    windows: Vec<Ahead>,
    misses: u64,
}

impl Memory {
    fn read(&mut self, first: u64, count: u64) {
        self.read_within(first, count, &LIMITS);
    }

    fn read_within(&mut self, first: u64, count: u64, limits: &ReadaheadLimits) {
        let blocks = || first..first + count;
        let missed = blocks().any(|block| !self.blocks.contains(&block));
        // All of them: the marks that a read passes are gone.
        let marked = blocks().filter(|block| self.marks.remove(block)).count() > 0;
        self.misses += u64::from(missed);
        self.blocks.extend(blocks());
        if missed || marked {
            self.policy.read(first * BLOCK..(first + count) * BLOCK, limits);
            while let Some(ahead) = self.policy.open(limits) {
                self.fill(ahead);
                self.policy.ended();
            }
        }
    }

    /// A window is read ahead.
    fn fill(&mut self, ahead: Ahead) {
        self.windows.push(ahead);
        self.marks.insert(ahead.first / BLOCK);
        ahead.pieces().for_each(|piece| self.blocks.extend(piece.start / BLOCK..piece.end.div_ceil(BLOCK)));
    }
}

#[test]
fn a_sequential_reader_misses_three_times_and_the_window_doubles() {
    let mut memory = Memory::default();
    (1000..2000).for_each(|block| memory.read(block, 1));
    assert_eq!(memory.misses, 3);
    let lens: Vec<u64> = memory.windows.iter().map(|ahead| ahead.len / K).collect();
    assert_eq!(lens[..6], [52, 128, 256, 256, 256, 256]);
    assert!(memory.windows[1..].iter().all(|ahead| ahead.first % LIMITS.unit == 0), "whole units");
    let last = memory.windows.last().unwrap();
    assert!(last.first + last.len <= 2000 * BLOCK + 2 * LIMITS.window_max, "two windows at most");
}

#[test]
fn longer_and_shorter_reads_are_one_stream() {
    let mut memory = Memory::default();
    let mut at = 500;
    for count in [1, 2, 7, 1, 30, 4, 64, 1, 1, 9] {
        memory.read(at, count);
        at += count;
    }
    assert_eq!(memory.misses, 3, "those before it is proven");
}

#[test]
fn strided_readers_are_found_upwards_and_downwards() {
    for step in [5_i64, 100, -3, -1, -200] {
        let mut memory = Memory::default();
        (0..200).for_each(|nth| memory.read((100_000 + step * nth) as u64, 1));
        assert_eq!(memory.misses, 4, "steps of {step} blocks");
        assert!(memory.windows.iter().all(|ahead| ahead.count * LIMITS.unit <= LIMITS.window_max));
    }
}

#[test]
fn eight_readers_at_once_are_told_apart() {
    let mut memory = Memory::default();
    for nth in 0..200 {
        for reader in 1..5 {
            memory.read(10_000 * reader * reader + nth, 1);
        }
    }
    for nth in 0..200 {
        for reader in 1..5 {
            memory.read(100_000 * reader + 20_000 * reader * reader + 7 * nth, 1);
        }
    }
    assert_eq!(memory.misses, 4 * 3 + 4 * 4);
}

#[test]
fn random_reads_cause_nothing() {
    let mut memory = Memory::default();
    let mut state = 7_u64;
    for _ in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        memory.read((state >> 33) % 200_000, 1);
    }
    let read = memory.windows.iter().map(|ahead| ahead.len * ahead.count).sum::<u64>() / BLOCK;
    assert!(read < 200, "{read} blocks were read ahead of 20,000 random reads");
}

#[test]
fn a_window_whose_content_left_unread_starts_over() {
    let mut memory = Memory::default();
    (0..300).for_each(|block| memory.read(block, 1));
    let last = *memory.windows.last().unwrap();
    assert_eq!(last.len, LIMITS.window_max);
    memory.policy.wasted(last.first + last.len - 1);
    let end = (last.first + last.len) / BLOCK;
    (300..end + 1).for_each(|block| memory.read(block, 1));
    assert_eq!(memory.windows.last().unwrap().len, 60 * K);
    memory.policy.wasted(10 * LIMITS.window_max);
    memory.policy.failed((end + 1) * BLOCK);
    let windows = memory.windows.len();
    memory.marks.clear();
    memory.blocks.clear();
    (end + 1..end + 3).for_each(|block| memory.read(block, 1));
    assert_eq!(memory.windows.len(), windows, "it is to be proven again");
    memory.read(end + 3, 1);
    assert_eq!(memory.windows.len(), windows + 1);
}

#[test]
fn a_stream_of_small_writes_is_expected_to_fill_large_folios() {
    // As a page cache asks: only where no folio is, and with one as large as what is expected fills.
    let (unit, largest) = (BLOCK, 2 << 20);
    let limits = ReadaheadLimits { unit, window_max: 2 * largest, ..LIMITS };
    for first in [0, 5000] {
        let (mut policy, mut folios, mut end) = (Readahead::default(), Vec::new(), first * BLOCK);
        let begin = end;
        while end < begin + (64 << 20) {
            let until = policy.until(end..end + BLOCK, &limits);
            let fits = |size: &u64| end.is_multiple_of(*size) && end + size <= until;
            let size = (0..10).map(|order| largest >> order).find(fits).unwrap();
            folios.push((end - begin, size));
            end += size;
        }
        let small = folios.iter().filter(|(at, size)| *at >= 8 << 20 && *size < largest).count();
        assert_eq!(small, 0, "{folios:?}");
    }
}

#[test]
fn nothing_is_read_ahead_when_it_is_off_or_a_piece_is_larger_than_the_window() {
    let mut memory = Memory::default();
    let off = ReadaheadLimits { window_max: 0, ..LIMITS };
    (0..100).for_each(|block| memory.read_within(block, 1, &off));
    let large = ReadaheadLimits { unit: 1 << 20, ..LIMITS };
    (0..100).for_each(|block| memory.read_within(5000 + 9 * block, 1, &large));
    assert_eq!(memory.windows, []);
}

#[test]
fn a_window_ends_with_the_device() {
    let mut memory = Memory::default();
    let blocks = LIMITS.size / BLOCK;
    (blocks - 20..blocks).for_each(|block| memory.read(block, 1));
    (0..20).rev().for_each(|block| memory.read(block, 1));
    assert_eq!(memory.misses, 3 + 4);
}

/// Three reads that follow each other, which prove a stream.
fn prove(policy: &mut Readahead, first: u64) {
    (first..first + 3).for_each(|block| policy.read(block * BLOCK..(block + 1) * BLOCK, &LIMITS));
}

#[test]
fn as_many_windows_are_under_way_as_may_be_whatever_streams_come_and_go() {
    let mut policy = Readahead::default();
    let mut open = 0;
    // At no equal distances.
    for stream in 100..1000_u64 {
        prove(&mut policy, stream * stream);
        open += std::iter::from_fn(|| policy.open(&LIMITS)).count();
    }
    assert_eq!((open, policy.under_way()), (WINDOWS_MAX, WINDOWS_MAX));
    (0..WINDOWS_MAX).for_each(|_| policy.ended());
    assert_eq!(
        std::iter::from_fn(|| policy.open(&LIMITS)).count(),
        STREAMS,
        "those that are followed are due"
    );
}

#[test]
fn a_stream_that_found_no_place_goes_on_with_the_next_that_there_is() {
    let (mut policy, one) = (Readahead::default(), ReadaheadLimits { windows: 1, ..LIMITS });
    prove(&mut policy, 0);
    policy.open(&one).expect("there is a place");
    // This one is due first, and goes on reading; others come.
    prove(&mut policy, 50_000);
    [1000, 2000, 4000, 8000].into_iter().for_each(|first| prove(&mut policy, first));
    policy.read(50_003 * BLOCK..50_004 * BLOCK, &one);
    assert_eq!(policy.open(&one), None);
    policy.ended();
    let window = policy.open(&one).expect("there is a place again");
    assert_eq!(window.first, 50_004 * BLOCK, "behind what its reader has read by now");
    let nths: Vec<u64> = std::iter::from_fn(|| {
        policy.ended();
        policy.open(&one).map(|window| window.first / BLOCK)
    })
    .collect();
    assert_eq!(nths, [1003, 2003, 4003, 8003], "in the order in which they came");
}

#[test]
fn what_a_reader_has_passed_and_what_is_of_a_stream_that_is_gone_is_not_wanted() {
    for (step, reads) in [(1, 3), (7, 4), (-1, 4), (-7, 4)] {
        let mut policy = Readahead::default();
        let read = |nth: i64| {
            let block = (100_000 + step * nth) as u64;
            block * BLOCK..(block + 1) * BLOCK
        };
        (0..reads).for_each(|nth| policy.read(read(nth), &LIMITS));
        let window = policy.open(&LIMITS).expect("it is proven");
        let wanted = |policy: &Readahead| {
            (reads..reads + 3).map(|nth| policy.wants(&window, &read(nth))).collect::<Vec<_>>()
        };
        assert_eq!(wanted(&policy), [true; 3], "steps of {step}");
        assert!(window.pieces().all(|piece| policy.wants(&window, &piece)), "steps of {step}");
        assert!(!policy.wants(&window, &read(reads - 1)), "steps of {step}");
        policy.read(read(reads + 1), &LIMITS);
        assert_eq!(wanted(&policy), [false, false, true], "steps of {step}");
        (0..STREAMS as u64 - 1).for_each(|stream| prove(&mut policy, 200_000 + 1000 * stream * stream));
        assert_eq!(wanted(&policy), [false, false, true], "steps of {step}");
        prove(&mut policy, 300_000);
        assert_eq!(wanted(&policy), [false; 3], "steps of {step}: it is gone");
        // Another stream is not taken for it.
        (0..reads).for_each(|nth| policy.read(read(nth), &LIMITS));
        policy.open(&LIMITS);
        assert_eq!(wanted(&policy), [false; 3], "steps of {step}");
    }
}

proptest! {
    /// Whatever is read: a window lies within the device, is no larger than the limit, no stream has more than two windows ahead, and no more
    /// are under way than may be. A window is wanted as long as nothing else happens.
    #[test]
    fn windows_stay_within_their_limits(
        reads in prop::collection::vec((0u64..300, 1u64..20, 0u8..6), 1..200),
        unit in prop::sample::select(vec![4 * K, 16 * K, 64 * K]),
        window_max in prop::sample::select(vec![4 * K, 60 * K, 256 * K]),
        windows in 1..WINDOWS_MAX + 1,
    ) {
        let limits = ReadaheadLimits { size: 400 * BLOCK, window_max, unit, windows };
        let (mut policy, mut at) = (Readahead::default(), 0);
        for (jump, count, kind) in reads {
            at = if kind == 0 { jump } else { at };
            let read = at * BLOCK..((at + count) * BLOCK).min(limits.size);
            at = read.end / BLOCK % 399;
            if kind == 3 {
                policy.wasted(jump * BLOCK);
            }
            if kind > 3 && policy.under_way() > 0 {
                policy.ended();
            }
            policy.read(read, &limits);
            while let Some(ahead) = policy.open(&limits) {
                prop_assert!(ahead.count > 0 && ahead.len > 0);
                prop_assert!(ahead.len * ahead.count <= window_max);
                prop_assert!(ahead.pieces().all(|piece| piece.end <= limits.size), "{ahead:?}");
                prop_assert!(ahead.pieces().all(|piece| policy.wants(&ahead, &piece)), "{ahead:?}");
            }
            for stream in &policy.streams {
                prop_assert!(stream.pattern != Pattern::Sequential || stream.ahead - stream.next <= 2 * window_max as i64);
            }
            prop_assert!(policy.under_way() <= windows);
            prop_assert!(policy.streams.len() <= STREAMS && policy.recent.len() <= RECENT);
        }
    }
}
