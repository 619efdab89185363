//! What the index knows of a block, in 12 bytes.

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Free, or reserved for a write that is under way.
    Empty,
    /// Holds a version.
    Live,
    /// Holds a version that is being copied to the origin, or replaced there.
    Copying,
    /// Its entry is to be cleared on the device; until its turn comes it stays there.
    Stale,
    /// Its entry is being cleared.
    Clearing,
    /// Free as soon as nobody reads it.
    Leaving,
}

const STAGES: [Stage; 6] =
    [Stage::Empty, Stage::Live, Stage::Copying, Stage::Stale, Stage::Clearing, Stage::Leaving];

const READER_SHIFT: u32 = 3;
const EPOCH_SHIFT: u32 = 20;
const READERS: u64 = (1 << (EPOCH_SHIFT - READER_SHIFT)) - 1;

/// Epochs that a block can name: ten thousand commits a second take 55 years to get there.
pub(super) const EPOCHS: u64 = 1 << (64 - EPOCH_SHIFT);

/// See the head of this file: stage in 3 bits, readers in 17, epoch in 44, block of the origin in 32.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    packed: [u32; 2],
    origin: u32,
}

impl Block {
    /// A free one.
    pub(super) const EMPTY: Self = Self { packed: [0; 2], origin: u32::MAX };

    /// One that holds a version.
    pub(super) fn live(origin: u32, epoch: u64) -> Self {
        assert!(epoch < EPOCHS, "epoch {epoch}");
        let mut block = Self { origin, ..Self::EMPTY };
        block.pack(epoch << EPOCH_SHIFT | Stage::Live as u64);
        block
    }

    fn packed(&self) -> u64 {
        u64::from(self.packed[0]) | u64::from(self.packed[1]) << 32
    }

    fn pack(&mut self, packed: u64) {
        self.packed = [packed as u32, (packed >> 32) as u32];
    }

    /// The block of the origin whose version it holds.
    pub(super) fn origin(&self) -> u32 {
        self.origin
    }

    /// When it was written.
    pub(super) fn epoch(&self) -> u64 {
        self.packed() >> EPOCH_SHIFT
    }

    pub(super) fn stage(&self) -> Stage {
        STAGES[(self.packed() & 7) as usize]
    }

    pub(super) fn set_stage(&mut self, stage: Stage) {
        self.pack(self.packed() & !7 | stage as u64);
    }

    pub(super) fn readers(&self) -> u64 {
        self.packed() >> READER_SHIFT & READERS
    }

    pub(super) fn pin(&mut self) {
        assert!(self.readers() < READERS, "each reader has a buffer, and memory ends before");
        self.pack(self.packed() + (1 << READER_SHIFT));
    }

    pub(super) fn unpin(&mut self) {
        assert!(self.readers() > 0, "unpinned more often than pinned");
        self.pack(self.packed() - (1 << READER_SHIFT));
    }
}

/// A version that leaves for the origin, or because the origin holds something newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) origin: u32,
    pub(super) index: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_out_of_each_other_s_way() {
        assert_eq!(size_of::<Block>(), 12);
        let mut block = Block::live(u32::MAX - 1, EPOCHS - 1);
        (0..READERS).for_each(|_| block.pin());
        for stage in STAGES {
            block.set_stage(stage);
            assert_eq!((block.stage(), block.readers()), (stage, READERS));
            assert_eq!((block.epoch(), block.origin()), (EPOCHS - 1, u32::MAX - 1));
        }
        (0..READERS).for_each(|_| block.unpin());
        assert_eq!((block.readers(), block.epoch()), (0, EPOCHS - 1));
        assert_eq!(Block::EMPTY.stage(), Stage::Empty);
    }
}
