//! Pages written back to a spill file, on a simulated disk.

use spillway_sim::disk::{Latency, Medium, Plan};

use super::on_disk::{SHIFT, Spilling, config, content, medium, open, spilling, spilling_to};
use super::*;

pub(in crate::zram) mod attaching;
mod copies;
mod elsewhere;
mod errors;
mod keeping;
pub(in crate::zram) mod returning;
mod rot;

#[test]
fn what_was_written_back_reads_as_it_was_and_its_memory_is_free() {
    for compressed in [true, false] {
        let device = spilling(
            Config { compressed_writeback: compressed, bring_back: Promotion::Never, ..config() },
            medium(100),
        );
        device.fill(0..600, 1);
        let before = device.number("compr_data_size");
        device.write_back_all();
        device.settle();
        assert_eq!(device.bd_stat(), [600, 0, 600]);
        assert_eq!((device.number("compr_data_size"), device.number("orig_data_size")), (0, 600 << 12));
        let bytes = if compressed { before } else { 600 << 12 };
        assert_eq!(device.number("spill_bytes"), bytes);
        // Segments of 64 KiB, and batches of a quarter of that: much of it is summaries and pads.
        let written = device.number("spill_written_bytes");
        assert!(written < bytes + bytes / 2, "{written} bytes written for {bytes}");
        let share = device.show("write_amplification").parse::<f64>().unwrap();
        assert!((share - written as f64 / f64::from(600 << 12)).abs() < 0.01, "{share}");
        device.check(0..600, 1);
        // A run of pages, some of which are in memory, some nowhere.
        device.fill(100..103, 2);
        device.discard(104 << 12, 4096);
        let run = device.read(90, 32);
        for (slot, page) in (90..).zip(run.chunks(PAGE)) {
            let expected = match slot {
                100..=102 => content(slot, 2),
                104 => vec![0; PAGE],
                _ => content(slot, 1),
            };
            assert!(page == expected, "slot {slot}");
        }
        device.settle();
        assert_eq!(device.bd_stat()[0], 596);
    }
}

#[test]
fn each_batch_is_measured_once_whoever_asked_for_it() {
    let device = spilling_to(Latency::UsbStick, config(), medium(200));
    let meter = &device.zram.core.meter;
    device.fill(0..600, 1);
    let by_command = device.number("compr_data_size");
    device.write_back_all();
    assert_eq!(meter.written(), by_command);
    assert!(meter.bytes_per_second() > 0, "of what took longer than a measurement");
    device.fill(0..600, 2);
    device.set("spill_high_watermark", "0");
    device.set("spill_low_watermark", "0");
    device.settle();
    assert!(device.bd_stat()[0] > 0, "{}", device.show("policy"));
    assert_eq!(meter.written(), by_command + device.number("spill_bytes"));
}

#[test]
fn a_limit_is_kept_to_the_page() {
    let device = spilling(config(), medium(100));
    device.fill(0..1000, 1);
    device.set("writeback_limit_enable", "1");
    device.set("writeback_limit", "702");
    device.set("idle", "all");
    assert_eq!(device.refuse("writeback", "idle"), Kind::Io);
    assert_eq!((device.bd_stat(), device.number("writeback_limit")), ([702, 0, 702], 0));
    assert_eq!(device.refuse("writeback", "idle"), Kind::Io);
    assert_eq!(device.bd_stat(), [702, 0, 702]);
    device.check(0..1000, 1);
    device.set("writeback_limit_enable", "0");
    device.set("writeback", "page_indexes=0-999");
    device.settle();
    assert_eq!(device.bd_stat()[0], 1000);
}

#[test]
fn only_what_is_meant_is_written_back() {
    let device = spilling(config(), medium(100));
    device.fill(0..10, 1);
    let raw = |slot| page(&mut Random(slot), 100);
    (10..20).for_each(|slot| device.write(slot, &raw(slot)).unwrap());
    device.write(20, &[7; PAGE]).unwrap();
    device.set("writeback", "huge");
    assert_eq!(device.bd_stat(), [10, 0, 10]);
    device.set("writeback", "idle");
    device.set("writeback", "incompressible");
    assert_eq!(device.bd_stat(), [10, 0, 10], "nothing is idle, or was found to be incompressible");
    device.set("idle", "all");
    device.check(0..5, 1);
    device.set("writeback", "huge_idle");
    device.set("writeback", "type=idle");
    assert_eq!(device.bd_stat(), [15, 0, 15], "what was read is not idle");
    device.set("writeback", "page_index=0 page_indexes=1-2");
    assert_eq!(device.bd_stat(), [18, 0, 18]);
    device.set("writeback", "page_index=20 page_index=21");
    assert_eq!(device.bd_stat(), [18, 0, 18], "a repeated word and a hole take no room");
    device.world.advance(Duration::from_secs(100));
    device.check(3..4, 1);
    device.world.advance(Duration::from_secs(50));
    device.set("idle", "100");
    device.set("writeback", "idle");
    assert_eq!(device.bd_stat()[0], 19, "slot 3 was read 50 s ago, slot 4 before that");
    (10..20).for_each(|slot| assert!(device.read(slot, 1) == raw(slot)));
    device.check(0..10, 1);
    device.settle();
}

