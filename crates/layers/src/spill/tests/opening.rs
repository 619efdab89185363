//! What a spill file may hold when it is opened, and what a stop leaves.

use spillway_sim::disk::{Call, Effect, Fault};

use super::*;
use crate::spill::format::UNIT;

fn opened(medium: Medium, settings: &Settings) -> Result<Option<String>, Error> {
    open(medium, settings, Plan::default(), 2).map(|(_, note)| note)
}

fn refused(medium: &Medium, settings: &Settings, kind: Kind, words: &[&str]) {
    let error = opened(medium.clone(), settings).expect_err("it is refused");
    assert!(error.kind == kind && words.iter().all(|word| error.message().contains(word)), "{error}");
    let force = Settings { force: true, ..settings.clone() };
    let note = opened(medium.clone(), &force).expect("it is taken").expect("that is said");
    assert!(note.contains("force"), "{note}");
}

#[test]
fn a_stopped_file_is_taken_by_its_device_alone() {
    let house = House::new(1);
    house.spill_pages(0..30, 0);
    house.stop().expect("the disk is sound");
    let medium = house.cut();
    let note = opened(medium.clone(), &settings()).expect("it was stopped").expect("something is gone");
    assert!(note.contains("'ram0'") && note.contains("is gone"), "{note}");
    let other = Settings { name: "ram1".into(), ..settings() };
    refused(&medium, &other, Kind::Busy, &["'ram0'", "'ram1'", "--force"]);
}

#[test]
fn a_file_that_held_nothing_is_taken_by_anybody_without_words() {
    for name in ["ram0", "ram1"] {
        let house = House::new(1);
        house.spill_pages(0..30, 0);
        (0..30).for_each(|slot| house.release(slot));
        house.stop().expect("the disk is sound");
        let settings = Settings { name: name.into(), ..settings() };
        assert_eq!(opened(house.cut(), &settings).expect("it was stopped"), None);
    }
}

/// One of the writes of a stop finds no room, nor when it is made again. Only the superblock and its copy have to be written, which lie where something was before.
#[test]
fn a_full_disk_is_no_reason_to_leave_a_file_as_one_in_use() {
    let mut failed = 0;
    for nth in 0..40 {
        let effect = Effect::Fail(Kind::NoSpace);
        let fault = |nth| Fault { call: Some(Call::Write), nth, effect, sticky: false };
        let faults = vec![fault(nth), fault(nth + 1)];
        let Ok((house, _)) = open(medium(), &settings(), Plan { faults, ..Plan::default() }, 1) else {
            continue;
        };
        let _ = house.spill((0..4).map(|slot| (slot, bytes(slot.into(), 4096))).collect());
        if house.stop().is_err() {
            failed += 1;
            continue;
        }
        let next = opened(house.cut(), &settings());
        assert!(next.is_ok(), "write {nth} finds no room: {next:?}");
    }
    assert_eq!(failed, 2);
}

#[test]
fn a_file_that_was_not_stopped_is_refused() {
    let house = House::new(1);
    house.spill_pages(0..30, 0);
    let medium = house.cut();
    refused(&medium, &settings(), Kind::Busy, &["not stopped", "'ram0'", "spill_retake", "--force"]);
}

#[test]
fn a_file_of_a_killed_device_is_taken_again_where_that_is_asked_for_and_no_other() {
    let retake = Settings { retake: true, ..settings() };
    let house = House::new(1);
    house.spill_pages(0..30, 0);
    let medium = house.cut();
    let note = opened(medium.clone(), &retake).expect("it was killed").expect("something is gone");
    assert!(note.contains("'ram0'") && note.contains("killed is gone"), "{note}");
    let other = Settings { name: "ram1".into(), ..retake.clone() };
    refused(&medium, &other, Kind::Busy, &["'ram0'", "'ram1'", "--force"]);
    let foreign = Medium::of((SEGMENTS + 1) << SHIFT, |_| [7; 512]);
    refused(&foreign, &retake, Kind::Invalid, &["not blank"]);
}

/// The first superblock is damaged: its copy stands for it. Both are: only force helps.
#[test]
fn a_damaged_superblock_has_a_copy() {
    let house = House::new(1);
    house.stop().expect("the disk is sound");
    let whole = house.cut();
    let damaged = |places: &[u64]| {
        Medium::of(whole.bytes(), |sector| {
            let mut bytes = [0; 512];
            whole.read_durable(sector * 512, &mut bytes);
            bytes[100] ^= u8::from(places.contains(&(sector * 512)));
            bytes
        })
    };
    assert!(opened(damaged(&[0]), &settings()).is_ok());
    assert!(opened(damaged(&[1 << (SHIFT - 2)]), &settings()).is_ok());
    refused(&damaged(&[0, 1 << (SHIFT - 2)]), &settings(), Kind::Invalid, &["damaged"]);
}

