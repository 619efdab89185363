//! Memory that goes back to its owner, and a store of such memory that nobody uses.

use std::collections::VecDeque;
use std::sync::Arc;

use super::page::{ALIGNMENT, Page};

/// What memory goes back to.
pub(super) trait TakeBack {
    /// The memory is not used any more.
    fn take_back(&self, pages: Box<[Page]>);
}

/// Memory that goes back to its owner when it is dropped, on whatever thread that is.
pub(super) struct BufferBlock<O: TakeBack> {
    pages: Box<[Page]>,
    owner: Arc<O>,
}

impl<O: TakeBack> BufferBlock<O> {
    /// `pages`, which `owner` has counted as taken.
    pub(super) fn new(pages: Box<[Page]>, owner: Arc<O>) -> Self {
        Self { pages, owner }
    }

    pub(super) fn pages(&self) -> &[Page] {
        &self.pages
    }

    pub(super) fn pages_mut(&mut self) -> &mut [Page] {
        &mut self.pages
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.pages.len() * ALIGNMENT) as u64
    }

    pub(super) fn is_of(&self, owner: &Arc<O>) -> bool {
        Arc::ptr_eq(&self.owner, owner)
    }
}

impl<O: TakeBack> Drop for BufferBlock<O> {
    fn drop(&mut self) {
        self.owner.take_back(std::mem::take(&mut self.pages));
    }
}

/// Unused blocks, the one that came last at the end.
pub(super) struct Kept<O: TakeBack> {
    list: VecDeque<BufferBlock<O>>,
    bytes: u64,
}

impl<O: TakeBack> Default for Kept<O> {
    fn default() -> Self {
        Self { list: VecDeque::new(), bytes: 0 }
    }
}

impl<O: TakeBack> Kept<O> {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The block of that many pages that came last.
    pub(super) fn take(&mut self, pages: usize) -> Option<BufferBlock<O>> {
        let index = self.list.iter().rposition(|block| block.pages.len() == pages)?;
        let block = self.list.remove(index)?;
        assert!(self.bytes >= block.bytes(), "{} bytes leave {} that are kept", block.bytes(), self.bytes);
        self.bytes -= block.bytes();
        Some(block)
    }

    /// Keeps `block`, and at most `bytes_max` in all: the oldest ones go to `gone`.
    pub(super) fn put(&mut self, block: BufferBlock<O>, bytes_max: u64, gone: &mut Vec<BufferBlock<O>>) {
        if block.bytes() > bytes_max {
            return gone.push(block);
        }
        self.bytes += block.bytes();
        self.list.push_back(block);
        while self.bytes > bytes_max
            && let Some(oldest) = self.list.pop_front()
        {
            self.bytes -= oldest.bytes();
            gone.push(oldest);
        }
        assert!(self.bytes <= bytes_max, "{} bytes are kept where {bytes_max} may be", self.bytes);
    }

    pub(super) fn take_all(&mut self) -> VecDeque<BufferBlock<O>> {
        self.bytes = 0;
        std::mem::take(&mut self.list)
    }
}
