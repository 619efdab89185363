//! The program under test with an allocator that counts: whether memory stays below a limit is checked at each allocation.
//!
//! What counts is the sum of two: bytes that are allocated now, and resident bytes of regions and slabs. The kernel tells regions from all
//! other mappings by their flags in `smaps` (private, no reserve, advised about huge pages: see `io::memory`); they are looked at every few
//! milliseconds. A file that is mapped (mode `p` of the write cache) is neither: its pages are the page cache's.
//!
//! `SPILLWAY_COUNTED` names the file that the counts are written to, `SPILLWAY_COUNTED_MAX` the limit in bytes. The first allocation above the
//! limit prints what is allocated, by size, and where it comes from itself.

use std::backtrace::Backtrace;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use spillway_counting::{Counting, Tally};
use spillway_tests::counted::{Counts, FILE, LIMIT, regions_resident};

#[global_allocator]
static ALLOCATOR: Counting<Watched> = Counting(Watched);

/// Bytes allocated now.
static LIVE: AtomicU64 = AtomicU64::new(0);
/// Most bytes allocated at once since the last look at regions.
static HIGH: AtomicU64 = AtomicU64::new(0);
/// Resident bytes of regions at the last look.
static REGIONS: AtomicU64 = AtomicU64::new(0);
static MAX: AtomicU64 = AtomicU64::new(u64::MAX);
static BROKEN: AtomicBool = AtomicBool::new(false);
/// Bytes allocated now by size: class N holds what is longer than 2^(N-1) and at most 2^N bytes.
static BY_SIZE: [AtomicU64; 48] = [const { AtomicU64::new(0) }; 48];

/// Least time between two looks at regions.
const PAUSE: Duration = Duration::from_millis(10);

/// Classes with less than this are left out of what is printed.
const SHOWN_MIN: u64 = 1 << 20;

struct Watched;

impl Tally for Watched {
    fn took(&self, bytes: usize) {
        took(bytes);
    }

    fn gave(&self, bytes: usize) {
        gave(bytes);
    }

    /// Large blocks are moved by the kernel, page by page, and exist once.
    fn resized(&self, from: usize, to: usize) {
        gave(from);
        took(to);
    }
}

fn class(bytes: usize) -> usize {
    (bytes.max(1).next_power_of_two().trailing_zeros() as usize).min(BY_SIZE.len() - 1)
}

fn took(bytes: usize) {
    BY_SIZE[class(bytes)].fetch_add(bytes as u64, Relaxed);
    let live = LIVE.fetch_add(bytes as u64, Relaxed) + bytes as u64;
    HIGH.fetch_max(live, Relaxed);
    if live + REGIONS.load(Relaxed) > MAX.load(Relaxed) && !BROKEN.swap(true, Relaxed) {
        complain(bytes, live);
    }
}

fn gave(bytes: usize) {
    BY_SIZE[class(bytes)].fetch_sub(bytes as u64, Relaxed);
    LIVE.fetch_sub(bytes as u64, Relaxed);
}

/// What it allocates itself is counted, and complained of no more.
#[cold]
fn complain(bytes: usize, live: u64) {
    let by_size = BY_SIZE.each_ref().map(|bytes| bytes.load(Relaxed));
    let (regions, max) = (REGIONS.load(Relaxed), MAX.load(Relaxed));
    eprintln!("counted: {live} bytes allocated and {regions} in regions are above {max}");
    for (class, bytes) in by_size.into_iter().enumerate().filter(|(_, bytes)| *bytes >= SHOWN_MIN) {
        eprintln!("counted: {bytes} bytes in allocations of up to {}", 1u64 << class);
    }
    eprintln!("counted: the last {bytes} bytes are for\n{}", Backtrace::force_capture());
}

/// Looks at regions again and again, and writes down what is counted.
fn watch(file: &File) {
    let mut counts = Counts::default();
    loop {
        let begin = Instant::now();
        let before = counts.regions;
        counts.regions = regions_resident().expect("the kernel shows a process its own mappings");
        REGIONS.store(counts.regions, Relaxed);
        let high = HIGH.swap(LIVE.load(Relaxed), Relaxed);
        counts.live = LIVE.load(Relaxed);
        counts.allocated_max = counts.allocated_max.max(high);
        counts.regions_max = counts.regions_max.max(counts.regions);
        counts.sum_max = counts.sum_max.max(high + before.max(counts.regions));
        if counts.sum_max > MAX.load(Relaxed) && !BROKEN.swap(true, Relaxed) {
            complain(0, high);
        }
        counts.broken = u64::from(BROKEN.load(Relaxed));
        counts.looks += 1;
        file.write_all_at(&counts.bytes(), 0).expect("the file of counts can be written");
        // A look costs time in proportion to what is resident: it takes at most a tenth of a core.
        std::thread::sleep(PAUSE.max(begin.elapsed() * 9));
    }
}

fn main() -> ExitCode {
    let path = std::env::var_os(FILE).expect("SPILLWAY_COUNTED names the file of counts");
    let limit = std::env::var(LIMIT).ok().and_then(|text| text.parse().ok());
    MAX.store(limit.expect("SPILLWAY_COUNTED_MAX is a number of bytes"), Relaxed);
    let file = File::create(path).expect("the file of counts can be created");
    std::thread::spawn(move || watch(&file));
    spillway::main()
}
