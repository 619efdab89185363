//! The buffer that travels.

use std::fmt;
use std::sync::{Arc, LazyLock};

use super::page::{ALIGNMENT, Page, new_pages, pages_for};
use super::pool::{self, BufferMemory};

/// Bytes of the shared zero buffer: the longest [`IoBuf::zeroes`].
pub const ZEROES_LEN: usize = 1 << 20;

/// Never written to.
static ZEROES: LazyLock<Box<[Page]>> = LazyLock::new(|| new_pages(ZEROES_LEN / ALIGNMENT));

/// Waits until a buffer of `len` bytes can be had, and takes it: first come, first served.
pub async fn room(len: usize) -> IoBuf {
    if len == 0 {
        return IoBuf::empty();
    }
    IoBuf::of(pool::wait_for(class(len)).await, len)
}

/// Pages of a buffer of `len` bytes outside a workspace.
fn class(len: usize) -> usize {
    pages_for(len).next_power_of_two()
}

/// Bytes of memory that a buffer of `len` bytes takes.
pub fn bytes_for(len: usize) -> usize {
    if len == 0 { 0 } else { class(len) * ALIGNMENT }
}

/// A page-aligned buffer of up to [`LEN_MAX`](super::LEN_MAX) bytes.
#[derive(Default)]
pub struct IoBuf {
    source: Source,
    start: u32,
    len: u32,
}

/// Where the bytes of a buffer lie.
enum Source {
    Own(BufferMemory),
    /// In a buffer that it is a view of, else in [`ZEROES`], which the empty buffer is a view of.
    View(Option<Arc<Whole>>),
}

impl Default for Source {
    fn default() -> Self {
        Self::View(None)
    }
}

/// A buffer that others are views of, and a charge for as long as one of them lives.
pub(super) struct Whole {
    pub(super) buf: IoBuf,
    _charge: IoBuf,
}

impl Whole {
    pub(super) fn new(buf: IoBuf, charge: IoBuf) -> Self {
        Self { buf, _charge: charge }
    }
}

impl IoBuf {
    /// A buffer without memory, for requests without payload.
    pub const fn empty() -> Self {
        Self { source: Source::View(None), start: 0, len: 0 }
    }

    /// A buffer of `len` bytes of arbitrary content, counted but not limited: for tests, and for what is bounded by a
    /// constant that is charged elsewhere. Panics above [`LEN_MAX`](super::LEN_MAX).
    pub fn new(len: usize) -> Self {
        Self::obtain(len, false).expect("only a limited request can be refused")
    }

    /// A buffer of `len` bytes of arbitrary content, or `None` while all buffers of this thread's engine are at their limit.
    pub fn try_new(len: usize) -> Option<Self> {
        Self::obtain(len, true)
    }

    /// `len` zero bytes to be written somewhere, without memory of their own. Changing them panics. Panics above
    /// [`ZEROES_LEN`]: write more in pieces.
    pub fn zeroes(len: usize) -> Self {
        assert!(len <= ZEROES_LEN, "{len} zeroes were asked for, {ZEROES_LEN} is the limit");
        Self { source: Source::View(None), start: 0, len: len as u32 }
    }

    /// A buffer of `len` zero bytes that may be changed.
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

    /// `len` bytes from `start` of `whole`.
    pub(super) fn part_of(whole: Arc<Whole>, start: usize, len: usize) -> Self {
        Self { source: Source::View(Some(whole)), start: start as u32, len: len as u32 }
    }

    /// A buffer of `len` bytes of that memory.
    pub(super) fn of(memory: BufferMemory, len: usize) -> Self {
        assert!(len as u64 <= memory.bytes(), "{len} bytes in {}", memory.bytes());
        Self { source: Source::Own(memory), start: 0, len: len as u32 }
    }

    fn obtain(len: usize, limited: bool) -> Option<Self> {
        if len == 0 {
            return Some(Self::empty());
        }
        Some(Self::of(pool::obtain(class(len), limited)?, len))
    }

