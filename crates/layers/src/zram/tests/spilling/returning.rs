//! Pages that reads bring back from the spill file, and what they and the table take of memory.

use spillway_core::Charge;

use spillway_sim::disk::Latency;

use super::super::on_disk::{Spilling, config, content, medium, spilling, spilling_to};
use super::*;

fn raw(slot: u64, version: u64) -> Vec<u8> {
    page(&mut Random(slot << 20 | version), 100)
}

/// What is left for others and the device together.
const MEMORY: u64 = 64 << 20;

/// A device all of whose 200 pages have left memory, of which others have nearly all.
fn all_away(bring_back: Promotion) -> (Spilling, Charge) {
    let device = spilling(Config { bring_back, ..config() }, medium(300));
    (0..200).for_each(|slot| device.write(slot, &raw(slot, 1)).unwrap());
    let others = device.budget.hold(MEMORY - device.budget.used()).unwrap();
    device.settle();
    device.settle();
    assert_eq!((device.bd_stat()[0], device.number("compr_data_size")), (200, 0));
    assert!(device.show("policy").contains("no page in memory can be evicted"), "{}", device.show("policy"));
    (device, others)
}

fn read_all(device: &Spilling) {
    (0..200).for_each(|slot| assert!(device.read(slot, 1) == raw(slot, 1), "slot {slot}"));
}

#[test]
pub(in crate::zram) fn pages_that_reads_brought_back_leave_again_for_writes() {
    let (device, others) = all_away(Promotion::Always);
    drop(others);
    read_all(&device);
    assert_eq!(device.number("brought_back_pages"), 200);
    let _others = device.budget.hold(MEMORY - device.budget.used()).unwrap();
    for slot in 300..600 {
        assert_eq!(device.write(slot, &raw(slot, 1)), Ok(()), "{slot}: {}", device.show("policy"));
    }
    read_all(&device);
    (300..600).for_each(|slot| assert!(device.read(slot, 1) == raw(slot, 1), "slot {slot}"));
    device.settle();
}

#[test]
pub(in crate::zram) fn nothing_is_brought_back_above_the_high_watermark() {
    let (device, others) = all_away(Promotion::Always);
    read_all(&device);
    assert_eq!(device.number("brought_back_pages"), 0, "{}", device.show("policy"));
    drop(others);
    device.set("mem_limit", "400K");
    // It sees that memory is not short any more.
    device.settle();
    read_all(&device);
    let back = device.number("brought_back_pages");
    assert!((30..95).contains(&back), "{back} pages of 4 KiB were brought back to 90 % of 400 KiB");
    assert_eq!(device.bd_stat()[0], 200 - back, "none has left again: {}", device.show("policy"));
    device.settle();
}

#[test]
fn nothing_is_brought_back_that_could_not_leave_again() {
    let (device, others) = all_away(Promotion::Always);
    drop(others);
    device.set("writeback_limit_enable", "1");
    read_all(&device);
    assert_eq!(device.number("brought_back_pages"), 0, "{}", device.show("policy"));
    device.set("writeback_limit", "1000");
    read_all(&device);
    assert_eq!(device.number("brought_back_pages"), 200);
    device.settle();
}

/// What leaves decompressed comes back compressed: it takes no more memory than before, and does not count as huge.
#[test]
fn a_page_takes_as_much_memory_after_its_return_as_before_it_left() {
    for compressed_writeback in [true, false] {
        let device =
            spilling(Config { bring_back: Promotion::Always, compressed_writeback, ..config() }, medium(100));
        device.fill(0..100, 1);
        (100..110).for_each(|slot| device.write(slot, &raw(slot, 1)).unwrap());
        let before = (device.number("compr_data_size"), device.columns("mm_stat")[7]);
        device.write_back_all();
        assert_eq!((device.number("compr_data_size"), device.bd_stat()[0]), (0, 110));
        device.check(0..100, 1);
        (100..110).for_each(|slot| assert!(device.read(slot, 1) == raw(slot, 1), "slot {slot}"));
        assert_eq!(device.number("brought_back_pages"), 110);
        let after = (device.number("compr_data_size"), device.columns("mm_stat")[7]);
        assert_eq!(after, before, "compressed in the file: {compressed_writeback}");
        assert!((0..100).all(|slot| device.read(slot, 1) == content(slot, 1)));
        device.settle();
    }
}

/// Write-back goes on at the depth that it has beside reads.
#[test]
pub(in crate::zram) fn a_page_that_is_being_read_from_the_file_holds_write_back_back() {
    let device = spilling_to(Latency::Network, config(), medium(100));
    device.fill(0..4, 1);
    device.write_back_all();
    let reads = || device.zram.core.meter.is_read();
    assert!(!reads());
    let mut read = Box::pin(device.seam.submit(Request::read(0, IoBuf::new(PAGE))));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(read.as_mut().poll(&mut context).is_pending() && reads());
    assert_eq!(device.world.run(Answer::pending(read)).result, Ok(()));
    assert!(!reads());
    device.settle();
}

/// The table of a device of 64 times its memory takes a quarter of that, which no moving of objects frees.
#[test]
fn watermarks_and_throttle_count_a_large_table() {
    let device =
        spilling(Config { bring_back: Promotion::Never, disksize: 64 << 20, ..config() }, medium(1200));
    device.set("mem_limit", "1M");
    (0..16384).for_each(|slot| device.write(slot, &raw(slot, 1)).unwrap());
    assert!(device.number("throttled_writes") > 0);
    let policy = device.show("policy");
    let held: u64 = policy.split(' ').next().unwrap().parse().unwrap();
    assert!((80..=100).contains(&held), "{policy}");
    device.settle();
}
