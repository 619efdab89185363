//! The file that is written, once from its begin to its end, and where write-back is in it.

use super::memory::{Memory, State};

const NONE: u32 = u32::MAX;

/// Which page of memory has a page of the file, and what of it is dirty.
pub(super) struct File {
    cached: Vec<u32>,
    /// Pages of the whole file.
    pub(super) pages: usize,
    /// Where write-back goes on.
    cursor: usize,
    /// No page before it is dirty.
    clean: usize,
}

impl File {
    pub(super) fn new(pages: usize) -> Self {
        Self { cached: Vec::with_capacity(pages), pages, cursor: 0, clean: 0 }
    }

    /// Pages that were written.
    pub(super) fn len(&self) -> usize {
        self.cached.len()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.len() == self.pages
    }

    pub(super) fn append(&mut self, page: u32) {
        self.cached.push(page);
    }

    /// Reclaim has taken the memory of a page.
    pub(super) fn gone(&mut self, index: usize) {
        self.cached[index] = NONE;
    }

    fn is_dirty(&self, memory: &Memory, index: usize) -> bool {
        let page = self.cached[index];
        page != NONE && memory.page(page).state == State::Dirty
    }

    /// Goes on behind so many pages.
    pub(super) fn skip(&mut self, pages: usize) {
        self.cursor = self.cursor.max(self.clean) + pages;
    }

    /// The next dirty pages that follow each other, from the cursor on, at most so many, and the first of them; from the begin again once the end is reached.
    pub(super) fn next_run(&mut self, memory: &Memory, pages_max: usize) -> Option<(usize, Vec<u32>)> {
        while self.clean < self.len() && !self.is_dirty(memory, self.clean) {
            self.clean += 1;
        }
        let from = |first: usize| (first..self.len()).find(|index| self.is_dirty(memory, *index));
        let first = from(self.cursor.max(self.clean)).or_else(|| from(self.clean))?;
        let end = (first + pages_max).min(self.len());
        let run = (first..end).take_while(|index| self.is_dirty(memory, *index));
        let pages: Vec<u32> = run.map(|index| self.cached[index]).collect();
        self.cursor = first + pages.len();
        Some((first, pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_back_goes_round_and_finds_what_was_skipped() {
        let (mut memory, mut file) = (Memory::new(), File::new(10));
        for content in 0..10 {
            let (page, _) = memory.allocate(content, 40).expect("room");
            memory.set(page, State::Dirty);
            file.append(page);
        }
        assert!(file.is_whole());
        let mut runs = Vec::new();
        file.skip(4);
        while let Some((first, pages)) = file.next_run(&memory, 3) {
            runs.push((first, pages.len()));
            pages.iter().for_each(|page| memory.set(*page, State::Writeback));
        }
        assert_eq!(runs, [(4, 3), (7, 3), (0, 3), (3, 1)]);
    }
}
