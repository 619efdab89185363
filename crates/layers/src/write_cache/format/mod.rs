//! What lies on a cache device, to the byte.
//!
//! The format is that of Linux's dm-writecache, version 1, as its behaviour shows it. All numbers are little endian.
//!
//! ```text
//!   start      superblock, 64 bytes: magic 4, version 4, block_size 4, pad 4, n_blocks 8, seq_count 8, padding 32
//!   start+64   entries, 16 bytes each: original_sector 8, seq_count 8
//!   then up to the next block: the metadata's padding
//!   then       block 0, block 1, ...: entry i describes block i
//! ```
//!
//! The kernel leaves the superblock's padding as it finds it. There we write which origin the cache belongs to: "spillway" 8,
//! bytes 8, identity 8, writers 2 x 4. While a device is being formatted, the padding says so behind zeroes, which the kernel
//! takes for a blank device.
//!
//! An entry is free with seq_count 2^64-1, committed below the superblock's seq_count, uncommitted otherwise.

mod layout;

use std::num::NonZeroU64;

use spillway_core::{BlockSize, Error, Geometry, Writers};

use layout::{bytes_of, check_count, room};

pub use layout::{ENTRY_LEN, Layout, SUPERBLOCK_LEN};

/// Where the superblock's padding begins, and its bytes.
const PADDING_AT: usize = 32;
pub(super) const PADDING_LEN: usize = SUPERBLOCK_LEN - PADDING_AT;

/// Our padding begins with it.
const MARK: &[u8] = b"spillway";

/// The seq_count of an entry that describes nothing.
pub const FREE: u64 = u64::MAX;

pub(super) const MAGIC: u32 = crate::signatures::WRITE_CACHE;
pub(super) const VERSION: u32 = 1;

/// The head of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of data.
    pub n_blocks: u64,
    /// Entries with a lower seq_count are committed.
    pub seq_count: u64,
    /// What the kernel has no use for.
    pub padding: [u8; PADDING_LEN],
}

/// Which origin a cache belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginMark {
    /// Bytes of the origin.
    pub bytes: u64,
    /// Tells it from others of the same size; 0 where there is nothing to tell it by.
    pub identity: u64,
    /// Who had written to the origin last when the cache was opened, and whose changes those through the cache are; both 0 where the origin
    /// does not remember that.
    pub writers: [u32; 2],
}

impl OriginMark {
    /// That of an origin as it is now.
    pub fn of(origin: &Geometry) -> Self {
        let writers = origin.writers.map_or([0; 2], |Writers { last, own }| [last, own]);
        Self { bytes: origin.size, identity: origin.identity.map_or(0, NonZeroU64::get), writers }
    }

    /// What a superblock's padding says, if it is ours.
    pub fn decode(padding: &[u8; PADDING_LEN]) -> Option<Self> {
        let ours = padding.starts_with(MARK);
        let writers = || [le32(padding, 24), le32(padding, 28)];
        ours.then(|| Self { bytes: le64(padding, 8), identity: le64(padding, 16), writers: writers() })
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; PADDING_LEN] {
        let mut padding = [0; PADDING_LEN];
        padding[..8].copy_from_slice(MARK);
        padding[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        padding[16..24].copy_from_slice(&self.identity.to_le_bytes());
        padding[24..28].copy_from_slice(&self.writers[0].to_le_bytes());
        padding[28..32].copy_from_slice(&self.writers[1].to_le_bytes());
        padding
    }

    /// Whether the two are the same origin, as far as can be told. One that says who it is may have become larger.
    pub fn is(&self, other: &Self) -> bool {
        let has_grown = self.identity != 0 && self.identity == other.identity && self.bytes < other.bytes;
        has_grown || self.bytes == other.bytes && !self.differs(other)
    }

    /// Whether another host has written to `origin` since that cache was opened.
    pub fn is_outdated(&self, origin: &Geometry) -> bool {
        let known = self.writers != [0; 2];
        origin.writers.is_some_and(|Writers { last, .. }| known && !self.writers.contains(&last))
    }

    /// Whether the two cannot be the same origin.
    pub fn differs(&self, other: &Self) -> bool {
        self.identity != 0 && other.identity != 0 && self.identity != other.identity
    }
}

/// What the first bytes of a cache device are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Magic and version are zero.
    Blank,
    /// Formatting was begun here and did not end: nothing is lost if it begins again.
    Unfinished,
    /// A superblock of this format.
    Cache(Superblock),
    /// Something else, which must not be overwritten.
    Foreign {
        /// The four bytes in the place of the magic.
        magic: u32,
        /// The four bytes in the place of the version.
        version: u32,
    },
}

impl Superblock {
    /// That of an empty cache.
    pub fn fresh(layout: &Layout) -> Self {
        let block_size = layout.block_size.bytes() as u32;
        Self { block_size, n_blocks: layout.n_blocks, seq_count: 0, padding: [0; PADDING_LEN] }
    }

