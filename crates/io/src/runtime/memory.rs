//! Large memory from the operating system.
//!
//! Regions are private, anonymous, without reserved swap and without huge pages: a page costs memory from its first touch
//! until it is released, and a released page costs nothing again. (Huge pages would commit 2 MiB at the first touch and
//! keep them after a release of less.) Slabs, of which nothing is released, are of huge pages.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, MlockAllFlags, ProtFlags, madvise, mlockall, mmap_anonymous, munmap};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use spillway_core::sync::{AtomicBool, AtomicU64, Ordering, Words};
use spillway_core::{Error, Kind, Region, Regions, Slab};

const PAGE: usize = 4096;

/// Whether the memory of this process is locked.
static LOCKED: AtomicBool = AtomicBool::new(false);

/// Locks the memory of this process into RAM: what it has mapped, what it maps later, each page from its first touch on. A limit of
/// locked memory (RLIMIT_MEMLOCK) counts what is mapped, which is more than is ever used: [`Kind::Denied`] unless there is none, or the
/// process has CAP_IPC_LOCK. [`Kind::NotSupported`] before Linux 5.18, which takes no locked page back.
pub fn lock() -> Result<(), Error> {
    expect_no_limit()?;
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(all).map_err(|why| {
        Error::new(Kind::of_errno(why.raw_os_error()), format!("the memory cannot be locked: {why}"))
    })?;
    LOCKED.store(true, Ordering::Relaxed);
    let page = Mapping::new(PAGE).map_err(|kind| Error::new(kind, "there is no memory for a page"))?;
    if page.give_back(0, PAGE).is_err() {
        let words = "locked memory is not taken back by this kernel; Linux 5.18 or later is needed";
        return Err(Error::new(Kind::NotSupported, words));
    }
    Ok(())
}

fn expect_no_limit() -> Result<(), Error> {
    let Rlimit { current, maximum } = getrlimit(Resource::Memlock);
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    // Up to its hard limit a process may raise its own.
    let raise = || setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum }).is_ok();
    match maximum {
        None if current.is_none() || raise() => Ok(()),
        _ if may => Ok(()),
        limit => {
            let limit = limit.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"));
            Err(Error::new(
                Kind::Denied,
                format!(
                    "the memory cannot be locked: the limit of locked memory (RLIMIT_MEMLOCK) is {limit}; a server maps more than it uses, so \
                     allow it all: systemd LimitMEMLOCK=infinity, ulimit -l unlimited, docker --ulimit memlock=-1, or CAP_IPC_LOCK"
                ),
            ))
        }
    }
}

/// Blocks from this length on, in bytes, come from the system by themselves and go back when freed.
#[cfg(target_env = "gnu")]
const OWN_MAPPING_MIN: libc::c_int = 256 << 10;

/// Unused bytes at the end of a heap of the C library above which they go back.
#[cfg(target_env = "gnu")]
const HEAP_END_MAX: libc::c_int = 1 << 20;

/// The same two limits once Ceph's library is loaded, which allocates up to an object (4 MiB) and its header at once.
#[cfg(target_env = "gnu")]
const CEPH_MAPPING_MIN: libc::c_int = 5 << 20;
#[cfg(target_env = "gnu")]
const CEPH_HEAP_END_MAX: libc::c_int = 4 << 20;

/// Makes the C library's allocator give back what is freed, at once and on every thread.
///
/// Left alone, it learns from the first large block that is freed to keep such blocks for reuse, up to 64 MiB for each
/// thread: memory that no budget knows of. To be called before threads are started. Elsewhere than with glibc it does
/// nothing.
pub fn return_what_is_freed() {
    #[cfg(target_env = "gnu")]
    set_limits(OWN_MAPPING_MIN, HEAP_END_MAX);
}

/// Has the allocator keep freed blocks of up to 5 MiB, and 4 MiB at the end of each heap.
///
/// Ceph's library allocates a block for each message. Where each is a mapping of its own, large requests cost more in page faults than in
/// copies. That memory is not in the budget, as nothing of the library is. Elsewhere than with glibc it does nothing.
pub fn keep_blocks_of_ceph() {
    #[cfg(target_env = "gnu")]
    set_limits(CEPH_MAPPING_MIN, CEPH_HEAP_END_MAX);
}

#[cfg(target_env = "gnu")]
fn set_limits(mapping_min: libc::c_int, heap_end_max: libc::c_int) {
    for (option, bytes) in [(libc::M_MMAP_THRESHOLD, mapping_min), (libc::M_TRIM_THRESHOLD, heap_end_max)] {
        // SAFETY: sets a number in the allocator, whose own locks make it safe at any time.
        let taken = unsafe { libc::mallopt(option, bytes) };
        assert!(taken == 1, "the allocator refused option {option}");
    }
}

/// Bytes of a huge page where pages have 4 KiB. Elsewhere memory that begins at a multiple of it is as good as any other.
const HUGE: usize = 2 << 20;

/// Regions by `mmap`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MmapRegions;

