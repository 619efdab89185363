//! Buffers that travel with their request.
//!
//! An [`IoBuf`] is a page-aligned piece of memory with a visible window. Memory comes from a pool of the thread that asks
//! and goes back to the pool of the thread that drops it, by power-of-two size class, with a cap on what a thread keeps.
//! All threads together stay below a limit set once at start ([`set_limit`]): a caller that can wait asks with
//! [`IoBuf::try_new`] and waits for [`room`]; internal users that hold at most one block each use [`IoBuf::new`], which is
//! counted but never refused.
//!
//! A recycled buffer holds what its last user left: whoever answers a read fills it whole.

use std::cell::RefCell;
use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::sync::{AtomicU64, Ordering, WaitList};

/// Alignment of every buffer in bytes: what O_DIRECT asks for at most.
pub const ALIGNMENT: usize = 4096;

/// Largest buffer in bytes (32 MiB, the largest payload an NBD client may send by default).
pub const LEN_MAX: usize = 32 << 20;

/// Bytes of unused buffers that one thread keeps for itself. In a model of the checker of threads nothing outlives it.
pub const KEPT_BYTES_MAX: usize = if cfg!(feature = "shuttle") { 0 } else { 2 << 20 };

const CLASSES: usize = (LEN_MAX / ALIGNMENT).trailing_zeros() as usize + 1;

#[repr(C, align(4096))]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Page([u8; ALIGNMENT]);

static IN_USE: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
static ROOM: std::sync::LazyLock<WaitList> = std::sync::LazyLock::new(WaitList::default);

/// Sets the bytes that all buffers of the process together may take. Called once, before the first request.
pub fn set_limit(bytes: u64) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Bytes allocated for buffers now, those kept by threads for reuse included.
pub fn bytes_in_use() -> u64 {
    IN_USE.load(Ordering::Relaxed)
}

/// Waits until a buffer of `len` bytes can be had, and takes it.
pub async fn room(len: usize) -> IoBuf {
    ROOM.until(|| IoBuf::try_new(len)).await
}

/// Tasks that wait for [`room`] now.
pub fn waiting() -> usize {
    ROOM.waiting()
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::new(Pool::default());
}

#[derive(Default)]
struct Pool {
    free: [Vec<Vec<Page>>; CLASSES],
    kept_bytes: usize,
}

impl Pool {
    fn take(&mut self, class: usize) -> Option<Vec<Page>> {
        let pages = self.free[class].pop()?;
        self.kept_bytes -= pages.len() * ALIGNMENT;
        Some(pages)
    }

    fn keep(&mut self, pages: Vec<Page>) -> Result<(), Vec<Page>> {
        let bytes = pages.len() * ALIGNMENT;
        if self.kept_bytes + bytes > KEPT_BYTES_MAX {
            return Err(pages);
        }
        self.kept_bytes += bytes;
        self.free[pages.len().trailing_zeros() as usize].push(pages);
        Ok(())
    }

    fn empty(&mut self) {
        for pages in self.free.iter_mut().flat_map(std::mem::take) {
            free(pages);
        }
        self.kept_bytes = 0;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.empty();
    }
}

fn free(pages: Vec<Page>) {
    let bytes = (pages.len() * ALIGNMENT) as u64;
    drop(pages);
    let before = IN_USE.fetch_sub(bytes, Ordering::Relaxed);
    assert!(before >= bytes, "buffers freed twice: {bytes} of {before} bytes");
    ROOM.wake_all();
}

fn allocate(pages: usize, limited: bool) -> Option<Vec<Page>> {
    let bytes = (pages * ALIGNMENT) as u64;
    let limit = if limited { LIMIT.load(Ordering::Relaxed) } else { u64::MAX };
    let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
    IN_USE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
    Some(bytemuck::zeroed_vec(pages))
}

/// A page-aligned buffer of up to [`LEN_MAX`] bytes.
#[derive(Default)]
pub struct IoBuf {
    pages: Vec<Page>,
    start: usize,
    len: usize,
}

impl IoBuf {
    /// A buffer without memory, for requests without payload.
    pub const fn empty() -> Self {
        Self { pages: Vec::new(), start: 0, len: 0 }
    }

    /// A buffer of `len` bytes of arbitrary content, counted but not limited. Panics above [`LEN_MAX`].
    pub fn new(len: usize) -> Self {
        Self::obtain(len, false).expect("only a limited request can be refused")
    }

    /// A buffer of `len` bytes of arbitrary content, or `None` while all buffers together are at their limit.
    pub fn try_new(len: usize) -> Option<Self> {
        Self::obtain(len, true)
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::new(len);
        buf.fill(0);
        buf
    }

    /// A buffer with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::new(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    fn obtain(len: usize, limited: bool) -> Option<Self> {
        assert!(len <= LEN_MAX, "a buffer of {len} bytes was asked for, {LEN_MAX} is the limit");
        if len == 0 {
            return Some(Self::empty());
        }
        let class = len.div_ceil(ALIGNMENT).next_power_of_two().trailing_zeros() as usize;
        let kept = POOL.try_with(|pool| pool.borrow_mut().take(class)).ok().flatten();
        let pages = kept.or_else(|| allocate(1 << class, limited)).or_else(|| {
            let _ = POOL.try_with(|pool| pool.borrow_mut().empty());
            allocate(1 << class, limited)
        })?;
        Some(Self { pages, start: 0, len })
    }

    /// Narrows the window to `len` bytes from `start` of the present one. The memory stays; see [`IoBuf::widen`].
    pub fn narrow(&mut self, start: usize, len: usize) {
        assert!(start + len <= self.len, "{start}+{len} is outside a window of {} bytes", self.len);
        self.start += start;
        self.len = len;
    }

    /// Sets the window to `len` bytes from the start of the memory.
    pub fn widen(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} is more than the {} bytes of the buffer", self.capacity());
        self.start = 0;
        self.len = len;
    }

    /// Bytes of memory behind the window.
    pub fn capacity(&self) -> usize {
        self.pages.len() * ALIGNMENT
    }
}

impl std::ops::Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.pages)[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.pages)[self.start..self.start + self.len]
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} of {} bytes)", self.len, self.capacity())
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        if self.pages.is_empty() {
            return;
        }
        let mut pages = Some(std::mem::take(&mut self.pages));
        let kept = POOL.try_with(|pool| match pool.borrow_mut().keep(pages.take().expect("set above")) {
            Ok(()) => ROOM.waiting() > 0,
            Err(back) => {
                pages = Some(back);
                false
            }
        });
        if let Some(pages) = pages {
            free(pages);
        }
        // Somebody waits for room: what this thread keeps is of more use to them.
        if kept == Ok(true) {
            let _ = POOL.try_with(|pool| pool.borrow_mut().empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_exact() {
        for len in [1, 512, 4096, 4097, 65536, LEN_MAX] {
            let buf = IoBuf::new(len);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr() as usize % ALIGNMENT, 0);
        }
    }

    #[test]
    fn a_window_narrows_and_widens_over_the_same_memory() {
        let mut buf = IoBuf::copy_of(&[1, 2, 3, 4]);
        buf.narrow(1, 2);
        assert_eq!(&buf[..], [2, 3]);
        buf.widen(4);
        assert_eq!(&buf[..], [1, 2, 3, 4]);
    }

    #[test]
    fn memory_is_reused_by_the_thread_that_dropped_it() {
        let first = IoBuf::new(4096);
        let address = first.as_ptr();
        drop(first);
        assert_eq!(IoBuf::new(100).as_ptr(), address);
    }
}
