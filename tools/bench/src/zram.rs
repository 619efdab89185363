//! In process: one loop drives our device and the kernel's, with the same pages in the same order.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::Result;
use spillway_core::IoBuf;
use spillway_core::contract::Random;
use spillway_io::{Workers, WorkersOptions};

use crate::contenders::{Device, at};
use crate::kernel_zram::KernelZram;
use crate::pages::{self, PAGE, Pages};
use crate::report::{at_least, median, ratio, table};
use crate::{memory, streams};

/// Bytes of each set of pages.
const SET_BYTES: usize = 128 << 20;

pub(crate) fn run(rounds: usize) -> Result<()> {
    let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() })?;
    for set in [pages::elf(SET_BYTES)?, pages::half(SET_BYTES)] {
        beside_the_kernel(&workers, &set, rounds)?;
    }
    memory::compare(&workers)?;
    streams::tables(&workers, rounds)
}

pub(crate) fn streams_alone(rounds: usize) -> Result<()> {
    streams::tables(&Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() })?, rounds)
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

fn shuffled(count: usize) -> Vec<usize> {
    let (mut order, mut random): (Vec<usize>, _) = ((0..count).collect(), Random(7));
    for index in (1..count).rev() {
        order.swap(index, random.below(index as u64 + 1) as usize);
    }
    order
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
    let rate = |time: std::time::Duration| order.len() as f64 / time.as_secs_f64() / 1e3;
    (rate(wrote), rate(start.elapsed()))
}

fn beside_the_kernel(workers: &Workers, set: &Pages, rounds: usize) -> Result<()> {
    let bytes = set.bytes.len() as u64;
    let peer = match KernelZram::new(bytes) {
        Ok(peer) => peer,
        Err(why) => {
            println!("\nNo comparison with the kernel's zram for {}: {why:#}", set.name);
            return Ok(());
        }
    };
    let (file, order) = (peer.open()?, shuffled(set.count()));
    let ours = Device::new(workers, bytes, "lz4", 1)?;
    let (mut our, mut their) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for _ in 0..rounds {
        for (rates, store) in [(&mut our, &ours as &dyn Store), (&mut their, &file)] {
            let (write, read) = race(store, set, &order);
            rates.0.push(write);
            rates.1.push(read);
        }
    }
    let row = |what: &str, our: &[f64], their: &[f64], wanted| {
        vec![
            what.into(),
            format!("{:.0}", median(our)),
            format!("{:.0}", median(their)),
            at_least(ratio(our, their), wanted),
        ]
    };
    let title =
        format!("In process, lz4, {}, one thread, {rounds} rounds, thousand pages a second", set.name);
    let rows = [row("write", &our.0, &their.0, 1.3), row("read", &our.1, &their.1, 2.0)];
    table(&title, &["", "spillway", "kernel zram", "ratio"], &rows);
    drop(file);
    Ok(())
}
