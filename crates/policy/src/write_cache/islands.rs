//! Used blocks between free ones: written back out of turn where no run of free blocks is long enough for a large write, so that one
//! becomes so.
//!
//! Laps free blocks where they happen to lie. Where that leaves no long run, every other batch comes from the neighbourhood of the
//! longest one instead: what lies behind it, or else before it.

use crate::write_cache::free_runs::Run;

/// What a block beside a run of free ones is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Free, or about to be.
    Free,
    /// In use, and this can be written back now.
    Leaves(u32),
    /// In use for longer.
    Stays,
}

/// Takes turns between islands and laps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Islands {
    turn: bool,
}

impl Islands {
    /// Whether it is the islands' turn: every other time.
    pub fn is_turn(&mut self) -> bool {
        self.turn = !self.turn;
        self.turn
    }
}

/// What is to leave so that `run`, the longest of free ones among `blocks` blocks, becomes `len` blocks long: at most `count_max`,
/// up to the first that stays. Nothing where the run is long enough.
pub fn around(run: Run, blocks: u32, len: u32, count_max: u32, look: impl Fn(u32) -> Neighbour) -> Vec<u32> {
    let missing = len.saturating_sub(run.len) as usize;
    let end = run.start + run.len;
    assert!(end <= blocks, "{run:?} of {blocks} blocks");
    let behind = leaving((end..blocks).take(missing), count_max, &look);
    match behind.is_empty() {
        true => leaving((0..run.start).rev().take(missing), count_max, &look),
        false => behind,
    }
}

fn leaving(way: impl Iterator<Item = u32>, count_max: u32, look: impl Fn(u32) -> Neighbour) -> Vec<u32> {
    let mut leaving = Vec::new();
    for block in way {
        match look(block) {
            Neighbour::Free => {}
            Neighbour::Leaves(what) if leaving.len() < count_max as usize => leaving.push(what),
            Neighbour::Leaves(_) | Neighbour::Stays => break,
        }
    }
    leaving
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every cache of seven blocks in three states, every run of free ones in it.
    #[test]
    fn what_leaves_lies_between_the_run_and_what_stays() {
        for world in 0..3u32.pow(7) {
            let state = |block: u32| world / 3u32.pow(block) % 3;
            let look = |block| match state(block) {
                0 => Neighbour::Free,
                1 => Neighbour::Leaves(100 + block),
                _ => Neighbour::Stays,
            };
            for (start, end) in (0..7).flat_map(|start| (start + 1..=7).map(move |end| (start, end))) {
                let run = Run { start, len: end - start };
                if (start..end).any(|block| state(block) > 0) {
                    continue;
                }
                for (len, most) in (0..9).flat_map(|len| (0..4).map(move |most| (len, most))) {
                    let found = around(run, 7, len, most, look);
                    let missing = len.saturating_sub(run.len);
                    let up = (end..7.min(end + missing)).take_while(|&block| state(block) < 2);
                    let down =
                        (start.saturating_sub(missing)..start).rev().take_while(|&block| state(block) < 2);
                    let expected = |way: &mut dyn Iterator<Item = u32>| -> Vec<u32> {
                        way.filter(|&block| state(block) == 1)
                            .take(most as usize)
                            .map(|block| 100 + block)
                            .collect()
                    };
                    let (up, down) = (expected(&mut { up }), expected(&mut { down }));
                    assert_eq!(found, if up.is_empty() { down } else { up }, "world {world} run {run:?}");
                }
            }
        }
    }

    #[test]
    fn islands_and_laps_take_turns() {
        let mut islands = Islands::default();
        assert_eq!([(); 4].map(|()| islands.is_turn()), [true, false, true, false]);
    }
}
