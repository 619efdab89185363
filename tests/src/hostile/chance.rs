//! Chance from a seed.

use crate::pattern::mix;

/// A sequence of draws; the same seed draws the same.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A sequence of its own.
    pub fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number from 1 to `most`, small ones as likely as large ones: each power of two has the same share.
    pub fn spread(&mut self, most: u64) -> u64 {
        let ceiling = 1u64 << self.below(u64::from(most.ilog2()) + 2);
        self.below(ceiling.min(most)) + 1
    }

    /// One of `all`, which is not empty.
    pub fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_and_every_size() {
        let draw = |seed| {
            let mut chance = Chance::new(seed);
            (0..1000).map(|_| chance.spread(4096)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let drawn = draw(7);
        assert!(drawn.iter().all(|number| (1..=4096).contains(number)));
        assert!(drawn.contains(&1) && drawn.iter().any(|&number| number > 2048));
    }
}
