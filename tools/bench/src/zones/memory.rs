//! The memory of the machine of 2011: three zones, their watermarks, and their lists of pages in the order of age.

use spillway_policy::zones::{Zone, ZoneAttempt, place};

/// In the order of the allocator's preference: Normal, DMA32, DMA.
pub(super) const NAMES: [&str; ZONES] = ["Normal", "DMA32", "DMA"];
pub(super) const ZONES: usize = 3;

const MIB_PAGES: usize = 256;
const SIZES: [usize; ZONES] = [504 * MIB_PAGES, 3246 * MIB_PAGES, 15 * MIB_PAGES];

/// Pages of all zones.
pub(super) const PAGES: usize = SIZES[0] + SIZES[1] + SIZES[2];

/// Pages that the kernel keeps free: 4 times the square root of the memory in KiB, as KiB.
const KEPT_FREE: usize = 1963;

/// Of a zone: pages that requests for a zone before it leave alone, one for each 256 pages of those.
const LEFT_ALONE: [usize; ZONES] = [0, SIZES[0] / 256, (SIZES[0] + SIZES[1]) / 256];

const NONE: u32 = u32::MAX;

/// Where a page is on its way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Clean,
    Dirty,
    Writeback,
}

/// A page of memory.
#[derive(Clone, Copy)]
pub(super) struct Page {
    /// What it holds.
    pub(super) content: u32,
    pub(super) state: State,
    /// It was accessed once.
    pub(super) referenced: bool,
    pub(super) active: bool,
    /// Reclaim wants it as soon as it is clean.
    pub(super) wanted: bool,
    newer: u32,
    older: u32,
}

/// Pages from the newest to the oldest.
#[derive(Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
    len: usize,
}

#[derive(Clone)]
struct Kept {
    /// First page and the one behind the last.
    pages: std::ops::Range<u32>,
    free: Vec<u32>,
    inactive: List,
    active: List,
    dirty: usize,
    writeback: usize,
    /// Pages that reclaim has looked at since one was freed.
    scanned: usize,
}

/// All of it.
pub(super) struct Memory {
    pages: Vec<Page>,
    zones: [Kept; ZONES],
}

impl Memory {
    pub(super) fn new() -> Self {
        let page = Page {
            content: NONE,
            state: State::Clean,
            referenced: false,
            active: false,
            wanted: false,
            newer: NONE,
            older: NONE,
        };
        let mut first = 0;
        let zones = SIZES.map(|size| {
            let pages = first..first + size as u32;
            first = pages.end;
            let empty = List { newest: NONE, oldest: NONE, len: 0 };
            let free = pages.clone().rev().collect();
            Kept { pages, free, inactive: empty, active: empty, dirty: 0, writeback: 0, scanned: 0 }
        });
        Self { pages: vec![page; PAGES], zones }
    }

    /// Full of clean pages of that content, which nobody needs any more.
    pub(super) fn full(content: u32) -> Self {
        let mut memory = Self::new();
        while memory.allocate(content, 100).is_some_and(|(_, low)| !low) {}
        memory
    }

    pub(super) fn page(&self, page: u32) -> &Page {
        &self.pages[page as usize]
    }

    pub(super) fn page_mut(&mut self, page: u32) -> &mut Page {
        &mut self.pages[page as usize]
    }

    fn zone_of(&self, page: u32) -> usize {
        self.zones.iter().position(|zone| zone.pages.contains(&page)).expect("a page is in a zone")
    }

    /// What the decisions of `policy::zones` see.
    pub(super) fn zones(&self) -> [Zone; ZONES] {
        std::array::from_fn(|index| {
            let zone = &self.zones[index];
            Zone {
                free: zone.free.len() as u64,
                reserve: (LEFT_ALONE[index] + high(index)) as u64,
                reclaimable: (zone.inactive.len + zone.active.len) as u64,
                unsaved: (zone.dirty + zone.writeback) as u64,
            }
        })
    }

    /// Dirty pages, and those that are being written back.
    pub(super) fn unsaved(&self) -> (usize, usize) {
        let sum = |of: fn(&Kept) -> usize| self.zones.iter().map(of).sum();
        (sum(|zone| zone.dirty), sum(|zone| zone.writeback))
    }

