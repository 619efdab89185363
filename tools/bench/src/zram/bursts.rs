//! Bursts of writes, in process: deferred compression beside none and the kernel's device.
//!
//! A burst is half of `deferred_bytes_max`: each of its pages is written once, in random order, and after it the device comes to
//! rest. Sustained writes are four times `deferred_bytes_max`, without a pause: of these deferring has nothing to win.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use spillway_core::IoBuf;
use spillway_io::Workers;
use spillway_layers::zram::Config;

use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{figure, ratio, row};
use crate::peers::device::{Device, at};
use crate::peers::kernel_zram::KernelZram;
use crate::peers::pages::{PAGE, Pages};

/// The room of the device that defers.
const DEFERRED_BYTES_MAX: u64 = 64 << 20;

/// What is wanted of a burst, to the same device without room, and to the kernel's.
const TO_NONE: f64 = 3.0;
const TO_KERNEL: f64 = 4.0;

/// What is wanted of sustained writes.
const SUSTAINED: f64 = 1.0;

pub(crate) fn run(workers: &Workers, set: &Pages, rounds: Rounds) -> Result<()> {
    let device = |deferred_bytes_max| {
        let disksize = 4 * DEFERRED_BYTES_MAX;
        let config = Config { disksize, deferred_bytes_max, max_comp_streams: 1, ..Config::default() };
        Device::with(workers, config)
    };
    let (ours, none) = (device(DEFERRED_BYTES_MAX)?, device(0)?);
    let kernel = KernelZram::if_there(4 * DEFERRED_BYTES_MAX);
    let file = kernel.as_ref().map(KernelZram::open).transpose()?;
    let pages = DEFERRED_BYTES_MAX as usize / PAGE;
    let order = drawn_order(pages / 2, 7);
    let long = drawn_order(pages * 4, 8);
    let figures = rounds.measure(|round| {
        let mut rates = vec![0.0; 5];
        for turn in drawn_order(5, round) {
            rates[turn] = match turn {
                0 => burst(&ours, set, &order)?,
                1 => burst(&none, set, &order)?,
                2 => file.as_ref().map_or(f64::NAN, |file| kernel_burst(file, set, &order)),
                3 => burst(&ours, set, &long)?,
                _ => burst(&none, set, &long)?,
            };
        }
        Ok(rates)
    })?;
    let [ours, none, of_kernel, sustained, sustained_none] = &figures[..] else { unreachable!("five turns") };
    let (rate, to_kernel) = (figure(of_kernel, 0), ratio(ours, of_kernel).at_least(TO_KERNEL));
    let to_none = ratio(ours, none).at_least(TO_NONE).of_ours();
    let gain = ratio(sustained, sustained_none).at_least(SUSTAINED).of_ours();
    let rows = vec![
        row!["burst of half", figure(ours, 0), figure(none, 0), to_none, rate, to_kernel],
        row!["sustained", figure(sustained, 0), figure(sustained_none, 0), gain, "-", "-"],
    ];
    let title =
        format!("Writes in process, lz4, {}, deferred_bytes_max 64M, thousand pages a second", set.name);
    let head = ["", "deferring", "with 0", "to 0", "kernel zram, a system call a page", "to kernel zram"];
    rounds.show(&title, &head, rows)
}

/// Thousands of pages a second. Begins and ends at rest.
fn burst(device: &Device, set: &Pages, order: &[usize]) -> Result<f64> {
    let mut buf = IoBuf::new(PAGE);
    let start = Instant::now();
    for &index in order {
        buf.copy_from_slice(set.page(index));
        buf = device.write(at(index), buf);
    }
    let took = start.elapsed();
    while device.number("deferred_bytes")? > 0 {
        sleep(Duration::from_millis(10));
    }
    // What is compressed is packed a moment later.
    sleep(Duration::from_millis(500));
    Ok(order.len() as f64 / took.as_secs_f64() / 1e3)
}

fn kernel_burst(file: &File, set: &Pages, order: &[usize]) -> f64 {
    let mut buf = IoBuf::new(PAGE);
    let start = Instant::now();
    for &index in order {
        buf.copy_from_slice(set.page(index));
        file.write_all_at(&buf, at(index)).expect("the kernel's zram takes a page");
    }
    order.len() as f64 / start.elapsed().as_secs_f64() / 1e3
}
