//! One writer of 10 GiB, write-back, reclaim and the stick, in virtual time.
//!
//! Each of them acts at a time of its own; the earliest is next. Nothing is random but what a seed draws: the stick's speed and seeks,
//! and how long reclaim takes to wake up.

use std::time::Duration;

use spillway_core::random::Random;
use spillway_policy::throttle::{Thresholds, Throttle};
use spillway_policy::zones::Zone;

use super::file::File;
use super::file_system::Pageout;
use super::memory::{Memory, State, ZONES};
use super::setup::{Found, Measured, Sample, Scope, Setup};
use super::stick::{Request, Speed, Stick};
use super::time::{MILLI, SECOND};

const PAGE_BYTES: u64 = 4096;
const FILE_PAGES: usize = (10 << 30) / PAGE_BYTES as usize;

/// Pages of a write of 32 KiB, and of 128 KiB, after which the writer looks whether it is too fast.
const WRITE_PAGES: usize = 8;
const LOOK_PAGES: usize = 32;

/// Nanoseconds in which a page is written to memory, looked at by reclaim, handed to the stick.
const COPY: u64 = 8_000;
const LOOK: u64 = 1_000;
const SUBMIT: u64 = 2_000;

const LIMIT: u64 = 40;
const BACKGROUND: u64 = 10;

/// Pages of a request of write-back, and of what it advances by without writing.
const REQUEST_PAGES: usize = 30;
const SKIP_PAGES: usize = 1024;

/// How deep reclaim looks at first: one in 2 to the power of this many pages. It waits after looks that are deeper by more than two steps.
const PRIORITY: u32 = 12;
const CONGESTED: u64 = 100 * MILLI;
const BATCH: usize = 32;

/// Contents that are no page of the file: a clean page beside a dirty one, metadata.
const SHADOW: u32 = u32::MAX - 1;
const METADATA: u32 = u32::MAX - 2;

/// Where metadata lies on the stick, and its second copy behind it.
const METADATA_AT: u64 = 3 << 20;
const COPY_AT: u64 = 1 << 18;

/// Who acts, in the order in which they do at the same time.
const STICK: usize = 0;
const WRITER: usize = 1;
const FLUSHER: usize = 2;
const RECLAIM: usize = 3;
const CLOCK: usize = 4;
const NEVER: u64 = u64::MAX;

/// How far a pass of reclaim is: zones from the last in the order of preference to the first.
#[derive(Default)]
struct Pass {
    priority: u32,
    zones: usize,
    looks: usize,
    freed: usize,
}

pub(super) struct World {
    setup: Setup,
    now: u64,
    wakes: [u64; 5],
    memory: Memory,
    stick: Stick,
    file: File,
    throttle: Throttle,
    /// Shadows of the page that is being written.
    shadows: usize,
    pass: Pass,
    /// Metadata that the next commit writes, and when that is.
    metadata: Vec<u32>,
    commit: u64,
    /// When write-back next advances without writing.
    skip: u64,
    committed: u64,
    landed: u64,
    ticks: u64,
    landed_before: u64,
    bytes_per_second: u64,
    paused: u64,
    random: Random,
    measured: Measured,
}

impl World {
    pub(super) fn new(setup: Setup) -> Self {
        let mut random = Random(setup.seed);
        random.draw();
        // As even as the source's runs on xfs: a deviation of 0.635 %.
        let even = (random.below(2001) as f64 - 1000.0) / 1000.0 * 0.011;
        let speed = Speed { bytes_per_second: setup.speed.bytes_per_second * (1.0 + even), ..setup.speed };
        Self {
            now: 0,
            wakes: [NEVER, 0, NEVER, NEVER, 200 * MILLI],
            memory: Memory::full(SHADOW),
            stick: Stick::new(speed, Random(random.draw())),
            file: File::new(FILE_PAGES),
            throttle: Throttle::default(),
            shadows: 0,
            pass: Pass::default(),
            metadata: Vec::new(),
            commit: setup.file_system.metadata.map_or(NEVER, |metadata| metadata.commit),
            skip: setup.file_system.skips.unwrap_or(NEVER),
            committed: METADATA_AT,
            landed: 0,
            ticks: 0,
            landed_before: 0,
            bytes_per_second: 0,
            paused: 0,
            random,
            measured: Measured::default(),
            setup,
        }
    }

    /// Until all of the file is on the stick.
    pub(super) fn run(mut self) -> Measured {
        while !(self.file.is_whole() && self.memory.unsaved() == (0, 0)) {
            self.wakes[STICK] = self.stick.ends.unwrap_or(NEVER);
            let actor = (0..self.wakes.len()).min_by_key(|actor| self.wakes[*actor]).expect("there are five");
            assert!(self.wakes[actor] >= self.now && self.wakes[actor] < NEVER, "one of them goes on");
            self.now = self.wakes[actor];
            match actor {
                STICK => self.land(),
                WRITER => self.write(),
                FLUSHER => self.write_back(),
                RECLAIM => self.reclaim(),
                _ => self.tick(),
            }
        }
        self.measured.seconds = self.now as f64 / SECOND as f64;
        self.measured.seeks = self.stick.seeks;
        self.measured
    }