    /// A free page for `content`, the newest of its zone's inactive ones, in a zone of which at most `percent` are unsaved where one has any; and whether all zones are low, so that reclaim has to begin.
    /// `None` where even the last reserve is used.
    pub(super) fn allocate(&mut self, content: u32, percent: u64) -> Option<(u32, bool)> {
        let free = self.zones.each_ref().map(|zone| zone.free.len());
        let take = |zone: usize, attempt| {
            let mark = match attempt {
                ZoneAttempt::Spare => low(zone),
                // Reclaim runs in the background.
                ZoneAttempt::Reclaim => return None,
                ZoneAttempt::Fallback => min(zone),
            };
            (free[zone] > mark + LEFT_ALONE[zone]).then_some((zone, attempt))
        };
        let (zone, attempt) = place(percent, &self.zones(), take)?;
        let page = self.zones[zone].free.pop().expect("it has more than its watermark");
        let slot = self.page_mut(page);
        (slot.content, slot.state) = (content, State::Clean);
        (slot.referenced, slot.active, slot.wanted) = (false, false, false);
        self.push(zone, page);
        Some((page, attempt == ZoneAttempt::Fallback))
    }

    /// Changes the state of a page.
    pub(super) fn set(&mut self, page: u32, state: State) {
        let before = std::mem::replace(&mut self.page_mut(page).state, state);
        let zone = self.zone_of(page);
        let zone = &mut self.zones[zone];
        for (state, sign) in [(before, -1), (state, 1)] {
            match state {
                State::Clean => {}
                State::Dirty => zone.dirty = zone.dirty.strict_add_signed(sign),
                State::Writeback => zone.writeback = zone.writeback.strict_add_signed(sign),
            }
        }
    }

    /// A page was accessed; whether that makes it active.
    pub(super) fn access(&mut self, page: u32) -> bool {
        let zone = self.zone_of(page);
        let Page { active, referenced, .. } = *self.page(page);
        if active || !referenced {
            self.page_mut(page).referenced = true;
            return false;
        }
        self.unlink(zone, page);
        let slot = self.page_mut(page);
        (slot.active, slot.referenced) = (true, false);
        self.push(zone, page);
        true
    }

    /// Writing back has ended.
    pub(super) fn written(&mut self, page: u32) {
        self.set(page, State::Clean);
        let slot = self.page_mut(page);
        let wanted = std::mem::take(&mut slot.wanted);
        if wanted && !slot.active {
            let zone = self.zone_of(page);
            self.unlink(zone, page);
            self.push_oldest(zone, page);
        }
    }

    /// Whether a zone has enough free pages for reclaim to rest.
    pub(super) fn is_balanced(&self, zone: usize) -> bool {
        self.zones[zone].free.len() >= high(zone) + LEFT_ALONE[zone] || self.zones[zone].inactive.len == 0
    }

    /// Whether reclaim has looked at each page of a zone six times since one was freed: it gives up but for a first look.
    pub(super) fn is_hopeless(&self, zone: usize) -> bool {
        let zone = &self.zones[zone];
        zone.scanned > 6 * (zone.inactive.len + zone.active.len)
    }

    /// Inactive pages of a zone.
    pub(super) fn inactive(&self, zone: usize) -> usize {
        self.zones[zone].inactive.len
    }

    /// The oldest inactive page of a zone, which becomes the newest.
    pub(super) fn look(&mut self, zone: usize) -> Option<u32> {
        let page = self.zones[zone].inactive.oldest;
        if page == NONE {
            return None;
        }
        self.zones[zone].scanned += 1;
        self.unlink(zone, page);
        self.push(zone, page);
        Some(page)
    }

    /// A clean page leaves; returns what it held.
    pub(super) fn free(&mut self, zone: usize, page: u32) -> u32 {
        assert!(self.page(page).state == State::Clean, "what leaves is clean");
        self.unlink(zone, page);
        let zone = &mut self.zones[zone];
        zone.free.push(page);
        zone.scanned = 0;
        self.page(page).content
    }