impl Regions for MmapRegions {
    fn map(&self, bytes: usize) -> Result<Box<dyn Region>, Kind> {
        Ok(Box::new(Mapping::new(bytes)?))
    }

    fn map_slab(&self, bytes: usize) -> Result<Box<dyn Slab>, Kind> {
        let mapping = if bytes < HUGE { Mapping::new(bytes)? } else { Mapping::of_huge_pages(bytes)? };
        Ok(Box::new(Owned(mapping)))
    }

    fn map_words(&self, count: usize) -> Result<Box<dyn Words>, Kind> {
        let bytes = count.checked_mul(size_of::<AtomicU64>()).ok_or(Kind::OutOfMemory)?;
        Ok(Box::new(SharedWords(Mapping::new(bytes)?)))
    }
}

struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and its address does not depend on the thread; how its bytes are shared
// is up to the code that dereferences `base`.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&self` gives out the address only, and `release` is an atomic system call.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Of small pages, so that each can be given back.
    fn new(bytes: usize) -> Result<Self, Kind> {
        let mapping = Self::map(bytes)?;
        mapping.advise(Advice::LinuxNoHugepage);
        Ok(mapping)
    }

    /// Begins at a multiple of a huge page, if the system has so much more room for a moment.
    fn of_huge_pages(bytes: usize) -> Result<Self, Kind> {
        let mapping = Self::aligned(bytes, HUGE).or_else(|_| Self::map(bytes))?;
        mapping.advise(Advice::LinuxHugepage);
        Ok(mapping)
    }

    /// Begins at a multiple of `unit`, a power of two.
    fn aligned(bytes: usize, unit: usize) -> Result<Self, Kind> {
        let mapping = Self::map(bytes)?;
        if (mapping.base.as_ptr() as usize).is_multiple_of(unit) {
            return Ok(mapping);
        }
        // Its place becomes a part of the next one.
        drop(mapping);
        let mut mapping = Self::map(bytes.checked_add(unit).ok_or(Kind::OutOfMemory)?)?;
        // The last place that fits: the system maps from above down, so that nothing is free between this and the one before.
        let end = mapping.base.as_ptr() as usize + mapping.len;
        mapping.narrow(mapping.len - bytes - (end - bytes) % unit, bytes)?;
        Ok(mapping)
    }

    fn map(bytes: usize) -> Result<Self, Kind> {
        let len = bytes.checked_next_multiple_of(PAGE).ok_or(Kind::OutOfMemory)?;
        if len == 0 {
            return Ok(Self { base: NonNull::<Aligned>::dangling().cast(), len });
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so no existing mapping is replaced.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let base = base.map_err(|_| Kind::OutOfMemory)?;
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Kind::OutOfMemory)?, len })
    }

    /// A kernel without huge pages refuses the advice, and needs it as little.
    fn advise(&self, advice: Advice) {
        if self.len > 0 {
            // SAFETY: the range was mapped by `map`, and the advice changes no content.
            let _ = unsafe { madvise(self.at(0), self.len, advice) };
        }
    }

    /// Unmaps all but `len` bytes from `start` on. Nobody has an address of it yet.
    fn narrow(&mut self, start: usize, len: usize) -> Result<(), Kind> {
        self.unmap(0..start)?;
        self.base = NonNull::new(self.at(start).cast()).ok_or(Kind::OutOfMemory)?;
        self.len -= start;
        let len = len.next_multiple_of(PAGE);
        self.unmap(len..self.len)?;
        self.len = len;
        Ok(())
    }

    fn unmap(&self, part: Range<usize>) -> Result<(), Kind> {
        if part.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies in this mapping, and the caller holds no reference into it.
        unsafe { munmap(self.at(part.start), part.len()) }.map_err(|_| Kind::OutOfMemory)
    }

    /// Gives whole pages back to the kernel, of which nobody holds a reference into.
    fn give_back(&self, offset: usize, len: usize) -> io::Result<()> {
        let locked = LOCKED.load(Ordering::Relaxed);
        let advice = if locked { libc::MADV_DONTNEED_LOCKED } else { libc::MADV_DONTNEED };
        // SAFETY: the range lies in this mapping, and the caller holds no reference into it.
        match unsafe { libc::madvise(self.at(offset), len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.base.as_ptr().wrapping_add(offset).cast()
    }
}

#[repr(align(4096))]
struct Aligned;

impl Region for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }

    fn release(&self, offset: usize, len: usize) {
        assert!(
            offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE),
            "release {offset}+{len}: whole pages only"
        );
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "release {offset}+{len} of {}",
            self.len
        );
        if len == 0 {
            return;
        }
        let result = self.give_back(offset, len);
        assert!(result.is_ok(), "the kernel refused to take back {offset}+{len}: {result:?}");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // It outlived all its users.
        let result = self.unmap(0..self.len);
        assert!(result.is_ok(), "munmap of a mapping of our own: {result:?}");
    }
}

/// A mapping that nothing but its references reaches.
struct Owned(Mapping);