    fn unsaved_bytes(&self) -> u64 {
        let (dirty, writeback) = self.memory.unsaved();
        (dirty + writeback) as u64 * PAGE_BYTES
    }

    fn thresholds(&self) -> Thresholds {
        let pages: u64 = self.memory.zones().iter().map(Zone::dirtyable).sum();
        let [background, limit] = [BACKGROUND, LIMIT].map(|percent| pages * percent / 100 * PAGE_BYTES);
        Thresholds { background, limit }
    }

    /// The writer's turn: a write of 32 KiB, then perhaps a pause.
    fn write(&mut self) {
        self.wakes[WRITER] = self.now;
        loop {
            if !self.write_page() {
                return self.reclaim_directly();
            }
            self.wakes[WRITER] += COPY + self.setup.file_system.round_trip;
            if self.file.len().is_multiple_of(WRITE_PAGES) {
                break;
            }
        }
        if self.file.is_whole() {
            self.wakes[WRITER] = NEVER;
            return self.start_write_back();
        }
        if self.file.len().is_multiple_of(LOOK_PAGES) {
            self.pause();
        }
    }

    fn write_page(&mut self) -> bool {
        while self.shadows < self.setup.file_system.shadows {
            if self.allocate(SHADOW, self.setup.scope).is_none() {
                return false;
            }
            self.shadows += 1;
        }
        let Some(page) = self.allocate(self.file.len() as u32, self.setup.scope) else { return false };
        self.memory.set(page, State::Dirty);
        self.file.append(page);
        self.shadows = 0;
        true
    }

    fn allocate(&mut self, content: u32, scope: Scope) -> Option<u32> {
        let found = self.memory.allocate(content, scope.of_zone(LIMIT));
        let low = found.is_none_or(|(_, low)| low);
        if low && self.wakes[RECLAIM] == NEVER {
            self.wakes[RECLAIM] = self.now + 50_000 + self.random.below(450_000);
            self.pass = Pass { priority: PRIORITY, zones: ZONES, looks: 0, freed: 0 };
        }
        found.map(|(page, _)| page)
    }

    /// There is no page left: the writer looks for some itself, but writes none.
    fn reclaim_directly(&mut self) {
        let freed = (0..ZONES).map(|zone| self.look_at(zone, BATCH, false).freed).sum::<usize>();
        let wait = if freed > 0 { (ZONES * BATCH) as u64 * LOOK } else { CONGESTED };
        self.wakes[WRITER] = self.now + wait;
    }

    /// Pauses the writer as long as is due for what it has just written.
    fn pause(&mut self) {
        let (thresholds, held) = (self.thresholds(), self.unsaved_bytes());
        if held > thresholds.background {
            self.start_write_back();
        }
        let awake = self.wakes[WRITER];
        let bytes = LOOK_PAGES as u64 * PAGE_BYTES;
        let now = Duration::from_nanos(awake);
        let pause = self.throttle.pause(now, bytes, thresholds, held, self.bytes_per_second);
        let pause = u64::try_from(pause.as_nanos()).expect("a pause is short");
        self.wakes[WRITER] += pause;
        self.paused += pause;
    }

    fn start_write_back(&mut self) {
        if self.wakes[FLUSHER] == NEVER && !self.stick.is_full() {
            self.wakes[FLUSHER] = self.now;
        }
    }

    /// The flusher's turn: one request, as long as there is something to be written and room for it.
    fn write_back(&mut self) {
        self.wakes[FLUSHER] = NEVER;
        let over = self.memory.unsaved().0 as u64 * PAGE_BYTES > self.thresholds().background;
        if self.stick.is_full() || !(over || self.file.is_whole()) {
            return;
        }
        if self.now >= self.commit {
            self.write_metadata();
        }
        if self.now >= self.skip && !self.file.is_whole() {
            self.skip = self.now + self.setup.file_system.skips.unwrap_or(NEVER);
            self.file.skip(SKIP_PAGES);
        }
        let Some((first, pages)) = self.file.next_run(&self.memory, REQUEST_PAGES) else {
            // The last commit follows the data.
            return if self.stick.is_idle() {
                self.write_metadata()
            };
        };
        self.wakes[FLUSHER] = self.now + SUBMIT * pages.len() as u64;
        self.submit(first as u64, pages);
    }

    /// A commit: what metadata has come into being is written where there is room for all of it, once for each copy.
    fn write_metadata(&mut self) {
        let Some(metadata) = self.setup.file_system.metadata else { return };
        self.commit = self.now + metadata.commit;
        let pages = std::mem::take(&mut self.metadata);
        if pages.is_empty() {
            return;
        }
        let at = self.committed..self.committed + pages.len() as u64;
        self.committed = at.end;
        for copy in 1..metadata.copies {
            let at = at.start + copy * COPY_AT..at.end + copy * COPY_AT;
            self.stick.submit(self.now, Request { at, pages: Vec::new() });
        }
        self.submit(at.start, pages);
    }

