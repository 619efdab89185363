//! Pages that came back and keep their records: they leave again without being written, unless they were written meanwhile.

use super::super::on_disk::{SHIFT, Spilling, config, content, medium, spilling, spilling_by, spilling_to};
use super::*;
use crate::spill::tests::stopping::reader;
use spillway_sim::disk::{Effect, Fault, Latency, Plan};

/// A device all of whose pages, `slots` of them, were away and came back.
fn all_back(config: Config, segments: u64, slots: u64) -> Spilling {
    all_back_on(Plan::default(), config, segments, slots)
}

fn all_back_on(plan: Plan, config: Config, segments: u64, slots: u64) -> Spilling {
    let device = spilling_by(plan, Config { bring_back: Promotion::Always, ..config }, medium(segments));
    device.fill(0..slots, 1);
    device.write_back_all();
    device.check(0..slots, 1);
    assert_eq!([device.bd_stat()[0], device.number("clean_pages")], [0, slots]);
    device.settle();
    device
}

fn written(device: &Spilling) -> u64 {
    device.number("spill_written_bytes")
}

#[test]
pub(in crate::zram) fn what_comes_and_goes_over_and_over_is_written_once() {
    for compressed_writeback in [true, false] {
        let device = all_back(Config { compressed_writeback, ..config() }, 100, 200);
        let (before, pages) = (written(&device), device.bd_stat()[2]);
        for round in 0..5 {
            device.write_back_all();
            assert_eq!([device.bd_stat()[0], device.number("clean_pages")], [200, 0], "round {round}");
            assert_eq!(device.number("compr_data_size"), 0, "round {round}");
            device.check(0..200, 1);
        }
        assert_eq!((written(&device), device.bd_stat()[2]), (before, pages), "{compressed_writeback}");
        device.settle();
    }
}

/// What a clean copy is of is what was read: no change of the page leaves it.
#[test]
pub(in crate::zram) fn a_page_that_changes_has_no_copy_any_more() {
    let device = all_back(config(), 100, 60);
    let change = [
        |device: &Spilling, slot: u64| device.write(slot, &content(slot, 2)).unwrap(),
        |device: &Spilling, slot: u64| device.write(slot, &[7; PAGE]).unwrap(),
        |device: &Spilling, slot: u64| device.discard(slot * PAGE as u64, PAGE as u64),
        |device: &Spilling, slot: u64| {
            let range = ByteRange::new(slot * PAGE as u64, PAGE as u64);
            assert_eq!(device.run(device.seam.submit(Request::bare(Op::WriteZeroes, range))).result, Ok(()));
        },
    ];
    (0..40).for_each(|slot| change[slot as usize % 4](&device, slot));
    assert_eq!(device.number("clean_pages"), 20);
    for _ in 0..2 {
        device.write_back_all();
        for slot in 0..40 {
            let expected = [content(slot, 2), vec![7; PAGE], vec![0; PAGE], vec![0; PAGE]];
            assert!(device.read(slot, 1) == expected[slot as usize % 4], "slot {slot}");
        }
        device.check(40..60, 1);
    }
    device.settle();
    device.set("reset", "1");
    device.settle();
    assert_eq!(device.number("clean_pages"), 0);
}

/// Compaction moves a page's object, and recompression makes another one of it: the record is the page's still.
#[test]
fn a_page_that_moves_or_is_recompressed_keeps_its_copy() {
    let device = all_back(Config { recomp_algorithm: Some("algo=zstd".into()), ..config() }, 100, 250);
    (0..250).filter(|slot| slot % 2 == 1).for_each(|slot| device.discard(slot * PAGE as u64, PAGE as u64));
    device.set("compact", "1");
    look(&device, 10);
    assert!(device.columns("mm_stat")[6] > 0, "something was moved");
    device.set("recompress", "");
    let before = written(&device);
    let even = || (0..250).step_by(2);
    device.check(even(), 1);
    device.write_back_all();
    assert_eq!((device.bd_stat()[0], written(&device)), (125, before));
    device.check(even(), 1);
    device.settle();
}

/// Copies are the first to go where the file has no room: nothing is refused because of them.
#[test]
pub(in crate::zram) fn a_file_that_is_full_of_copies_takes_what_is_new() {
    let segments = 20;
    let slots = (segments - 4) * (1 << SHIFT) / 3000;
    let device = all_back(config(), segments, slots);
    for round in 2..6 {
        device.fill(slots..2 * slots, round);
        device.set("writeback", &format!("page_indexes={slots}-{}", 2 * slots - 1));
        device.settle();
        assert_eq!(device.bd_stat()[0], slots, "round {round}: all that is new has left");
        device.check(0..slots, 1);
        assert!(device.number("clean_pages") < slots, "copies made room");
    }
    device.set("bring_back", "never");
    device.check(slots..2 * slots, 5);
    assert_eq!(device.number("spill_full"), 0);
    device.settle();
}