    fn list(&mut self, zone: usize, page: u32) -> &mut List {
        let active = self.page(page).active;
        let zone = &mut self.zones[zone];
        if active { &mut zone.active } else { &mut zone.inactive }
    }

    fn push(&mut self, zone: usize, page: u32) {
        let list = self.list(zone, page);
        let before = std::mem::replace(&mut list.newest, page);
        list.len += 1;
        if before == NONE {
            list.oldest = page;
        } else {
            self.page_mut(before).newer = page;
        }
        let slot = self.page_mut(page);
        (slot.older, slot.newer) = (before, NONE);
    }

    fn push_oldest(&mut self, zone: usize, page: u32) {
        let list = self.list(zone, page);
        let before = std::mem::replace(&mut list.oldest, page);
        list.len += 1;
        if before == NONE {
            list.newest = page;
        } else {
            self.page_mut(before).older = page;
        }
        let slot = self.page_mut(page);
        (slot.older, slot.newer) = (NONE, before);
    }

    fn unlink(&mut self, zone: usize, page: u32) {
        let Page { newer, older, .. } = *self.page(page);
        let list = self.list(zone, page);
        list.len -= 1;
        if newer == NONE {
            list.newest = older;
        }
        if older == NONE {
            list.oldest = newer;
        }
        if newer != NONE {
            self.page_mut(newer).older = older;
        }
        if older != NONE {
            self.page_mut(older).newer = newer;
        }
    }
}

/// Pages of a zone.
pub(super) fn size(zone: usize) -> usize {
    SIZES[zone]
}

fn min(zone: usize) -> usize {
    KEPT_FREE * SIZES[zone] / PAGES
}

fn low(zone: usize) -> usize {
    min(zone) * 5 / 4
}

fn high(zone: usize) -> usize {
    min(zone) * 3 / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 40;

    fn filled(percent: u64, pages: u32) -> Memory {
        let mut memory = Memory::new();
        for content in 0..pages {
            let (page, _) = memory.allocate(content, percent).expect("there is room");
            memory.set(page, State::Dirty);
        }
        memory
    }

    #[test]
    fn without_shares_the_preferred_zone_becomes_dirty_altogether() {
        let of_normal = |percent| filled(percent, 200_000).zones()[0].unsaved;
        assert_eq!(of_normal(100), SIZES[0] as u64 - low(0) as u64);
        assert!(of_normal(LIMIT) <= SIZES[0] as u64 * LIMIT / 100 + 1);
    }

    #[test]
    fn pages_leave_in_the_order_of_age_and_rotate_where_they_stay() {
        let mut memory = filled(100, 3);
        let pages: Vec<u32> = (0..4).map(|_| memory.look(0).expect("there are some")).collect();
        assert_eq!(pages[0], pages[3]);
        let contents = pages.iter().map(|page| memory.page(*page).content);
        assert_eq!(contents.collect::<Vec<_>>(), [0, 1, 2, 0]);
        memory.page_mut(pages[2]).wanted = true;
        memory.written(pages[2]);
        assert_eq!(memory.look(0), Some(pages[2]), "what reclaim wants is next once it is clean");
        assert_eq!((memory.free(0, pages[2]), memory.inactive(0)), (2, 2));
        assert_eq!(memory.unsaved(), (2, 0));
    }

    #[test]
    fn the_second_access_makes_a_page_active() {
        let mut memory = filled(100, 2);
        let page = memory.look(0).expect("a page");
        assert_eq!([0; 4].map(|_| memory.access(page)), [false, true, false, false]);
        assert_eq!(memory.inactive(0), 1);
    }

    #[test]
    fn memory_ends_at_the_last_reserve() {
        let mut memory = Memory::new();
        let mut low = 0;
        while let Some((_, fell_back)) = memory.allocate(0, 100) {
            low += usize::from(fell_back);
        }
        let left: Vec<usize> = memory.zones.iter().map(|zone| zone.free.len()).collect();
        assert_eq!(left, [min(0), min(1) + LEFT_ALONE[1], min(2) + LEFT_ALONE[2]]);
        assert_eq!(low, (0..ZONES).map(|zone| self::low(zone) - min(zone)).sum::<usize>());
    }
}
