//! Watermarks: when write-back begins and ends. It begins at the high one and goes on to the low one, so that it does not start and
//! stop with each block.

/// What is to be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Nothing.
    Rest,
    /// What is older than this limit; the unit is the source's.
    Aged(u64),
    /// Blocks until few enough are used.
    ToLow,
    /// Everything.
    All,
}

/// Free blocks of `blocks` where `percent` of them are used, rounded as Linux's dm-writecache does.
pub fn free_at(blocks: u64, percent: u64) -> u64 {
    assert!(percent <= 100, "{percent} percent");
    let free = (u128::from(blocks) * u128::from(100 - percent) + 50) / 100;
    u64::try_from(free).expect("at most all blocks")
}

/// How full a cache is, and what asks for blocks of it.
#[derive(Clone, Copy, Debug)]
pub struct CacheLoad {
    /// Blocks.
    pub blocks: u64,
    /// Blocks that hold something to be written back.
    pub used: u64,
    /// Blocks that are free, or will be without another write.
    pub free_soon: u64,
    /// Writers wait for a block.
    pub waiting: bool,
    /// Everything is to be written back: nothing new enters, or a drain runs.
    pub cleaning: bool,
    /// What is older than this is to be written back.
    pub expired: Option<u64>,
}

impl CacheLoad {
    /// Whether write-back is to begin, with the high watermark at so many percent.
    pub fn is_high(&self, percent: u64) -> bool {
        self.used > 0 && (self.cleaning || self.free_soon <= free_at(self.blocks, percent))
    }

    /// What write-back that has begun goes on with, with the low watermark at so many percent.
    pub fn goal(&self, percent: u64) -> Goal {
        assert!(self.used <= self.blocks, "{} of {} blocks are used", self.used, self.blocks);
        if self.used == 0 {
            return Goal::Rest;
        }
        // Who waits gets the blocks that are about to be free; without any, some have to be made so.
        if self.waiting && self.free_soon == 0 {
            return Goal::All;
        }
        if self.cleaning || self.free_soon < free_at(self.blocks, percent) {
            return Goal::ToLow;
        }
        self.expired.map_or(Goal::Rest, Goal::Aged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the kernel's own table.
    #[test]
    fn free_counts_are_the_kernel_s() {
        for (blocks, high, low) in [
            (254, 127, 140),
            (16320, 8160, 8976),
            (261_123, 130_562, 143_618),
            (2_611_239, 1_305_620, 1_436_181),
        ] {
            assert_eq!((free_at(blocks, 50), free_at(blocks, 45)), (high, low));
        }
        assert_eq!((free_at(7, 100), free_at(7, 0), free_at(u64::MAX, 0)), (0, 7, u64::MAX));
    }

    fn load(used: u64, free_soon: u64) -> CacheLoad {
        CacheLoad { blocks: 10, used, free_soon, waiting: false, cleaning: false, expired: None }
    }

    /// Every cache of ten blocks: between the watermarks it goes on, and does not begin.
    #[test]
    fn there_is_a_band_in_which_nothing_begins_and_nothing_ends() {
        for (low, high) in (0..=10).flat_map(|low| (low..=10).map(move |high| (10 * low, 10 * high))) {
            let begins: Vec<u64> = (1..=10).filter(|used| load(*used, 10 - used).is_high(high)).collect();
            let goes_on: Vec<u64> =
                (1..=10).filter(|used| load(*used, 10 - used).goal(low) == Goal::ToLow).collect();
            assert_eq!(begins, (1..=10).filter(|used| 10 * used >= high).collect::<Vec<_>>());
            assert_eq!(goes_on, (1..=10).filter(|used| 10 * used > low).collect::<Vec<_>>());
        }
    }

    #[test]
    fn who_asks_most_decides() {
        let aged = CacheLoad { expired: Some(3), ..load(2, 8) };
        assert_eq!(aged.goal(45), Goal::Aged(3));
        assert_eq!(
            CacheLoad { waiting: true, ..aged }.goal(45),
            Goal::Aged(3),
            "a block is about to be free"
        );
        assert_eq!(CacheLoad { waiting: true, ..load(9, 0) }.goal(45), Goal::All);
        assert_eq!(CacheLoad { cleaning: true, ..aged }.goal(45), Goal::ToLow);
        assert_eq!(CacheLoad { cleaning: true, used: 0, ..aged }.goal(45), Goal::Rest);
        assert!(!CacheLoad { cleaning: true, ..load(0, 0) }.is_high(50), "there is nothing to write back");
    }
}