#[test]
fn commands_that_cannot_be_carried_out_say_why() {
    let device = spilling(Config { disksize: 0, spill_size: 32 << 20, ..config() }, Medium::new(32 << 20));
    assert_eq!(device.refuse("writeback", "idle"), Kind::Invalid);
    assert_eq!(device.refuse("idle", "all"), Kind::Invalid);
    for (name, value, shown) in [
        ("writeback_compressed", "off", "0"),
        ("compressed_writeback", "Y", "1"),
        ("writeback_limit_enable", "17", "1"),
        ("writeback_limit_enable", "00", "0"),
    ] {
        device.set(name, value);
        assert_eq!(device.show(name), shown, "{name} {value}");
    }
    device.set("disksize", "1M");
    assert_eq!(device.refuse("writeback", "young"), Kind::Invalid);
    assert_eq!(device.refuse("writeback", "page_index=256"), Kind::Range);
    for name in ["compressed_writeback", "writeback_compressed"] {
        assert_eq!((device.refuse(name, "0"), device.show(name)), (Kind::Busy, "1".into()), "{name}");
    }
    assert_eq!(device.refuse("writeback_batch_size", "0"), Kind::Invalid);
    assert_eq!(device.show("backing_dev"), "disk");
    let other = bench(sized(1 << 20));
    assert_eq!(other.refuse("writeback", "idle"), Kind::NoDevice);
    assert_eq!(
        (other.show("backing_dev"), other.show("bd_stat").trim(), other.number("spill_full")),
        ("none".into(), "0        0        0", 0)
    );
    let no_size = Config { disksize: 0, ..config() };
    assert_eq!(open("ram0", no_size, medium(40), Plan::default()).err().unwrap().kind, Kind::Invalid);
}

#[test]
fn a_full_file_is_an_error_of_the_command_and_nothing_else() {
    let device = spilling(config(), medium(12));
    (0..400).for_each(|slot| device.write(slot, &page(&mut Random(slot), 100)).unwrap());
    device.set("idle", "all");
    assert_eq!(device.refuse("writeback", "idle"), Kind::NoSpace);
    let [away, _, written] = device.bd_stat();
    assert!((50..200).contains(&away) && away == written, "{away} of {written} pages");
    device.settle();
    let [failed @ .., full] = device.errors();
    assert!(full > 0 && failed == [0; 3], "{full} I/Os without room, {failed:?} failed");
    // What is overwritten makes room for others.
    (0..400).for_each(|slot| device.write(slot, &page(&mut Random(1000 + slot), 100)).unwrap());
    device.settle();
    device.set("idle", "all");
    assert_eq!(device.refuse("writeback", "idle"), Kind::NoSpace);
    assert!(device.bd_stat()[0] >= 50, "{:?}", device.bd_stat());
    (0..400).for_each(|slot| assert!(device.read(slot, 1) == page(&mut Random(1000 + slot), 100)));
    device.settle();
}

#[test]
fn what_is_written_discarded_or_read_meanwhile_stays_in_memory() {
    let slow = Plan { latency: Latency::Network, ..Plan::default() };
    let device = open("ram0", config(), medium(100), slow).unwrap();
    device.fill(0..30, 1);
    device.set("idle", "all");
    let mut command = std::pin::pin!(device.table.store("writeback", "idle"));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    // No I/O ends as long as the clock stands.
    (0..100).for_each(|_| _ = device.world.turn());
    assert!(
        command.as_mut().poll(&mut context).is_pending()
            && device.zram.core.backing.get().unwrap().is_at_work()
    );
    device.fill(0..10, 2);
    device.discard(10 << 12, 5 << 12);
    device.check(15..20, 1);
    let ended = loop {
        if let std::task::Poll::Ready(ended) = command.as_mut().poll(&mut context) {
            break ended;
        }
        device.world.turn();
        device.world.advance(Duration::from_millis(1));
    };
    ended.unwrap();
    device.settle();
    assert_eq!(device.bd_stat(), [10, 0, 30]);
    device.check(0..10, 2);
    assert!(device.read(10, 5).iter().all(|&byte| byte == 0));
    device.check(15..30, 1);
    device.settle();
}