/// The host's file system is full: it has the room of copies again, and the write is tried once more.
#[test]
fn a_host_without_room_has_that_of_copies() {
    let device = |faults| all_back_on(Plan { faults, ..Plan::default() }, config(), 100, 200);
    let write = |device: &Spilling| {
        device.fill(200..210, 1);
        device.set("writeback", "page_indexes=200-209");
        device.settle();
        assert_eq!([device.bd_stat()[0], device.number("spill_full")], [10, 0]);
        device.check(0..200, 1);
        200 - device.number("clean_pages")
    };
    let sound = device(Vec::new());
    let nth = sound.disk.calls() + 1;
    assert_eq!(write(&sound), 0);
    let fault = Fault { call: None, nth, effect: Effect::Fail(Kind::NoSpace), sticky: false };
    let full = device(vec![fault]);
    let given = write(&full);
    assert!((10..40).contains(&given), "{given} copies, of one segment");
    full.check(200..210, 1);
}

/// A page with a record needs no room in the file, and no leave to write.
#[test]
pub(in crate::zram) fn clean_pages_leave_for_writers_where_nothing_may_be_written() {
    let device = all_back(Config { disksize: 16 << 20, ..config() }, 300, 200);
    device.set("writeback_limit_enable", "1");
    let before = (written(&device), device.number("mem_used_total"));
    device.set("mem_limit", &before.1.to_string());
    let noise = |slot: u64| page(&mut Random(slot), 100);
    let stored = (300..2000).take_while(|&slot| device.write(slot, &noise(slot)).is_ok()).count() as u64;
    assert!(stored > 80, "{stored} pages found room: {}", device.show("policy"));
    assert_eq!((device.number("clean_pages"), written(&device)), (0, before.0));
    (300..300 + stored).for_each(|slot| assert!(device.read(slot, 1) == noise(slot), "slot {slot}"));
    device.check(0..200, 1);
    device.settle();
}

#[test]
fn copies_take_a_32nd_of_memory_at_most() {
    let device = spilling(Config { bring_back: Promotion::Always, ..sized_to(64 << 20) }, medium(100));
    let far = || (0..40).map(|number| number << 8);
    device.fill(far(), 1);
    device.write_back_all();
    device.set("mem_limit", "640K");
    device.check(far(), 1);
    assert_eq!(
        (device.number("clean_pages"), device.number("brought_back_pages")),
        (5, 40),
        "of 5 pages of slots"
    );
    let before = device.bd_stat()[2];
    device.write_back_all();
    assert_eq!((device.bd_stat()[2], device.bd_stat()[0]), (before + 35, 40));
    device.check(far(), 1);
    device.settle();
    device.discard(0, 64 << 20);
    look(&device, 10);
    assert_eq!((device.number("mem_used_total"), device.number("clean_pages")), (0, 0));
}

fn sized_to(disksize: u64) -> Config {
    Config { disksize, ..config() }
}

/// Who stops has a file that says which pages were away. A copy is of a page that was not.
#[test]
fn a_checkpoint_has_no_copies() {
    let device = all_back(config(), 100, 50);
    device.fill(50..60, 1);
    device.set("writeback", "page_indexes=50-59");
    assert_eq!([device.bd_stat()[0], device.number("clean_pages")], [10, 50]);
    let medium = device.stop();
    let mut file = vec![0; medium.bytes() as usize];
    medium.read_durable(0, &mut file);
    let found = reader::read(&file).expect("it was stopped");
    assert_eq!((found.name.as_str(), found.slots), ("ram0", 1 << 32));
    assert_eq!(found.live.len(), 10);
    assert!(
        found.live.iter().all(|page| found.codecs[page.codec as usize] == "lz4" && page.bytes.len() > 1000)
    );
    let mut slots: Vec<u32> = found.live.iter().map(|page| page.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, Vec::from_iter(50..60));
}

/// The device is reset while a copy is given up: its page has it no more, and its room is given back a moment later.
#[test]
fn a_reset_waits_for_the_room_of_a_copy() {
    let device = all_back(config(), 100, 20);
    let core = device.zram.core.clone();
    let at_work = core.spill_file().begin();
    let (copies, locks) = (&core.table.copies, &core.table.locks);
    assert!(copies.enter(&core.pages, locks, SlotIndex(0), u64::MAX));
    let mut reset = device.table.store("reset", "1");
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..100 {
        assert!(std::pin::Pin::new(&mut reset).poll(&mut context).is_pending(), "the copy has its room");
        device.world.turn();
        device.world.advance(Duration::from_millis(1));
    }
    copies.leave(&core.pages, locks, SlotIndex(0));
    drop(at_work);
    assert_eq!(device.run(reset), Ok(()));
    device.set("disksize", "4M");
    assert!(device.read(0, 20).iter().all(|&byte| byte == 0));
    device.settle();
}

/// Writers, readers and write-back at once, on a disk that takes its time.
#[test]
fn a_page_is_what_was_written_last_whatever_comes_and_goes() {
    let config = Config { bring_back: Promotion::Always, ..config() };
    let device = spilling_to(Latency::Network, config, medium(40));
    let (mut random, mut versions) = (Random(5), [1; 100]);
    device.fill(0..100, 1);
    for round in 0..40 {
        device.write_back_all();
        for _ in 0..40 {
            let slot = random.below(100);
            if random.below(3) == 0 {
                versions[slot as usize] += 1;
                device.fill([slot], versions[slot as usize]);
            }
            let read = device.read(slot, 1);
            assert!(read == content(slot, versions[slot as usize]), "slot {slot} in round {round}");
        }
    }
    device.settle();
}
