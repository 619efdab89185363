//! Sizes of devices and blocks, as options have them.

use spillway_core::block::DEVICE_BYTES_MAX;
use spillway_core::{BlockSize, Error, Spec, Type, Value};

/// Bytes of a device of whole blocks.
pub(crate) const DEVICE: Type = Type::Number(512, DEVICE_BYTES_MAX);

/// The size that a device without anything to look at is to have; [`spillway_core::Kind::Invalid`] unless one is given that its
/// declaration allows.
pub(crate) fn given(declared: &Spec, size: Option<u64>) -> Result<u64, Error> {
    let size = size.ok_or_else(|| Error::invalid("this device has the size that it is given: give one"))?;
    declared.check(Value::U64(size)).map(|_| size)
}

/// Bytes of a block.
pub(crate) const BLOCK: Type = Type::PowerOfTwo(512, 65536);

/// The block of `bytes`, which [`BLOCK`] allows.
pub(crate) fn block(bytes: u64) -> BlockSize {
    let bytes = u32::try_from(bytes).expect("the declaration allows up to 64 KiB");
    BlockSize::new(bytes).expect("the declaration allows what a block may have")
}

/// `bytes`, if they are whole blocks; [`spillway_core::Kind::Invalid`] otherwise.
pub(crate) fn whole_blocks(key: &str, bytes: u64, block: BlockSize) -> Result<u64, Error> {
    let unit = block.bytes();
    if bytes >= unit && bytes.is_multiple_of(unit) {
        return Ok(bytes);
    }
    Err(Error::invalid(format!(
        "{key} cannot be {bytes}: give a multiple of {unit}, the block size, from {unit} to 4E"
    )))
}