    fn submit(&mut self, at: u64, pages: Vec<u32>) {
        pages.iter().for_each(|page| self.memory.set(*page, State::Writeback));
        self.stick.submit(self.now, Request { at: at..at + pages.len() as u64, pages });
    }

    /// A request of the stick has ended.
    fn land(&mut self) {
        let request = self.stick.end(self.now);
        for page in request.pages {
            self.memory.written(page);
            self.landed += 1;
            let metadata = self.setup.file_system.metadata;
            if metadata.is_some_and(|metadata| self.landed.is_multiple_of(metadata.data)) {
                self.make_metadata();
            }
        }
        self.start_write_back();
    }

    /// New metadata is used a few times at once. It is placed wherever there is room: dirty limits are for data.
    fn make_metadata(&mut self) {
        let accesses = self.setup.file_system.metadata.map_or(0, |metadata| metadata.accesses);
        let Some(page) = self.allocate(METADATA, Scope::Global) else { return };
        self.memory.set(page, State::Dirty);
        self.metadata.push(page);
        for _ in 0..accesses {
            self.measured.activated += u64::from(self.memory.access(page));
        }
    }

    /// The turn of background reclaim: a batch of pages, or what comes next in its pass.
    fn reclaim(&mut self) {
        if self.pass.looks > 0 {
            let looks = self.pass.looks.min(BATCH);
            let found = self.look_at(self.pass.zones, looks, true);
            self.pass.looks -= looks;
            self.pass.freed += found.freed;
            let time = self.now + looks as u64 * LOOK + found.written as u64 * SUBMIT;
            // What it writes waits for room like everything else.
            let room = self.stick.ends.filter(|_| found.is_blocked);
            self.wakes[RECLAIM] = room.map_or(time, |ends| ends.max(time));
        } else if self.pass.zones > 0 {
            self.pass.zones -= 1;
            let zone = self.pass.zones;
            let tried = self.memory.is_hopeless(zone) && self.pass.priority < PRIORITY;
            if !self.memory.is_balanced(zone) && !tried {
                self.pass.looks = (self.memory.inactive(zone) >> self.pass.priority).max(BATCH);
            }
            self.wakes[RECLAIM] = self.now + LOOK;
        } else {
            self.end_pass();
        }
    }

    fn end_pass(&mut self) {
        let rests = |zone| self.memory.is_balanced(zone) || self.memory.is_hopeless(zone);
        if (0..ZONES).all(rests) {
            self.wakes[RECLAIM] = NEVER;
            return;
        }
        let before = self.pass.priority;
        let priority = if self.pass.freed >= BATCH || before == 0 { PRIORITY } else { before - 1 };
        self.pass = Pass { priority, zones: ZONES, looks: 0, freed: 0 };
        self.wakes[RECLAIM] = self.now + if before < PRIORITY - 2 { CONGESTED } else { LOOK };
    }

    /// Looks at the oldest pages of a zone.
    fn look_at(&mut self, zone: usize, looks: usize, may_write: bool) -> Found {
        let mut found = Found::default();
        for _ in 0..looks {
            let Some(page) = self.memory.look(zone) else { break };
            match self.memory.page(page).state {
                State::Clean => {
                    found.freed += 1;
                    self.forget(zone, page);
                }
                State::Writeback => self.memory.page_mut(page).wanted = true,
                State::Dirty => {
                    self.memory.page_mut(page).wanted = true;
                    if may_write && !found.is_blocked {
                        found.written += 1;
                        found.is_blocked = self.page_out(page);
                    }
                }
            }
        }
        found
    }

    fn forget(&mut self, zone: usize, page: u32) {
        let content = self.memory.free(zone, page);
        if content < METADATA {
            self.file.gone(content as usize);
        }
    }

    /// Reclaim wants a dirty page written: this is what the source counts, whatever the file system does then. Whether there is room for
    /// no more.
    fn page_out(&mut self, page: u32) -> bool {
        self.measured.reclaim_writes += 1;
        let content = self.memory.page(page).content;
        let written = self.setup.file_system.pageout == Pageout::Written && content < METADATA;
        if written {
            self.submit(content.into(), vec![page]);
        }
        written && self.stick.is_full()
    }

    /// Five times a second: the stick's speed is measured; once a second all is noted.
    fn tick(&mut self) {
        self.wakes[CLOCK] = self.now + 200 * MILLI;
        let bytes = (self.landed - self.landed_before) * PAGE_BYTES * 5;
        self.landed_before = self.landed;
        let before = if self.bytes_per_second == 0 { bytes } else { self.bytes_per_second };
        self.bytes_per_second = (7 * before + bytes) / 8;
        self.ticks += 1;
        if self.ticks.is_multiple_of(5) {
            let zones = self.memory.zones();
            let paused = std::mem::take(&mut self.paused);
            self.measured.samples.push(Sample { unsaved: zones.map(|zone| zone.unsaved), paused });
        }
        self.start_write_back();
    }
}
