//! Memory regions from plain vectors, with an end.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spillway_core::sync::{AtomicU64 as SharedWord, WORDS_A_PAGE, Words};
use spillway_core::{Budget, Charge, Kind, Region, Regions};

const PAGE: usize = 4096;
const WORD: usize = 8;

/// A source of regions that holds a fixed number of bytes.
pub struct VecRegions {
    bytes: Arc<Budget>,
}

impl VecRegions {
    /// Regions of together at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes: Budget::new(bytes_max) }
    }

    /// Bytes mapped now.
    pub fn mapped(&self) -> u64 {
        self.bytes.used()
    }
}

impl Regions for VecRegions {
    fn map(&self, bytes: usize) -> Result<Box<dyn Region>, Kind> {
        let charge = self.bytes.hold(bytes as u64).map_err(|_| Kind::OutOfMemory)?;
        // Atomics, so that the memory may be written through the region's pointer while the vector is shared.
        let words = (0..(bytes + PAGE) / WORD).map(|_| AtomicU64::new(0)).collect();
        Ok(Box::new(VecRegion { words, len: bytes, _charge: charge }))
    }

    fn map_words(&self, count: usize) -> Result<Box<dyn Words>, Kind> {
        let charge = self.bytes.hold((count * WORD) as u64).map_err(|_| Kind::OutOfMemory)?;
        let words = (0..count).map(|_| SharedWord::new(0)).collect();
        Ok(Box::new(VecWords { words, _charge: charge }))
    }
}

struct VecWords {
    words: Box<[SharedWord]>,
    _charge: Charge,
}

impl Words for VecWords {
    fn all(&self) -> &[SharedWord] {
        &self.words
    }

    fn release(&self, range: Range<usize>) {
        assert!(
            range.start.is_multiple_of(WORDS_A_PAGE) && range.end.is_multiple_of(WORDS_A_PAGE),
            "{range:?}"
        );
        self.words[range].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

struct VecRegion {
    words: Box<[AtomicU64]>,
    len: usize,
    _charge: Charge,
}

impl VecRegion {
    fn first_word(&self) -> usize {
        (self.words.as_ptr() as usize).wrapping_neg() % PAGE / WORD
    }
}

impl Region for VecRegion {
    fn base(&self) -> NonNull<u8> {
        NonNull::from(&self.words[self.first_word()..]).cast()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn release(&self, offset: usize, len: usize) {
        assert!(offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && offset + len <= self.len);
        let first = self.first_word() + offset / WORD;
        self.words[first..first + len / WORD].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_and_run_out() {
        let regions = VecRegions::new(3 * 65536);
        let region = regions.map(2 * 65536).unwrap();
        assert_eq!(region.base().as_ptr() as usize % PAGE, 0);
        region.release(65536, 65536);
        assert_eq!(regions.map(2 * 65536).map(|_| ()).unwrap_err(), Kind::OutOfMemory);
        drop(region);
        assert_eq!(regions.mapped(), 0);
        assert!(regions.map(3 * 65536).is_ok());
    }
}