    /// Bytes of the window.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Narrows the window to `len` bytes from `start` of the present one. The memory stays; see [`IoBuf::widen`].
    pub fn narrow(&mut self, start: usize, len: usize) {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.len as usize);
        assert!(fits, "{start}+{len} is outside a window of {} bytes", self.len);
        self.start += start as u32;
        self.len = len as u32;
    }

    /// Sets the window to `len` bytes from the start of the memory.
    pub fn widen(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} is more than the {} bytes of the buffer", self.capacity());
        self.start = 0;
        self.len = len as u32;
    }

    /// Undoes [`IoBuf::narrow`]: the window had `len` bytes and began `start` bytes before the present one.
    pub fn unnarrow(&mut self, start: usize, len: usize) {
        assert!(start <= self.start as usize, "the window begins {} bytes into the memory", self.start);
        self.start -= start as u32;
        self.len = len as u32;
        let bytes = match &self.source {
            Source::Own(memory) => memory.bytes() as usize,
            Source::View(_) => self.seen().len(),
        };
        assert!(self.window().end <= bytes, "{len} bytes from {} are outside the memory", self.start);
    }

    /// Bytes of memory behind the window, which this buffer keeps from others: none for a view.
    pub fn capacity(&self) -> usize {
        match &self.source {
            Source::Own(memory) => memory.bytes() as usize,
            Source::View(_) => 0,
        }
    }

    fn window(&self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }

    /// The window where the buffer has no memory of its own.
    #[cold]
    fn view(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        &self.seen()[self.window()]
    }

    /// All that a view could show.
    fn seen(&self) -> &[u8] {
        match &self.source {
            Source::View(Some(whole)) => &whole.buf,
            _ => bytemuck::cast_slice(&ZEROES),
        }
    }
}

impl std::ops::Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.source {
            Source::Own(memory) => &bytemuck::cast_slice(memory.pages())[self.window()],
            Source::View(_) => self.view(),
        }
    }
}

impl std::ops::DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let window = self.window();
        match &mut self.source {
            Source::Own(memory) => &mut bytemuck::cast_slice_mut(memory.pages_mut())[window],
            Source::View(_) => {
                assert!(window.is_empty(), "{} bytes of a view are to be written to", window.len());
                &mut []
            }
        }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} of {} bytes)", self.len, self.capacity())
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        if let Source::Own(memory) = std::mem::take(&mut self.source) {
            pool::recycle(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LEN_MAX;
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
        buf.narrow(1, 1);
        buf.unnarrow(1, 2);
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

    #[test]
    fn a_thread_keeps_the_sizes_in_use() {
        let work = || {
            drop((0..32).map(|_| IoBuf::new(64 << 10)).collect::<Vec<_>>());
            drop(IoBuf::new(512 << 10));
            let bulk = IoBuf::new(512 << 10);
            let address = bulk.as_ptr();
            drop(bulk);
            assert_eq!(IoBuf::new(512 << 10).as_ptr(), address, "a new size does not replace an old one");
        };
        std::thread::spawn(work).join().expect("the address is the same");
    }

    #[test]
    fn zeroes_are_read_and_take_no_memory() {
        let mut zeroes = IoBuf::zeroes(ZEROES_LEN);
        assert!(zeroes.iter().all(|&byte| byte == 0));
        assert_eq!(
            (zeroes.len(), zeroes.capacity(), zeroes.as_ptr() as usize % ALIGNMENT),
            (ZEROES_LEN, 0, 0)
        );
        let start = zeroes.as_ptr() as usize;
        zeroes.narrow(512, 1024);
        assert_eq!((zeroes.len(), zeroes.as_ptr() as usize - start), (1024, 512));
        assert!(IoBuf::zeroes(0).is_empty());
    }

    #[test]
    #[should_panic(expected = "of a view are to be written to")]
    fn zeroes_are_not_to_be_changed() {
        IoBuf::zeroes(512)[0] = 1;
    }

    #[test]
    fn a_buffer_is_small() {
        assert_eq!(std::mem::size_of::<IoBuf>(), 32);
    }
}
