//! What readers see of commands that take long, and of a stop whose spill file keeps everything.

use spillway_core::{Suspend, WorkKind};
use spillway_sim::disk::Latency;

use super::on_disk::{config, medium, spilling_to};
use super::*;
use crate::watched::Watched;

/// Pages that are written: of a device of 1024.
const PAGES: u64 = 600;

const SIZE: u64 = 4 << 20;

#[test]
fn commands_and_a_stop_count_up_to_their_totals() {
    let config = Config { keep: true, recomp_algorithm: Some("algo=zstd".into()), ..config() };
    let device = spilling_to(Latency::UsbStick, config, medium(100));
    device.fill(0..PAGES, 1);
    let watched = Watched::new(&device.world, &device.registry);
    device.set("recompress", "max_pages=400");
    watched.ended(WorkKind::Recompress, 2 * SIZE);
    device.set("writeback", "page_indexes=100-399 page_indexes=0-49");
    watched.ended(WorkKind::WriteBack, 350 * PAGE as u64);
    let suspend = device.zram.suspend();
    device.world.run(Answer::Pending(suspend)).unwrap();
    watched.ended(WorkKind::Keep, PAGES * PAGE as u64);
}

#[test]
fn a_command_that_a_reset_ends_is_over() {
    let device = spilling_to(Latency::UsbStick, config(), medium(100));
    device.fill(0..PAGES, 1);
    let written = device.table.set("writeback", Value::Text("page_indexes=0-599".into()));
    device.world.turn_until(Duration::from_millis(1), 1000, || !device.registry.progress().is_empty());
    device.set("reset", "1");
    drop(written);
    device.settle();
    assert_eq!(device.registry.progress(), []);
}
