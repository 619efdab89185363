//! Used blocks between free ones: copied out where no run of free blocks is long enough for a large write, so that one becomes so.
//!
//! The sweep frees blocks where they happen to lie. Where that leaves no long run, every other batch comes from the neighbourhood of
//! the longest one instead: what lies behind it in the cache, or else before it.

use super::block::Stage;
use super::block::Victim;
use super::index::Index;

impl Index {
    /// Up to `count_max` versions around the longest run of free blocks, if that is shorter than `len`: each list is of consecutive
    /// blocks of the origin, marked and pinned. Every other time there are none.
    pub(super) fn take_island(&mut self, len: u32, count_max: u32) -> Vec<Vec<Victim>> {
        self.island_next = !self.island_next;
        let Some(run) = self.free.longest_run().filter(|run| run.len < len && self.island_next) else {
            return Vec::new();
        };
        let behind = self.neighbours(run.start + run.len..self.blocks.len() as u32, len - run.len, count_max);
        let mut origins = match behind.is_empty() {
            true => self.neighbours((0..run.start).rev(), len - run.len, count_max),
            false => behind,
        };
        origins.sort_unstable();
        let victims = self.take(origins.into_iter());
        let runs = victims.chunk_by(|one, next| one.origin + 1 == next.origin);
        runs.map(<[Victim]>::to_vec).collect()
    }

    /// Blocks of the origin whose newest versions lie in the next `len` blocks along `way`, up to one that cannot leave now.
    fn neighbours(&self, way: impl Iterator<Item = u32>, len: u32, count_max: u32) -> Vec<u32> {
        let mut origins = Vec::new();
        for index in way.take(len as usize) {
            let block = &self.blocks[index as usize];
            if block.stage() == Stage::Empty {
                continue;
            }
            let newest = self.newest.get(&block.origin()) == Some(&index);
            if !newest || origins.len() == count_max as usize || !self.is_next(index, self.committed) {
                break;
            }
            origins.push(block.origin());
        }
        origins
    }
}