#[test]
fn the_second_read_within_a_time_brings_a_page_back() {
    let device = spilling(config(), medium(100));
    let read_twice = |after: u64| {
        device.check(5..6, 1);
        device.world.advance(Duration::from_secs(after));
        device.check(5..6, 1);
        device.settle();
        device.bd_stat()[0]
    };
    device.fill(0..10, 1);
    device.write_back_all();
    assert_eq!(read_twice(61), 10);
    assert_eq!(read_twice(0), 9, "it was read before");
    assert_eq!(device.number("brought_back_pages"), 1);
    assert_eq!(device.number("num_reads"), 4);
    device.set("bring_back", "never");
    device.write_back_all();
    assert_eq!(read_twice(0), 10);
    device.set("bring_back", "always");
    device.check(7..8, 1);
    device.settle();
    assert_eq!(device.bd_stat()[0], 9);
    // Where there is no room it stays away, and is read all the same.
    device.set("mem_limit", "4096");
    device.check(0..10, 1);
    device.settle();
}

#[test]
fn a_reset_empties_the_file() {
    let device = spilling(config(), medium(100));
    device.fill(0..800, 1);
    device.write_back_all();
    device.set("reset", "1");
    device.settle();
    assert_eq!(device.number("spill_bytes"), 0);
    let before = device.number("spill_written_bytes");
    assert!(before > 0);
    assert_eq!(device.show("write_amplification"), "0", "nothing is written since");
    device.set("disksize", "4M");
    for version in 2..8 {
        device.fill(0..800, version);
        device.write_back_all();
        device.check(0..800, version);
        device.settle();
        let written = (device.number("spill_written_bytes") - before) as f64;
        let share = written / (device.number("num_writes") << 12) as f64;
        let shown = device.show("write_amplification").parse::<f64>().unwrap();
        assert!((shown - share).abs() < 0.01, "{shown}, and {share} since the reset");
    }
}

/// Commands that come to their turn only after it do nothing to what the next device holds.
#[test]
fn a_command_that_a_reset_overtakes_is_over() {
    for (name, value) in [("idle", "all"), ("writeback", "page_indexes=0-99"), ("writeback", "huge")] {
        let device = spilling(config(), medium(100));
        device.fill(0..50, 1);
        let command = device.table.store(name, value);
        block_on(device.zram.core.reset()).unwrap();
        device.zram.core.resize(4 << 20).unwrap();
        for slot in 0..100 {
            let write = Request::write(slot * PAGE as u64, IoBuf::copy_of(&page(&mut Random(slot), 100)));
            let Answer::Done(reply) = device.seam.submit(write) else { panic!("there is room") };
            assert_eq!(reply.result, Ok(()));
        }
        assert_eq!(device.run(command).unwrap_err().kind, Kind::ShuttingDown, "{name} {value}");
        assert_eq!(device.bd_stat()[0], 0, "{name} {value}");
        device.set("writeback", "idle");
        assert_eq!(device.bd_stat()[0], 0, "{name} {value}: nothing was marked");
        device.settle();
    }
}

#[test]
fn a_file_is_taken_again_by_the_device_that_stopped_and_by_nobody_else() {
    let device = spilling(config(), medium(40));
    device.fill(0..50, 1);
    device.write_back_all();
    let left = device.stop();
    let refused = open("ram1", config(), left.clone(), Plan::default()).err().unwrap();
    assert_eq!(refused.kind, Kind::Busy, "{refused}");
    let again = open("ram0", config(), left.clone(), Plan::default()).unwrap();
    assert_eq!(again.bd_stat(), [0, 0, 0]);
    assert!(again.notes.concat().contains("gone"), "{:?}", again.notes);
    // It was not stopped now.
    let left = again.cut();
    let refused = open("ram0", config(), left.clone(), Plan::default()).err().unwrap();
    assert_eq!(refused.kind, Kind::Busy, "{refused}");
    open("ram1", Config { force: true, ..config() }, left, Plan::default()).unwrap();
}

#[test]
fn pages_leave_in_few_large_ios_and_neighbours_come_back_in_one() {
    let ios = |batch: &str| {
        let device = spilling(config(), medium(100));
        device.fill(0..256, 1);
        device.set("writeback_batch_size", batch);
        let before = device.disk.calls();
        device.write_back_all();
        let written = device.disk.calls() - before;
        let before = device.disk.calls();
        let run = device.read(0, 64);
        assert!(run.chunks(PAGE).zip(0..).all(|(page, slot)| page == content(slot, 1)));
        device.settle();
        (written, device.disk.calls() - before)
    };
    let ((one, apart), (many, together)) = (ios("1"), ios("256"));
    assert!(one > 256 && many < 80, "{one} and {many} I/Os for 256 pages");
    assert!(together <= 10 && apart <= 10, "{together} and {apart} I/Os read 64 pages");
}