    /// What stands here while a device is being formatted.
    ///
    /// It is one word, which memory stores whole.
    pub fn unfinished() -> [u8; SUPERBLOCK_LEN] {
        let mut bytes = [0; SUPERBLOCK_LEN];
        bytes[PADDING_AT..][..MARK.len()].copy_from_slice(MARK);
        bytes
    }

    /// What `bytes` are.
    pub fn decode(bytes: &[u8; SUPERBLOCK_LEN]) -> Found {
        let (magic, version) = (le32(bytes, 0), le32(bytes, 4));
        match (magic, version) {
            (0, 0) if bytes[PADDING_AT..].starts_with(MARK) => Found::Unfinished,
            (0, 0) => Found::Blank,
            (MAGIC, VERSION) => Found::Cache(Self {
                block_size: le32(bytes, 8),
                n_blocks: le64(bytes, 16),
                seq_count: le64(bytes, 24),
                padding: bytes[PADDING_AT..].try_into().expect("the rest of a superblock"),
            }),
            _ => Found::Foreign { magic, version },
        }
    }

    /// Its bytes. Without `magic` they are those of a cache whose formatting has not ended.
    pub fn encode(&self, magic: bool) -> [u8; SUPERBLOCK_LEN] {
        let mut bytes = [0; SUPERBLOCK_LEN];
        if magic {
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        }
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.block_size.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.n_blocks.to_le_bytes());
        bytes[24..PADDING_AT].copy_from_slice(&self.seq_count.to_le_bytes());
        bytes[PADDING_AT..].copy_from_slice(&self.padding);
        bytes
    }

    /// Makes the checks of the kernel before a cache is used: its blocks are of the size asked for, if one was, and lie on the
    /// device. Fewer blocks than would fit are allowed. [`Corrupt`](spillway_core::Kind::Corrupt) for a damaged superblock,
    /// [`Invalid`](spillway_core::Kind::Invalid) for another size of blocks and for more than fit.
    pub fn accept(
        &self,
        device_bytes: u64,
        start_sector: u64,
        wanted: Option<BlockSize>,
    ) -> Result<Layout, Error> {
        let (start, room) = room(device_bytes, start_sector)?;
        let block_size = BlockSize::new(self.block_size).map_err(|error| {
            Error::corrupt(format!("the cache's superblock is damaged: {}", error.message()))
        })?;
        if let Some(wanted) = wanted.filter(|&wanted| wanted != block_size) {
            let (wanted, found) = (wanted.bytes(), block_size.bytes());
            return Err(Error::invalid(format!(
                "the cache has blocks of {found} bytes, not of {wanted}: give --block-size {found}"
            )));
        }
        check_count(self.n_blocks)?;
        let bytes = bytes_of(self.n_blocks, block_size.bytes()).filter(|_| self.n_blocks > 0);
        match bytes {
            Some(bytes) if bytes <= room => Ok(Layout { start, block_size, n_blocks: self.n_blocks }),
            Some(bytes) => Err(Error::invalid(format!(
                "the cache takes {bytes} bytes, but its device has only {room} from sector {start_sector} on: \
                 was it shrunk, or is the start_sector wrong?"
            ))),
            None => Err(Error::corrupt(format!(
                "the cache's superblock is damaged: it tells of {} blocks",
                self.n_blocks
            ))),
        }
    }
}

/// What a block of the cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First sector of the block on the origin.
    pub original_sector: u64,
    /// When it was written; [`FREE`] for never.
    pub seq_count: u64,
}

impl Entry {
    /// The entry of a freshly formatted cache.
    pub const BLANK: Self = Self { original_sector: u64::MAX, seq_count: FREE };

    /// The entry in `bytes`.
    pub fn decode(bytes: &[u8; ENTRY_LEN]) -> Self {
        Self { original_sector: le64(bytes, 0), seq_count: le64(bytes, 8) }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        bytes[..8].copy_from_slice(&self.original_sector.to_le_bytes());
        bytes[8..].copy_from_slice(&self.seq_count.to_le_bytes());
        bytes
    }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::layout::BLOCKS_MAX;
    use super::*;
    use proptest::prelude::*;
    use spillway_core::Kind;

    fn layout(bytes: u64, block: u32) -> Layout {
        Layout::largest(bytes, 0, BlockSize::new(block).unwrap()).unwrap()
    }

    /// The reference's table: device, block, blocks, bytes of metadata.
    #[test]
    fn layouts_are_those_of_the_kernel() {
        for (device, block, blocks, metadata) in [
            (1 << 20, 4096, 254, 8192),
            (64 << 20, 4096, 16320, 262_144),
            (1 << 30, 4096, 261_123, 4_182_016),
            (1 << 30, 512, 2_033_601, 32_538_112),
            (10 << 30, 4096, 2_611_239, 41_783_296),
        ] {
            let layout = layout(device, block);
            assert_eq!((layout.n_blocks, layout.metadata_bytes()), (blocks, metadata));
            assert!(layout.block_offset(blocks - 1) + u64::from(block) <= device);
        }
    }

