//! In process: one loop drives our device, bare lz4 and the kernel's device, with the same pages in the same order.
//!
//! Bare lz4 compresses into a buffer of its own for each page and keeps no table, so that it is what any store over this codec
//! can reach. The kernel's device is reached by a system call for each page, which ours is not: the ratio to it is shown, and
//! no bound is set on it.

mod bursts;
mod file_system;
mod keep;
mod memory;

use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::Result;
use spillway_core::IoBuf;
use spillway_io::{Workers, WorkersOptions};

use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Cell, figure, ratio, row};
use crate::peers::device::{Device, at};
use crate::peers::kernel_zram::KernelZram;
use crate::peers::lz4::{lz4, unlz4};
use crate::peers::pages::{self, PAGE, Pages};

/// Bytes of each set of pages.
const SET_BYTES: usize = 128 << 20;

/// Share of bare lz4's pages a second that is wanted.
const OF_BARE: f64 = 0.92;

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() })?;
    match rounds.part {
        Some("codec") => codec(&workers, rounds),
        Some("bursts") => bursts::run(&workers, &pages::elf(SET_BYTES)?, rounds),
        Some("memory") => memory::compare(&workers, rounds),
        Some("recompress") => memory::recompress(&workers, rounds),
        Some("keep") => keep::measure(&workers, rounds),
        _ => file_system::compare(rounds),
    }
}

fn codec(workers: &Workers, rounds: Rounds) -> Result<()> {
    let (bytes, mut rows) = (rounds.pick(SET_BYTES, SET_BYTES / 4), Vec::new());
    for set in [pages::elf(bytes)?, pages::half(bytes)?] {
        rows.extend(beside_the_codec_and_the_kernel(workers, &set, rounds)?);
    }
    let head =
        ["", "spillway", "bare lz4", "to bare lz4", "kernel zram, a system call a page", "to kernel zram"];
    rounds.show("In process, lz4, one thread, thousand pages a second", &head, rows)
}

/// Takes and gives pages by number.
trait Store {
    fn write(&self, index: usize, buf: IoBuf) -> IoBuf;
    fn read(&self, index: usize, buf: IoBuf) -> IoBuf;
}

impl Store for Device {
    fn write(&self, index: usize, buf: IoBuf) -> IoBuf {
        Device::write(self, at(index), buf)
    }

    fn read(&self, index: usize, buf: IoBuf) -> IoBuf {
        Device::read(self, at(index), buf)
    }
}

impl Store for std::fs::File {
    fn write(&self, index: usize, buf: IoBuf) -> IoBuf {
        self.write_all_at(&buf, at(index)).expect("the kernel's zram takes a page");
        buf
    }

    fn read(&self, index: usize, mut buf: IoBuf) -> IoBuf {
        self.read_exact_at(&mut buf, at(index)).expect("the kernel's zram gives a page");
        buf
    }
}

/// lz4 and nothing else: the compressed form of each page in its own place, or the page as it is.
struct Bare(RefCell<Vec<Slot>>);

struct Slot {
    bytes: [u8; PAGE],
    len: usize,
}

impl Bare {
    fn new(count: usize) -> Self {
        Self(RefCell::new((0..count).map(|_| Slot { bytes: [0; PAGE], len: 0 }).collect()))
    }
}

impl Store for Bare {
    fn write(&self, index: usize, buf: IoBuf) -> IoBuf {
        let slot = &mut self.0.borrow_mut()[index];
        // 0: it does not fit.
        slot.len = lz4(&buf, &mut slot.bytes[..PAGE - 1]) as usize;
        if slot.len == 0 {
            slot.bytes.copy_from_slice(&buf);
            slot.len = PAGE;
        }
        buf
    }

    fn read(&self, index: usize, mut buf: IoBuf) -> IoBuf {
        let slot = &self.0.borrow()[index];
        match slot.len {
            PAGE => buf.copy_from_slice(&slot.bytes),
            len => unlz4(&slot.bytes[..len], &mut buf),
        }
        buf
    }
}

/// Thousands of pages a second, writing then reading every page once in random order.
fn race(store: &dyn Store, set: &Pages, order: &[usize]) -> (f64, f64) {
    let mut buf = IoBuf::new(PAGE);
    let start = Instant::now();
    for &index in order {
        buf.copy_from_slice(set.page(index));
        buf = store.write(index, buf);
    }
    let wrote = start.elapsed();
    let start = Instant::now();
    for &index in order {
        buf = store.read(index, buf);
    }
    let rate = |time: Duration| order.len() as f64 / time.as_secs_f64() / 1e3;
    (rate(wrote), rate(start.elapsed()))
}

fn beside_the_codec_and_the_kernel(workers: &Workers, set: &Pages, rounds: Rounds) -> Result<[Vec<Cell>; 2]> {
    let bytes = set.bytes.len() as u64;
    let peer = KernelZram::if_there(bytes);
    let file = peer.as_ref().map(KernelZram::open).transpose()?;
    let order = drawn_order(set.count(), 7);
    let (ours, bare) = (Device::new(workers, bytes, "lz4", 1)?, Bare::new(set.count()));
    let mut stores: Vec<&dyn Store> = vec![&ours, &bare];
    stores.extend(file.as_ref().map(|file| file as &dyn Store));
    let figures = rounds.measure(|round| {
        let mut rates = vec![f64::NAN; 6];
        for turn in drawn_order(stores.len(), round) {
            (rates[2 * turn], rates[2 * turn + 1]) = race(stores[turn], set, &order);
        }
        Ok(rates)
    })?;
    let beside = |what: &str, offset: usize| {
        let [ours, bare, kernel] = [0, 2, 4].map(|store| &figures[store + offset]);
        let to_bare = ratio(ours, bare).at_least(OF_BARE).of_ours();
        let what = format!("{}, {what}", set.name);
        row![what, figure(ours, 0), figure(bare, 0), to_bare, figure(kernel, 0), ratio(ours, kernel)]
    };
    Ok([beside("write", 0), beside("read", 1)])
}