#[test]
fn a_file_of_another_version_is_refused_by_its_number() {
    let house = House::new(1);
    house.stop().expect("the disk is sound");
    let whole = house.cut();
    let mut file = vec![0; whole.bytes() as usize];
    whole.read_durable(0, &mut file);
    for at in [0, 1 << (SHIFT - 2)] {
        let superblock = &mut file[at..at + UNIT];
        superblock[8] = 1;
        let crc = crc32c::crc32c(&superblock[..UNIT - 4]);
        superblock[UNIT - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    let old = Medium::of(whole.bytes(), |sector| file.as_chunks().0[sector as usize]);
    refused(&old, &settings(), Kind::Invalid, &["version 1", "only version 2", "--force"]);
}

#[test]
fn anything_else_is_refused_by_name() {
    let with = |at: u64, magic: &'static [u8]| {
        Medium::of((SEGMENTS + 1) << SHIFT, move |sector| {
            let mut bytes = [0; 512];
            if sector == at / 512 {
                bytes[at as usize % 512..][..magic.len()].copy_from_slice(magic);
            }
            bytes
        })
    };
    refused(&with(0, b"XFSB"), &settings(), Kind::Invalid, &["XFS"]);
    refused(&with(0, &[0x21, 0x93, 0x48, 0x23]), &settings(), Kind::Invalid, &["write cache"]);
    refused(&with(((SEGMENTS + 1) << SHIFT) - 512, b"EFI PART"), &settings(), Kind::Invalid, &["GPT"]);
    refused(&with(5000, &[7]), &settings(), Kind::Invalid, &["byte 5000", "not blank"]);
    // Far from both ends.
    let far = Medium::of(8 << 20, |sector| [u8::from(sector == 8192); 512]);
    refused(&far, &settings(), Kind::Invalid, &["byte 4194304", "not blank"]);
}

#[test]
fn what_does_not_fit_is_refused_with_words() {
    let small = opened(Medium::new(5 << SHIFT), &settings()).expect_err("it is too small");
    assert!(small.kind == Kind::NoSpace && small.message().contains("at least"), "{small}");
    let name = Settings { name: "n".repeat(257), ..settings() };
    assert!(opened(medium(), &name).is_err_and(|error| error.message().contains("256")));
}

/// The power is cut at any call of opening, spilling and stopping: the file is blank, refused, or stopped. Its own device takes it again
/// where that is asked for, once it was open, and force always helps.
#[test]
fn a_cut_at_any_time_leaves_a_file_that_can_be_told() {
    let (mut cut_at, mut ends) = (0, [0; 3]);
    loop {
        let plan = Plan { cut_at: Some(cut_at), ..Plan::default() };
        let world = World::new(cut_at);
        let disk = Arc::new(Disk::new(world.clone(), medium(), BlockSize::PAGE, plan, cut_at));
        let (env, file) = (world.clone(), File::new(disk.clone(), world.clone()));
        let (open, done) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(false)));
        let (begun, ended) = (open.clone(), done.clone());
        spillway_core::Env::spawn_here(
            &*world,
            Box::pin(async move {
                let budget = Budget::new(64 << 20);
                let (store, _) =
                    Store::open(Arc::new(file), &settings(), env, &budget, &mut |_| Err(Kind::Corrupt))
                        .await
                        .expect("it is blank");
                *begun.lock() = true;
                let slots = Arc::new(Slots::default());
                for first in (0..80).step_by(4) {
                    let pages =
                        (first..first + 4).map(|slot| (slot % 60, bytes(slot.into(), 3000))).collect();
                    assert_eq!(spill(store.clone(), slots.clone(), pages).await.1, Ok(()));
                }
                store.stop(&*slots, None).await.expect("the disk is sound");
                *ended.lock() = true;
            }),
        );
        while !disk.is_cut() && world.go_on() {}
        let whole = !disk.is_cut();
        disk.cut();
        world.power_off();
        let left = disk.survivors();
        let again = opened(left.clone(), &settings());
        match again {
            Ok(None) => ends[0] += 1,
            Err(error) => {
                assert!(matches!(error.kind, Kind::Busy | Kind::Invalid), "{error}");
                ends[1] += 1;
            }
            Ok(Some(_)) => ends[2] += 1,
        }
        let retake = opened(left.clone(), &Settings { retake: true, ..settings() });
        let torn = matches!(&retake, Err(error) if error.kind == Kind::Invalid) && !*open.lock();
        assert!(retake.is_ok() || torn, "cut at {cut_at}: {retake:?}");
        let force = Settings { force: true, ..settings() };
        assert!(opened(left, &force).is_ok());
        if whole {
            assert!(*done.lock());
            break;
        }
        cut_at += 1;
    }
    assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
}

/// For as many records as a batch takes.
#[test]
fn what_the_owner_keeps_of_a_batch_is_charged() {
    let charged = |kept| {
        let settings = Settings { kept, batches: 3, ..settings() };
        let (house, _) = open(medium(), &settings, Plan::default(), 1).expect("it is blank");
        let store = house.store.clone();
        let mut batch = house.run(async move { store.batch().await });
        let push = |slot| batch.push(slot, RecordCodec::RAW, &[1]);
        let records = (0..).map(push).take_while(|fits| *fits).count();
        (house.budget.used(), records as u64)
    };
    let ((without, records), (with, _)) = (charged(0), charged(100));
    assert!(records > 10 && with - without >= 3 * 100 * records, "{} for {records} records", with - without);
}

#[test]
fn memory_is_charged_while_it_is_open() {
    let house = House::new(1);
    let used = house.budget.used();
    assert!(used > 0);
    house.spill_pages(0..60, 0);
    house.verify();
    assert_eq!(house.budget.used(), used, "spilling takes no memory");
    let House { store, budget, world, slots, .. } = house;
    drop((store, slots));
    world.power_off();
    assert_eq!(budget.used(), 0);
}