    #[test]
    fn a_superblock_has_the_bytes_of_the_documented_layout() {
        let superblock =
            Superblock { block_size: 4096, n_blocks: 254, seq_count: 0x0102_0304, padding: [0; PADDING_LEN] };
        let mut golden = [0; SUPERBLOCK_LEN];
        golden[..4].copy_from_slice(&[0x21, 0x93, 0x48, 0x23]);
        golden[4] = 1;
        golden[9] = 0x10;
        golden[16] = 254;
        golden[24..28].copy_from_slice(&[4, 3, 2, 1]);
        assert_eq!(superblock.encode(true), golden);
        assert_eq!(Superblock::decode(&golden), Found::Cache(superblock));
        golden[..4].fill(0);
        assert_eq!(superblock.encode(false), golden);
        assert_eq!(Superblock::decode(&golden), Found::Foreign { magic: 0, version: 1 });
        assert_eq!(Superblock::decode(&[0; SUPERBLOCK_LEN]), Found::Blank);
        let begun = Superblock::unfinished();
        assert_eq!(begun[..32], [0; 32], "the kernel takes it for blank");
        assert_eq!(Superblock::decode(&begun), Found::Unfinished);
        let entry = Entry { original_sector: 0x0808, seq_count: 2 };
        assert_eq!(entry.encode(), [8, 8, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Entry::BLANK.encode(), [0xff; ENTRY_LEN]);
    }

    /// A cache may be killed before and after the first change that it makes.
    #[test]
    fn a_cache_knows_its_own_writes_from_those_of_another_host() {
        let origin = |last, own| {
            let writers = Some(Writers { last, own });
            Geometry { identity: NonZeroU64::new(7), writers, ..Geometry::in_memory(1 << 20) }
        };
        let mark = OriginMark::of(&origin(5, 6));
        let padding = mark.encode();
        assert_eq!(padding[24..], [5, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(OriginMark::decode(&padding), Some(mark));
        assert!(!mark.is_outdated(&origin(5, 8)) && !mark.is_outdated(&origin(6, 8)));
        assert!(mark.is_outdated(&origin(7, 8)) && mark.is_outdated(&origin(0, 8)));
        let silent = Geometry { writers: None, ..origin(0, 0) };
        assert!(!mark.is_outdated(&silent), "it remembers nothing");
        assert!(!OriginMark::of(&silent).is_outdated(&origin(7, 8)), "nothing was known of it");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_value_and_the_remedy() {
        let device = 1 << 20;
        let right = Superblock::fresh(&layout(device, 4096));
        let refused = |superblock: Superblock, device, start, wanted| {
            let error = superblock.accept(device, start, wanted).unwrap_err();
            (error.kind, error.message().to_owned())
        };
        assert_eq!(right.accept(device, 0, None), Ok(layout(device, 4096)));
        let fewer = Superblock { n_blocks: 3, ..right };
        assert_eq!(fewer.accept(device, 0, None).map(|layout| layout.n_blocks), Ok(3));
        let (kind, words) = refused(right, device, 0, Some(BlockSize::SECTOR));
        assert!(kind == Kind::Invalid && words.contains("--block-size 4096"), "{words}");
        let (kind, words) = refused(right, device - 512, 0, None);
        assert!(kind == Kind::Invalid && words.contains("shrunk"), "{words}");
        assert!(refused(right, device, 1, None).1.contains("start_sector"));
        assert!(refused(right, device, 2048, None).1.contains("start_sector 2048"));
        for block_size in [0, 1, 511, 513, 65537, 131_072, u32::MAX] {
            assert_eq!(refused(Superblock { block_size, ..right }, device, 0, None).0, Kind::Corrupt);
        }
        for n_blocks in [0, right.n_blocks + 1, BLOCKS_MAX, BLOCKS_MAX + 1, u64::MAX] {
            refused(Superblock { n_blocks, ..right }, device, 0, None);
        }
        let none = Layout::largest(4096, 0, BlockSize::PAGE).unwrap_err();
        assert_eq!(none.kind, Kind::NoSpace);
        let many = Layout::largest(1 << 62, 0, BlockSize::SECTOR).unwrap_err();
        assert_eq!(many.kind, Kind::Overflow);
    }

    proptest! {
        #[test]
        fn any_bytes_are_told_apart_and_survive_the_trip(bytes: [u8; 32], device: u64, start in 0u64..64) {
            let mut whole = [0; SUPERBLOCK_LEN];
            whole[..32].copy_from_slice(&bytes);
            whole[..8].copy_from_slice(&[0x21, 0x93, 0x48, 0x23, 1, 0, 0, 0]);
            let Found::Cache(superblock) = Superblock::decode(&whole) else { panic!("the magic is right") };
            whole[12..16].fill(0);
            prop_assert_eq!(superblock.encode(true), whole);
            if let Ok(layout) = superblock.accept(device, start, None) {
                let end = layout.block_offset(layout.n_blocks - 1) + layout.block_size.bytes();
                prop_assert!(end <= device && layout.entry_offset(layout.n_blocks - 1) < end);
            }
        }
    }
}
