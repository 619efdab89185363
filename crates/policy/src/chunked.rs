//! A vector of slots that grows a chunk at a time: it never moves what it holds, and takes no more than a chunk too much as long as it grows.

use std::ops::{Index, IndexMut};

/// Slots of a chunk.
pub const CHUNK: u32 = 32;

/// See the head of this file. Slots are numbered from 0.
#[derive(Clone, Debug)]
pub struct Chunked<T>(Vec<Box<[T; CHUNK as usize]>>);

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> Chunked<T> {
    /// Slots that there are.
    pub fn len(&self) -> u32 {
        self.0.len() as u32 * CHUNK
    }

    /// Whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds slots with default values until there are at least `len`.
    pub fn grow_to(&mut self, len: u32) {
        while self.len() < len {
            self.0.push(Box::new(std::array::from_fn(|_| T::default())));
        }
    }

    /// Gives chunks back, where two or more hold no slot below `len`.
    pub fn shrink_to(&mut self, len: u32) {
        if self.len() - len < 2 * CHUNK {
            return;
        }
        self.0.truncate(len.div_ceil(CHUNK) as usize);
        if self.0.capacity() > 4 * self.0.len().max(1) {
            self.0.shrink_to(2 * self.0.len());
        }
    }

    /// All slots, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flat_map(|chunk| chunk.iter())
    }
}

impl<T> Index<u32> for Chunked<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        &self.0[(slot / CHUNK) as usize][(slot % CHUNK) as usize]
    }
}

impl<T> IndexMut<u32> for Chunked<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.0[(slot / CHUNK) as usize][(slot % CHUNK) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_stay_where_they_are() {
        let mut slots = Chunked::<u32>::default();
        assert!(slots.is_empty());
        slots.grow_to(1);
        slots[0] = 7;
        let place = &raw const slots[0];
        slots.grow_to(3 * CHUNK + 1);
        slots[3 * CHUNK] = 9;
        assert_eq!((slots[0], &raw const slots[0]), (7, place));
        assert_eq!((slots.len(), slots.iter().sum::<u32>()), (4 * CHUNK, 16));
        slots.shrink_to(2 * CHUNK + 1);
        assert_eq!(slots.len(), 4 * CHUNK, "one more is kept");
        slots.shrink_to(CHUNK + 1);
        assert_eq!((slots.len(), slots[0], &raw const slots[0]), (2 * CHUNK, 7, place));
    }
}
