//! The blocks of a folio against a model, and in small worlds.

use super::*;
use proptest::prelude::*;

/// Blocks as four booleans each.
#[derive(Clone, Debug)]
struct Plain(Vec<[bool; PLANES]>);

impl Plain {
    fn each(&mut self, range: Range<u32>, change: impl FnMut(&mut [bool; PLANES])) {
        self.0[range.start as usize..range.end as usize].iter_mut().for_each(change);
    }

    fn count(&self, plane: Plane) -> u32 {
        self.0.iter().filter(|block| block[plane as usize]).count() as u32
    }

    /// The run from `start` on of blocks of which `is` holds, within `end`.
    fn run(&self, start: u32, end: u32, is: impl Fn(&[bool; PLANES]) -> bool) -> Range<u32> {
        let len = (start..end).take_while(|&at| is(&self.0[at as usize])).count() as u32;
        start..start + len
    }
}

fn agree(state: &FolioState, plain: &Plain) {
    for (at, block) in (0..).zip(&plain.0) {
        let words = state.words(at / BITS);
        let found = words.map(|word| word >> (at % BITS) & 1 == 1);
        assert_eq!(&found, block, "block {at}");
    }
    let unsaved = (plain.count(Plane::Dirty), plain.count(Plane::Writeback));
    assert_eq!((state.unsaved(), state.count(Plane::Valid)), (unsaved, plain.count(Plane::Valid)));
    let busy = |block: &[bool; PLANES]| block[1] || block[2] || block[3];
    assert_eq!(state.is_idle(), !plain.0.iter().any(busy));
    let uniform =
        [true, false].map(|dirty| plain.0.iter().all(|block| *block == [true, dirty, false, false]));
    assert_eq!(
        !uniform.contains(&true),
        !matches!(state.0, Bits::Clean(_) | Bits::Dirty(_)),
        "state is kept where blocks differ"
    );
    let covered: Vec<u32> = state.unsaved_runs(0..state.blocks()).flatten().collect();
    let expected: Vec<u32> =
        (0..state.blocks()).filter(|&at| plain.0[at as usize][1] || plain.0[at as usize][2]).collect();
    assert_eq!(covered, expected);
}

proptest! {
    #[test]
    fn any_history_agrees_with_an_array(
        blocks in prop::sample::select(vec![1u32, 2, 16, 17, 63, 64, 65, 130, 512]),
        steps in prop::collection::vec((0u8..6, any::<u32>(), 1u32..80, any::<bool>()), 1..80),
    ) {
        let (mut state, mut plain) = (FolioState::new(blocks), Plain(vec![[false; PLANES]; blocks as usize]));
        agree(&state, &plain);
        for (kind, start, len, landed) in steps {
            let start = start % blocks;
            let range = start..blocks.min(start + len);
            match kind {
                0 => {
                    let before = plain.count(Plane::Dirty);
                    plain.each(range.clone(), |block| *block = [true, true, block[2], false]);
                    prop_assert_eq!(state.write(range), plain.count(Plane::Dirty) - before);
                }
                1 => {
                    let run = plain.run(start, range.end, |block| !block[0] && !block[3]);
                    if !run.is_empty() {
                        prop_assert_eq!(state.look(range), (Look::Missing, run.end));
                        plain.each(run.clone(), |block| block[3] = true);
                        state.begin_read(run);
                    }
                }
                2 => {
                    let fills: Vec<u32> = state.reading(range.clone()).flatten().collect();
                    let expected: Vec<u32> = range.clone().filter(|&at| plain.0[at as usize][3]).collect();
                    prop_assert_eq!(fills, expected);
                    plain.each(range.clone(), |block| {
                        block[0] |= block[3] && landed;
                        block[3] = false;
                    });
                    state.end_read(range, landed);
                }
                3 => {
                    let run = plain.run(start, range.end, |block| block[1] && !block[2]);
                    if !run.is_empty() {
                        plain.each(run.clone(), |block| (block[1], block[2]) = (false, true));
                        state.begin_writeback(run);
                    }
                }
                4 => {
                    let (run, before) = (plain.run(start, range.end, |block| block[2]), plain.count(Plane::Dirty));
                    if !run.is_empty() {
                        plain.each(run.clone(), |block| (block[1], block[2]) = (block[1] || !landed, false));
                        let dirtied = state.end_writeback(run, landed);
                        prop_assert_eq!(dirtied, plain.count(Plane::Dirty) - before);
                    }
                }
                _ => {
                    let (run, before) = (plain.run(start, range.end, |block| !block[2] && !block[3]), plain.count(Plane::Dirty));
                    if !run.is_empty() {
                        plain.each(run.clone(), |block| (block[0], block[1]) = (false, false));
                        prop_assert_eq!(state.forget(run), before - plain.count(Plane::Dirty));
                    }
                }
            }
            agree(&state, &plain);
        }
    }
}

#[test]
fn one_block_of_a_large_folio_is_one_run() {
    let mut state = FolioState::new(512);
    state.begin_read(0..512);
    state.end_read(0..512, true);
    assert_eq!(state.0, Bits::Clean(512));
    assert_eq!(state.write(300..301), 1);
    assert_eq!((state.dirty_runs().next(), state.dirty_runs().count()), (Some(300..301), 1));
}

#[test]
fn every_second_block_is_a_run_of_its_own() {
    let mut state = FolioState::new(130);
    (0..130).step_by(2).for_each(|at| assert_eq!(state.write(at..at + 1), 1));
    assert_eq!(state.dirty_runs().count(), 65);
    assert!(state.dirty_runs().all(|run| run.len() == 1));
}

#[test]
fn a_write_while_a_read_is_under_way_is_not_filled_over() {
    let mut state = FolioState::new(16);
    state.begin_read(0..16);
    state.write(4..6);
    assert_eq!(state.reading(0..16).collect::<Vec<_>>(), [0..4, 6..16]);
    state.end_read(0..16, true);
    assert_eq!((state.count(Plane::Valid), state.unsaved()), (16, (2, 0)));
}

#[test]
fn a_block_dirtied_while_it_is_written_back_stays_dirty() {
    let mut state = FolioState::new(16);
    state.write(0..16);
    state.begin_writeback(0..16);
    assert_eq!(state.write(3..5), 2);
    assert_eq!((state.end_writeback(0..16, true), state.unsaved()), (0, (2, 0)));
    state.begin_writeback(3..5);
    assert_eq!((state.end_writeback(3..5, false), state.unsaved()), (2, (2, 0)));
}

#[test]
#[should_panic(expected = "once at a time")]
fn no_block_is_written_back_twice_at_a_time() {
    let mut state = FolioState::new(4);
    state.write(0..4);
    state.begin_writeback(0..4);
    state.write(0..1);
    state.begin_writeback(0..1);
}
