//! Memory regions from plain vectors, with an end.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spillway_core::sync::{AtomicU64 as SharedWord, WORDS_A_PAGE, Words};
use spillway_core::{Kind, Region, Regions, Slab};

const PAGE: usize = 4096;
const WORD: usize = 8;

/// A source of regions that holds a fixed number of bytes.
pub struct VecRegions {
    bytes_max: u64,
    mapped: Arc<AtomicU64>,
}

/// Bytes that are mapped until it is dropped. They are counted as a system does it: unseen by models of threads.
struct Mapped {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl VecRegions {
    /// Regions of together at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, mapped: Arc::default() }
    }

    /// Bytes mapped now.
    pub fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Relaxed)
    }

    fn hold(&self, bytes: usize) -> Result<Mapped, Kind> {
        let fits = |mapped: u64| mapped.checked_add(bytes as u64).filter(|all| *all <= self.bytes_max);
        let held = self.mapped.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        held.map_err(|_| Kind::OutOfMemory)?;
        Ok(Mapped { bytes: bytes as u64, all: self.mapped.clone() })
    }
}

impl Regions for VecRegions {
    fn map(&self, bytes: usize) -> Result<Box<dyn Region>, Kind> {
        let mapped = self.hold(bytes)?;
        // Atomics, so that the memory may be written through the region's pointer while the vector is shared.
        let words = (0..(bytes + PAGE) / WORD).map(|_| AtomicU64::new(0)).collect();
        Ok(Box::new(VecRegion { words, len: bytes, _mapped: mapped }))
    }

    fn map_slab(&self, bytes: usize) -> Result<Box<dyn Slab>, Kind> {
        let mapped = self.hold(bytes)?;
        Ok(Box::new(VecSlab { bytes: vec![0; bytes], _mapped: mapped }))
    }

    fn map_words(&self, count: usize) -> Result<Box<dyn Words>, Kind> {
        let mapped = self.hold(count * WORD)?;
        let words = (0..count).map(|_| SharedWord::new(0)).collect();
        Ok(Box::new(VecWords { words, _mapped: mapped }))
    }
}

struct VecSlab {
    bytes: Vec<u8>,
    _mapped: Mapped,
}

impl Slab for VecSlab {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

struct VecWords {
    words: Box<[SharedWord]>,
    _mapped: Mapped,
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
    _mapped: Mapped,
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