impl Slab for Owned {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is as long, was zeroed by the system, and lives as long as `self`. Its address is given out here alone, and
        // nothing of it is released before its end.
        unsafe { std::slice::from_raw_parts(self.0.base.as_ptr(), self.0.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` says that nobody has a reference into it.
        unsafe { std::slice::from_raw_parts_mut(self.0.base.as_ptr(), self.0.len) }
    }
}

/// A mapping that is reached through atomics alone.
struct SharedWords(Mapping);

impl Words for SharedWords {
    fn all(&self) -> &[AtomicU64] {
        let words = self.0.base.as_ptr().cast::<AtomicU64>();
        // SAFETY: the mapping is aligned to pages, was zeroed by the system, which is a valid word, and lives as long as `self`.
        // No other pointer into it is given out, and `release` is to these words like a store of zero to each.
        unsafe { std::slice::from_raw_parts(words, self.0.len / size_of::<AtomicU64>()) }
    }

    fn release(&self, range: Range<usize>) {
        assert!(range.start <= range.end, "words {range:?} are released, which are none");
        let bytes = range.start * size_of::<AtomicU64>()..range.end * size_of::<AtomicU64>();
        self.0.release(bytes.start, bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(region: &dyn Region) -> usize {
        let mut pages = vec![0u8; region.len() / PAGE];
        // SAFETY: the range is a live mapping and the vector holds one byte a page.
        let result =
            unsafe { libc::mincore(region.base().as_ptr().cast(), region.len(), pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        pages.iter().filter(|&&page| page & 1 == 1).count()
    }

    #[test]
    fn pages_cost_from_touch_to_release_and_read_as_zero_after() {
        let region = MmapRegions.map(64 << 20).unwrap();
        assert_eq!(region.base().as_ptr() as usize % PAGE, 0);
        assert_eq!(resident(region.as_ref()), 0, "untouched memory is free");
        // SAFETY: the region is 64 MiB long and this test is its only user.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr(), region.len()) };
        bytes[..8 * PAGE].fill(7);
        assert_eq!(resident(region.as_ref()), 8, "exactly what was touched");
        region.release(PAGE, 4 * PAGE);
        assert_eq!(resident(region.as_ref()), 4);
        // SAFETY: the region lives, and no other reference into it does.
        assert_eq!(unsafe { region.base().add(PAGE).read_volatile() }, 0);
    }

    /// Where it begins.
    fn address(slab: &dyn Slab) -> usize {
        slab.bytes().as_ptr() as usize
    }

    #[test]
    fn slabs_begin_where_a_huge_page_can_and_are_as_long_as_asked_for() {
        let mut slabs: Vec<_> = (0..5).map(|_| MmapRegions.map_slab(2 * HUGE).unwrap()).collect();
        for slab in &mut slabs {
            assert_eq!((address(slab.as_ref()) % HUGE, slab.bytes().len()), (0, 2 * HUGE));
            assert!(slab.bytes().iter().all(|byte| *byte == 0));
            slab.bytes_mut().fill(7);
        }
        assert_eq!([0, PAGE].map(|bytes| MmapRegions.map_slab(bytes).unwrap().bytes().len()), [0, PAGE]);
    }

    /// Newer systems align what is as long as a huge page by themselves; nothing else.
    #[test]
    fn what_the_system_does_not_align_is_aligned_and_lies_side_by_side() {
        let unit = 512 << 10;
        let mappings: Vec<_> = (0..64).map(|_| Mapping::aligned(unit, unit).unwrap()).collect();
        let mut bases: Vec<_> = mappings.iter().map(|mapping| mapping.base.as_ptr() as usize).collect();
        bases.sort_unstable();
        assert!(bases.iter().all(|base| base % unit == 0));
        assert!(mappings.iter().all(|mapping| mapping.len == unit));
        let apart = bases.windows(2).filter(|pair| pair[1] - pair[0] != unit).count();
        assert!(apart < 32, "{apart} of 64 have something else beside them");
    }

    #[test]
    fn words_are_zero_before_their_first_use_and_after_their_release() {
        use spillway_core::sync::{Ordering, WORDS_A_PAGE};
        let words = MmapRegions.map_words(4 * WORDS_A_PAGE).unwrap();
        assert!(
            words.all().len() == 4 * WORDS_A_PAGE
                && words.all().iter().all(|word| word.load(Ordering::Relaxed) == 0)
        );
        words.all().iter().for_each(|word| word.store(7, Ordering::Relaxed));
        words.release(WORDS_A_PAGE..3 * WORDS_A_PAGE);
        let kept = words.all().iter().map(|word| word.load(Ordering::Relaxed) == 7);
        let released = (0..words.all().len()).map(|at| (WORDS_A_PAGE..3 * WORDS_A_PAGE).contains(&at));
        assert!(kept.zip(released).all(|(kept, released)| kept != released));
    }

    #[test]
    fn more_than_the_address_space_is_refused() {
        assert_eq!(MmapRegions.map(usize::MAX / 2).err(), Some(Kind::OutOfMemory));
        assert!(MmapRegions.map(0).unwrap().is_empty());
    }
}
