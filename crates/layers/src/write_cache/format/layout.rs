//! Where things lie on a cache device.

use spillway_core::{BlockSize, Error, Kind, SECTOR};

/// Bytes of the superblock.
pub const SUPERBLOCK_LEN: usize = 64;

/// Bytes of an entry.
pub const ENTRY_LEN: usize = 16;

/// Blocks that a cache may have: indices are of 47 bits.
pub(super) const BLOCKS_MAX: u64 = 1 << 47;

/// Where things lie on a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// First byte of the superblock on the device.
    pub start: u64,
    /// Unit of the cache.
    pub block_size: BlockSize,
    /// Blocks of data.
    pub n_blocks: u64,
}

impl Layout {
    /// The largest cache on a device of `device_bytes`, beginning at `start_sector`.
    ///
    /// [`Kind::Invalid`] if that is not on the device, [`Kind::NoSpace`] if not one block fits, [`Kind::Overflow`] if there would
    /// be more than 2^47 blocks.
    pub fn largest(device_bytes: u64, start_sector: u64, block_size: BlockSize) -> Result<Self, Error> {
        let (start, room) = room(device_bytes, start_sector)?;
        let block = block_size.bytes();
        let mut n_blocks = room / (block + ENTRY_LEN as u64);
        while n_blocks > 0 && bytes_of(n_blocks, block).is_none_or(|bytes| bytes > room) {
            n_blocks -= 1;
        }
        if n_blocks == 0 {
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "a cache device of {room} bytes has no room for a block of {block} bytes and its metadata"
                ),
            ));
        }
        check_count(n_blocks)?;
        Ok(Self { start, block_size, n_blocks })
    }

    /// Bytes from the superblock to the first block.
    pub fn metadata_bytes(&self) -> u64 {
        metadata_bytes(self.n_blocks, self.block_size.bytes()).expect("checked when the layout was made")
    }

    /// Byte of the device at which block `index` begins.
    pub fn block_offset(&self, index: u64) -> u64 {
        assert!(index < self.n_blocks, "block {index} of {}", self.n_blocks);
        self.start + self.metadata_bytes() + index * self.block_size.bytes()
    }

    /// Byte of the device at which entry `index` begins.
    pub fn entry_offset(&self, index: u64) -> u64 {
        assert!(index < self.n_blocks, "entry {index} of {}", self.n_blocks);
        self.start + SUPERBLOCK_LEN as u64 + index * ENTRY_LEN as u64
    }

    /// Sectors of a block.
    pub fn block_sectors(&self) -> u64 {
        self.block_size.bytes() / SECTOR
    }
}

/// The start in bytes, and the bytes from there on.
pub(super) fn room(device_bytes: u64, start_sector: u64) -> Result<(u64, u64), Error> {
    let start = start_sector.checked_mul(SECTOR).filter(|&start| start < device_bytes);
    let start = start.ok_or_else(|| {
        let sectors = device_bytes / SECTOR;
        Error::invalid(format!("start_sector {start_sector} is not on a cache device of {sectors} sectors"))
    })?;
    Ok((start, device_bytes - start))
}

pub(super) fn check_count(n_blocks: u64) -> Result<(), Error> {
    if n_blocks <= BLOCKS_MAX {
        return Ok(());
    }
    Err(Error::new(
        Kind::Overflow,
        format!("a cache of {n_blocks} blocks is too large: at most {BLOCKS_MAX}; choose larger blocks"),
    ))
}

fn metadata_bytes(n_blocks: u64, block: u64) -> Option<u64> {
    let bytes = n_blocks.checked_mul(ENTRY_LEN as u64)?.checked_add(SUPERBLOCK_LEN as u64)?;
    bytes.checked_next_multiple_of(block)
}

/// Bytes of a cache of so many blocks.
pub(super) fn bytes_of(n_blocks: u64, block: u64) -> Option<u64> {
    metadata_bytes(n_blocks, block)?.checked_add(n_blocks.checked_mul(block)?)
}
