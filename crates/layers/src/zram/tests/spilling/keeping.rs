//! Devices whose spill file keeps what they store, over stops and starts.

use std::collections::BTreeMap;

use spillway_core::Suspend;
use spillway_sim::disk::{Call, Effect, Fault, Latency, Medium, Plan};

use super::super::on_disk::{
    SHIFT, Spilling, config, content, medium, open, spilling, spilling_by, spilling_to,
};
use super::super::recompressing::digits;
use super::*;

/// What slots hold; nothing is there for those that read as zeroes.
type Stored = BTreeMap<u64, Vec<u8>>;

const SLOTS: u64 = 200;

fn keeping() -> Config {
    Config { keep: true, ..config() }
}

fn noise(slot: u64, version: u64) -> Vec<u8> {
    page(&mut Random(slot << 20 | version), 100)
}

fn write(device: &Spilling, stored: &mut Stored, slot: u64, page: Vec<u8>) {
    device.write(slot, &page).unwrap();
    stored.insert(slot, page);
}

fn check(device: &Spilling, stored: &Stored) {
    for slot in 0..SLOTS {
        let expected = stored.get(&slot).cloned().unwrap_or(vec![0; PAGE]);
        assert!(device.read(slot, 1) == expected, "slot {slot}");
    }
}

/// Starts with the file that was left; what it says about that.
fn again(config: Config, medium: Medium) -> Spilling {
    open("ram0", config, medium, Plan::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(name: &str, config: Config, medium: &Medium, words: &[&str]) -> Kind {
    let opened = open(name, config, medium.clone(), Plan::default());
    let error = opened.map(|device| device.notes.clone()).expect_err("it is refused");
    assert!(words.iter().all(|word| error.message().contains(word)), "{error}");
    error.kind
}

/// Pages of every kind: compressed, raw, repeated words, zeroes, discarded, recompressed, in the file, clean copies, deferred.
fn fill(device: &Spilling, version: u64, stored: &mut Stored) {
    device.set("deferred_bytes_max", "0");
    device.set("writeback_limit_enable", "0");
    device.set("bring_back", "always");
    (0..40).for_each(|slot| write(device, stored, slot, content(slot, version)));
    (40..60).for_each(|slot| write(device, stored, slot, noise(slot, version)));
    (60..70).for_each(|slot| write(device, stored, slot, vec![(slot + version) as u8; PAGE]));
    (70..75).for_each(|slot| write(device, stored, slot, vec![0; PAGE]));
    (75..90).for_each(|slot| write(device, stored, slot, noise(slot, version)));
    device.discard(75 << 12, 5 << 12);
    (75..80).for_each(|slot| drop(stored.remove(&slot)));
    (90..130).for_each(|slot| write(device, stored, slot, content(slot, version)));
    device.set("writeback", "page_indexes=88-129");
    (100..120).for_each(|slot| assert!(device.read(slot, 1) == stored[&slot], "slot {slot}"));
    (110..115).for_each(|slot| write(device, stored, slot, content(slot, version + 1)));
    (130..150).for_each(|slot| write(device, stored, slot, digits(slot + version, 900)));
    device.set("recompress", "priority=1");
    device.set("deferred_bytes_max", "64K");
    (150..170).for_each(|slot| write(device, stored, slot, content(slot, version)));
    // Nothing of this holds a stop back.
    device.set("writeback_limit", "0");
    device.set("writeback_limit_enable", "1");
    device.set("writeback_batch_size", "1");
    device.set("spill_daily_bytes", "1");
    assert!(device.number("clean_pages") > 0 && device.number("deferred_bytes") > 0);
    assert!(
        device.bd_stat()[0] > 0 && device.number("recompressed_pages") > 0
            || !device.show("comp_algorithm").contains("[lz4")
    );
}

#[test]
fn pages_of_every_kind_are_there_after_each_start() {
    for comp_algorithm in codec::NAMES {
        for compressed_writeback in [true, false] {
            let recomp_algorithm = Some("algo=zstd priority=1".to_owned());
            let config = Config { comp_algorithm, recomp_algorithm, compressed_writeback, ..keeping() };
            let (mut device, mut stored) = (spilling(config.clone(), medium(60)), Stored::new());
            for version in 0..3 {
                fill(&device, version, &mut stored);
                let file = device.stop();
                device = again(Config { require_kept: true, ..config.clone() }, file);
                let there = device.bd_stat()[0];
                assert!(device.notes.concat().contains(&format!("the {there} pages")), "{:?}", device.notes);
                assert_eq!(device.number("compr_data_size"), 0, "pages stay in the file");
                check(&device, &stored);
                device.settle();
                check(&device, &stored);
            }
        }
    }
}

/// Objects move all the time, and batches take long: what is picked when the stop comes by is not forgotten.
#[test]
fn a_stop_that_takes_many_slices_keeps_all() {
    const PAGES: u64 = 6000;
    let config = Config { disksize: PAGES * PAGE as u64, mem_limit: 20 << 20, ..keeping() };
    let device = spilling_to(Latency::UsbStick, config.clone(), medium(600));
    device.fill(0..PAGES, 1);
    (0..PAGES).filter(|slot| slot % 3 > 0).for_each(|slot| device.discard(slot << 12, PAGE as u64));
    (0..PAGES).step_by(30).for_each(|slot| device.write(slot + 1, &[7; PAGE]).unwrap());
    let compact = device.table.store("compact", "1");
    device.zram.wind_down();
    let file = device.stop();
    drop(compact);
    let device = again(config, file);
    for slot in 0..PAGES {
        let expected = match slot % 30 {
            1 => vec![7; PAGE],
            place if place % 3 == 0 => content(slot, 1),
            _ => vec![0; PAGE],
        };
        assert!(device.read(slot, 1) == expected, "slot {slot}");
    }
    device.settle();
}

#[test]
fn a_lost_page_is_lost_after_the_start_too() {
    for comp_algorithm in codec::NAMES {
        let config = Config { comp_algorithm, ..keeping() };
        let device = spilling(config.clone(), medium(60));
        device.fill(0..4, 1);
        device.set("writeback", "page_indexes=0-3");
        let away = device.zram.core.table.away(SlotIndex(2)).expect("it was written back");
        device.flip(8 * (((u64::from(away.at.segment) + 1) << SHIFT) + u64::from(away.at.offset)));
        assert_eq!(device.try_read(2), Err(Kind::Corrupt));
        let device = again(config, device.stop());
        assert_eq!((device.try_read(2), device.try_read(2)), (Err(Kind::Corrupt), Err(Kind::Corrupt)));
        device.check([0, 1, 3], 1);
        device.fill([2], 2);
        device.check([2], 2);
        device.settle();
    }
}

#[test]
fn a_device_that_was_not_stopped_begins_empty_or_not_at_all() {
    let device = spilling(keeping(), medium(60));
    device.fill(0..20, 1);
    let kept = device.stop();
    let device = again(keeping(), kept.clone());
    device.fill(5..6, 2);
    let cut = device.cut();
    let require = Config { require_kept: true, ..keeping() };
    let kind = refused("ram0", require.clone(), &cut, &["killed is gone", "--require-kept"]);
    assert_eq!(kind, Kind::Invalid);
    let device = again(keeping(), cut);
    assert!(device.notes.concat().contains("killed is gone"), "{:?}", device.notes);
    (0..20).for_each(|slot| assert!(device.read(slot, 1) == [0; PAGE], "slot {slot}"));
    device.settle();
    again(require, kept).check(0..20, 1);
}

#[test]
fn what_is_kept_is_for_the_device_as_it_was() {
    let device = spilling(Config { comp_algorithm: "zstd", ..keeping() }, medium(60));
    device.fill(0..20, 1);
    let kept = device.stop();
    let zstd = Config { comp_algorithm: "zstd", ..keeping() };
    assert_eq!(refused("ram0", config(), &kept, &["--keep", "--force"]), Kind::Busy);
    assert_eq!(refused("ram1", zstd.clone(), &kept, &["'ram0'", "'ram1'", "--force"]), Kind::Busy);
    let larger = Config { disksize: 8 << 20, ..zstd.clone() };
    assert_eq!(refused("ram0", larger, &kept, &["4M", "8M", "same size"]), Kind::Invalid);
    assert_eq!(refused("ram0", keeping(), &kept, &["zstd", "these algorithms"]), Kind::Invalid);
    let both = Config { recomp_algorithm: Some("algo=zstd priority=2".into()), ..keeping() };
    again(both, kept.clone()).check(0..20, 1);
    let device = again(Config { force: true, ..config() }, kept.clone());
    assert!(device.read(3, 1) == [0; PAGE] && device.notes.concat().contains("force"), "{:?}", device.notes);
    drop(device);
    let attaching = open("ram0", Config { spill: None, disksize: 0, ..config() }, kept, Plan::default());
    let attaching = attaching.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(attaching.refuse("backing_dev", "/disk"), Kind::Busy);
    let nowhere = Config { spill: None, ..keeping() };
    assert_eq!(refused("ram0", nowhere, &medium(60), &["--spill"]), Kind::Invalid);
    let sizeless = Config { disksize: 0, spill_size: 32 << 20, ..keeping() };
    assert_eq!(refused("ram0", sizeless, &medium(60), &["--size"]), Kind::Invalid);
}

#[test]
fn a_device_that_was_set_up_anew_or_grew_is_kept_as_it_is() {
    let device = spilling(keeping(), medium(60));
    device.fill(0..20, 1);
    device.set("disksize", "6M");
    device.write(1400, &content(1400, 1)).unwrap();
    let grown = Config { disksize: 6 << 20, ..keeping() };
    let device = again(grown, device.stop());
    device.check((0..20).chain([1400]), 1);
    device.set("reset", "1");
    device.set("comp_algorithm", "deflate");
    device.set("disksize", "2M");
    device.fill(3..9, 2);
    let set_up = Config { disksize: 2 << 20, comp_algorithm: "deflate", ..keeping() };
    let device = again(set_up.clone(), device.stop());
    device.check(3..9, 2);
    assert!(device.read(9, 1) == [0; PAGE]);
    device.set("reset", "1");
    // Without a size it stores nothing: the file is anybody's.
    let left = device.stop();
    assert_eq!(
        refused("ram0", Config { require_kept: true, ..set_up }, &left, &["--require-kept"]),
        Kind::Invalid
    );
    assert!(again(config(), left).notes.is_empty());
}

#[test]
fn a_stop_without_room_fails_and_says_what_is_lost() {
    let device = spilling(keeping(), medium(20));
    (0..400).for_each(|slot| device.write(slot, &noise(slot, 1)).unwrap());
    let error = device.run(Answer::pending(device.zram.suspend())).expect_err("the file is full");
    assert!(error.kind == Kind::NoSpace && error.message().contains("is lost"), "{error}");
    assert!(error.message().contains("--spill-size"), "{error}");
    let left = device.cut();
    let kind = refused("ram0", Config { require_kept: true, ..keeping() }, &left, &["is gone"]);
    assert_eq!(kind, Kind::Invalid);
    assert!(again(keeping(), left).notes.concat().contains("is gone"));
}

/// Ends of segments that could not be written while the device was in use: what lies there is written again.
#[test]
fn what_no_checkpoint_can_name_is_written_again() {
    let mut rewritten = 0;
    for nth in 2..30 {
        let fault =
            |nth| Fault { call: Some(Call::Write), nth, effect: Effect::Fail(Kind::Io), sticky: false };
        let faults = vec![fault(nth), fault(nth + 1)];
        let device = spilling_by(Plan { faults, ..Plan::default() }, keeping(), medium(60));
        device.fill(0..200, 1);
        // What a write failed over stays, and leaves with the next command.
        (0..2).for_each(|_| _ = device.run(device.table.store("writeback", "page_indexes=0-399")));
        device.fill(200..400, 1);
        (0..2).for_each(|_| _ = device.run(device.table.store("writeback", "page_indexes=0-399")));
        let aside = device.run(Answer::pending({
            let store = device.zram.core.spill_file().store.clone();
            async move { store.unnameable().await.len() }
        }));
        rewritten += aside;
        let stopped = device.run(Answer::pending(device.zram.suspend()));
        assert_eq!(stopped, Ok(()), "write {nth}");
        let device = again(keeping(), device.cut());
        assert_eq!(device.bd_stat()[0], 400, "write {nth}");
        device.check(0..400, 1);
    }
    assert!(rewritten > 0, "no end of a segment was among the writes");
}

/// What is to be written again may be cleaned before, and its segment be free.
#[test]
fn a_record_that_its_slot_names_no_longer_is_not_read() {
    let device = spilling(keeping(), medium(60));
    device.fill(0..20, 1);
    device.run(device.table.store("writeback", "page_indexes=0-19")).unwrap();
    let core = device.zram.core.clone();
    let slot = core.table.lock(SlotIndex(3)).map(|locked| locked.get());
    let Some(Slot::Spilled(away)) = slot else { panic!("it is in the file") };
    device.discard(0, 20 << 12);
    let read = async move { core.read_record(SlotIndex(3), away, &mut [0; PAGE]).await.is_some() };
    assert!(!device.run(Answer::pending(read)));
}

/// Of a disk whose writes fail now and then, or from some write on: all is kept, or the stop says that it is not.
#[test]
fn a_stop_whose_writes_fail_keeps_all_or_says_so() {
    let (mut kept, mut failed) = (0, 0);
    for nth in 0..60 {
        let effect = Effect::Fail(if nth % 3 == 0 { Kind::NoSpace } else { Kind::Io });
        let faults = vec![Fault { call: Some(Call::Write), nth: 10 + nth / 2, effect, sticky: nth % 2 == 0 }];
        let device = spilling_by(Plan { faults, ..Plan::default() }, keeping(), medium(60));
        device.fill(0..100, 1);
        (100..110).for_each(|slot| device.write(slot, &[9; PAGE]).unwrap());
        let stopped = device.run(Answer::pending(device.zram.suspend()));
        let device = again(keeping(), device.cut());
        let is_there = device.bd_stat()[0] == 110;
        assert!(is_there || device.bd_stat()[0] == 0 && stopped.is_err(), "write {nth}: {stopped:?}");
        if is_there {
            device.check(0..100, 1);
        }
        (kept, failed) = (kept + u32::from(is_there), failed + u32::from(stopped.is_err()));
    }
    assert!(kept > 5 && failed > 5, "{kept} kept, {failed} failed");
}

/// So many writes failed in a row while the device was in use that nothing is spilled any more. The disk is sound again when it stops.
#[test]
fn a_stop_writes_to_a_disk_that_is_sound_again() {
    let fault = |nth| Fault { call: Some(Call::Write), nth, effect: Effect::Fail(Kind::Io), sticky: false };
    let faults = (2..10).map(fault).collect();
    let device = spilling_by(Plan { faults, ..Plan::default() }, keeping(), medium(60));
    device.fill(0..100, 1);
    (0..8).for_each(|_| assert_eq!(device.refuse("writeback", "page_index=2"), Kind::Io));
    assert!(device.show("policy").contains("failed too often"), "{}", device.show("policy"));
    again(keeping(), device.stop()).check(0..100, 1);
}

/// Any one call of a stop fails, the last writes of the file and its looks at what they name included: it is made again, and all is kept.
#[test]
fn a_stop_makes_one_call_that_fails_again() {
    for (call, kind) in [(Call::Write, Kind::Io), (Call::Write, Kind::NoSpace), (Call::Read, Kind::Io)] {
        for nth in 0.. {
            let faults = vec![Fault { call: Some(call), nth, effect: Effect::Fail(kind), sticky: false }];
            let plan = Plan { faults, ..Plan::default() };
            let Ok(device) = open("ram0", keeping(), medium(60), plan) else { continue };
            device.fill(0..100, 1);
            (100..110).for_each(|slot| device.write(slot, &[9; PAGE]).unwrap());
            let stopped = device.run(Answer::pending(device.zram.suspend()));
            if !device.disk.answers().has_error_since(Some(call), Duration::ZERO) {
                assert!(nth > 15, "{nth} calls in all: {call:?}");
                break;
            }
            assert_eq!(stopped, Ok(()), "{call:?} {nth} fails: {kind:?}");
            let device = again(keeping(), device.cut());
            assert_eq!(device.bd_stat()[0], 110, "{call:?} {nth} fails: {kind:?}");
            device.check(0..100, 1);
        }
    }
}
