//! The buffer that travels, and what stands behind it.

use std::fmt;
use std::sync::{Arc, LazyLock};

use super::lender::Lender;
use super::page::{ALIGNMENT, Page, new_pages, pages_for};
use super::pool;

/// Bytes of the shared zero buffer: the longest [`IoBuf::zeroes`].
pub const ZEROES_LEN: usize = 1 << 20;

/// Never written to.
static ZEROES: LazyLock<Box<[Page]>> = LazyLock::new(|| new_pages(ZEROES_LEN / ALIGNMENT));

/// Waits until a buffer of `len` bytes can be had, and takes it: first come, first served.
pub async fn room(len: usize) -> IoBuf {
    if len == 0 {
        return IoBuf::empty();
    }
    let pages = pool::wait_for(class(len)).await;
    here::add(pages.len() as i64);
    IoBuf { pages: Some(pages), start: 0, len: len as u32, behind: None }
}

/// What a simulated world of one thread holds; nothing of it is left in other builds.
mod here {
    #[cfg(feature = "mutants")]
    thread_local! {
        static PAGES: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
    }

    #[cfg(feature = "mutants")]
    pub(super) fn add(pages: i64) {
        let _ = PAGES.try_with(|sum| sum.set(sum.get() + pages));
    }

    #[cfg(feature = "mutants")]
    pub(super) fn pages() -> i64 {
        PAGES.get()
    }

    #[cfg(not(feature = "mutants"))]
    pub(super) const fn add(_pages: i64) {}

    #[cfg(not(feature = "mutants"))]
    pub(super) const fn pages() -> i64 {
        0
    }
}

/// Bytes of buffers outside workspaces that this thread has taken, less those that it has dropped. Counted in builds for the
/// simulator only; 0 in others.
pub fn bytes_here() -> i64 {
    here::pages() * ALIGNMENT as i64
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
    /// Absent for a view: of what is [`Behind`] it, else of [`ZEROES`], which the empty buffer is one of.
    pages: Option<Box<[Page]>>,
    start: u32,
    len: u32,
    behind: Option<Arc<Behind>>,
}

/// The buffer itself, and a charge for as long as a view of it lives.
pub(super) struct Whole {
    pub(super) buf: IoBuf,
    _charge: IoBuf,
}

impl Whole {
    pub(super) fn new(buf: IoBuf, charge: IoBuf) -> Self {
        Self { buf, _charge: charge }
    }
}

/// What is not a buffer's own.
#[cfg_attr(
    feature = "shuttle",
    expect(clippy::large_enum_variant, reason = "the checker's locks are large, and in no other build")
)]
pub(super) enum Behind {
    /// The workspace that lent its memory.
    Lender(Lender),
    /// The buffer that it is a view of.
    Whole(Whole),
}

impl IoBuf {
    /// A buffer without memory, for requests without payload.
    pub const fn empty() -> Self {
        Self { pages: None, start: 0, len: 0, behind: None }
    }

    /// A buffer of `len` bytes of arbitrary content, counted but not limited: for tests, and for what is bounded by a
    /// constant that is charged elsewhere. Panics above [`LEN_MAX`](super::LEN_MAX).
    pub fn new(len: usize) -> Self {
        Self::obtain(len, false).expect("only a limited request can be refused")
    }

    /// A buffer of `len` bytes of arbitrary content, or `None` while all buffers together are at their limit.
    pub fn try_new(len: usize) -> Option<Self> {
        Self::obtain(len, true)
    }

    /// `len` zero bytes to be written somewhere, without memory of their own. Changing them panics. Panics above
    /// [`ZEROES_LEN`]: write more in pieces.
    pub fn zeroes(len: usize) -> Self {
        assert!(len <= ZEROES_LEN, "{len} zeroes were asked for, {ZEROES_LEN} is the limit");
        Self { pages: None, start: 0, len: len as u32, behind: None }
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

    /// `len` bytes from `start` of what is behind it.
    pub(super) fn part_of(behind: Arc<Behind>, start: usize, len: usize) -> Self {
        Self { pages: None, start: start as u32, len: len as u32, behind: Some(behind) }
    }

    fn obtain(len: usize, limited: bool) -> Option<Self> {
        if len == 0 {
            return Some(Self::empty());
        }
        let pages = pool::obtain(class(len), limited)?;
        here::add(pages.len() as i64);
        Some(Self { pages: Some(pages), start: 0, len: len as u32, behind: None })
    }

    /// A buffer of `len` bytes of memory that goes back to its lender.
    pub(super) fn lent(pages: Box<[Page]>, len: usize, lender: Arc<Behind>) -> Self {
        assert!(len <= pages.len() * ALIGNMENT, "{len} bytes in {} pages", pages.len());
        Self { pages: Some(pages), start: 0, len: len as u32, behind: Some(lender) }
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
        let bytes = self.pages.as_ref().map_or(self.seen().len(), |pages| pages.len() * ALIGNMENT);
        assert!(self.window().end <= bytes, "{len} bytes from {} are outside the memory", self.start);
    }

    /// Bytes of memory behind the window, which this buffer keeps from others: none for a view.
    pub fn capacity(&self) -> usize {
        self.pages.as_ref().map_or(0, |pages| pages.len() * ALIGNMENT)
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
        match self.behind.as_deref() {
            Some(Behind::Whole(whole)) => &whole.buf,
            _ => bytemuck::cast_slice(&ZEROES),
        }
    }
}

impl std::ops::Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.pages {
            Some(pages) => &bytemuck::cast_slice(pages)[self.window()],
            None => self.view(),
        }
    }
}

impl std::ops::DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let window = self.window();
        match &mut self.pages {
            Some(pages) => &mut bytemuck::cast_slice_mut(pages)[window],
            None => {
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
        let Some(pages) = self.pages.take() else { return };
        match self.behind.take().as_deref() {
            Some(Behind::Lender(lender)) => lender.give_back(pages),
            _ => {
                here::add(-(pages.len() as i64));
                pool::recycle(pages);
            }
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
