//! Files that keep what a device stored, over stops and starts.

mod starting;

use spillway_core::{Registry, WorkKind};
use spillway_sim::disk::{Call, Effect, Fault};

use super::*;

fn keeping(keep: Keep) -> Settings {
    Settings { keep, codecs: whole_device().codecs, ..settings() }
}

/// Starts again with what was `stored`; what is kept, and the note about it.
fn again(medium: Medium, keep: Keep, stored: &BTreeMap<u32, Vec<u8>>) -> Result<(House, String), Error> {
    open_again(medium, &keeping(keep), Plan::default(), 2, stored)
        .map(|(house, note)| (house, note.unwrap_or_default()))
}

/// Sizes across the borders of a unit and of the least room of a record.
fn some_pages(random: &mut Random, version: u64) -> Vec<(u32, Vec<u8>)> {
    let page = |slot: u32, len: u64| (slot, bytes(u64::from(slot) << 32 | version, len as usize));
    (0..1 + random.below(4)).map(|_| page(random.below(90) as u32, 1 + random.below(4096))).collect()
}

/// Some rounds of use, each with a stop at its end, also of a file that was filled and cleaned.
#[test]
fn what_is_stored_is_there_after_each_start() {
    for seed in 0..6 {
        let mut random = Random(seed);
        let (mut house, _) =
            open(medium(), &keeping(Keep::IfThere), Plan::default(), seed).expect("it is blank");
        for round in 0..8 {
            for version in 0..random.below(120) {
                let (_, result) = house.spill(some_pages(&mut random, round << 16 | version));
                result.expect("90 pages fit");
                if random.below(4) == 0
                    && let Some(&slot) = house.slots().first()
                {
                    house.release(slot);
                }
            }
            house.verify();
            house.stop_whole().expect("the disk is sound");
            let stored = house.stored();
            let (next, note) = again(house.cut(), Keep::Always, &stored).expect("it is kept");
            assert!(note.contains(&format!("{} pages", stored.len())), "{note}");
            assert!(next.stored() == stored, "seed {seed}: {} of {} pages", next.slots().len(), stored.len());
            next.slots().into_iter().for_each(|slot| assert_eq!(next.check(slot), Ok(()), "slot {slot}"));
            next.verify();
            house = next;
        }
    }
}

#[test]
fn readers_see_how_far_a_start_is() {
    let (mut house, _) = open(medium(), &keeping(Keep::IfThere), Plan::default(), 1).expect("it is blank");
    for first in (0..90).step_by(2) {
        house
            .spill((first..first + 2).map(|slot| (slot, bytes(slot.into(), 4096))).collect())
            .1
            .expect("they fit");
    }
    house.stop_whole().expect("the disk is sound");
    let stored = house.stored();
    let registry = Registry::new(World::new(1));
    let settings = Settings { works: registry.of("ram0"), ..keeping(Keep::Always) };
    house = open_again(house.cut(), &settings, Plan::default(), 2, &stored).expect("it is kept").0;
    let seen = std::mem::take(&mut *house.slots.seen.lock());
    let total = (2 * SEGMENTS) << SHIFT;
    assert!(seen.len() == 90 && seen.iter().all(|one| one.kind == WorkKind::Restore), "{seen:?}");
    assert!(seen.iter().all(|one| one.amount.total == Some(total)), "{seen:?}");
    assert!(seen.is_sorted_by_key(|one| one.amount.done), "{seen:?}");
    assert!(
        seen[0].amount.done >= total / 2 - (1 << SHIFT) && seen[0].amount.done < seen[89].amount.done,
        "{seen:?}"
    );
    assert_eq!(registry.progress(), [], "it has ended");
}

/// Runs a task until it ends, or the power is cut.
fn until_cut<T: 'static>(world: &World, disk: &Disk, task: impl Future<Output = T> + 'static) -> Option<T> {
    let ended: Arc<Mutex<Option<T>>> = Arc::default();
    let told = ended.clone();
    spillway_core::Env::spawn_here(world, Box::pin(async move { *told.lock() = Some(task.await) }));
    while !disk.is_cut() && ended.lock().is_none() && world.go_on() {}
    ended.lock().take()
}

/// Starts again after a cut: all of it is there, or none, and that is said. True if it is.
fn is_there(medium: Medium, stored: &BTreeMap<u32, Vec<u8>>) -> bool {
    let (house, note) = again(medium, Keep::IfThere, stored).expect("it is its own");
    house.slots().into_iter().for_each(|slot| assert_eq!(house.check(slot), Ok(()), "slot {slot}"));
    let is_there = house.stored() == *stored;
    assert!(is_there || house.slots().is_empty() && note.contains("is gone"), "{note}");
    is_there
}

/// The power is cut at each boundary of a stop.
#[test]
fn a_cut_in_a_stop_takes_all_or_nothing() {
    let (mut kept, mut gone) = (0, 0);
    for boundary in 0.. {
        let plan = |cut_at| Plan { cut_at, ..Plan::default() };
        let open =
            |cut_at| open(medium(), &keeping(Keep::IfThere), plan(cut_at), boundary).expect("it is blank").0;
        let whole = open(None);
        whole.spill_pages(0..30, 0);
        let house = open(Some(whole.disk.boundaries() + boundary));
        house.spill_pages(0..30, 0);
        let (store, slots) = (house.store.clone(), house.slots.clone());
        let stop = async move { store.stop(&*slots, Some(&whole_device())).await.is_ok() };
        let ended = until_cut(&house.world, &house.disk, stop) == Some(true);
        let (ends, stored) = (ended && !house.disk.is_cut(), house.stored());
        let is_there = is_there(house.cut(), &stored);
        assert!(is_there || !ended, "boundary {boundary}");
        *(if is_there { &mut kept } else { &mut gone }) += 1;
        if ends {
            break;
        }
    }
    assert!(gone > 2 && kept > 0, "{gone} times nothing, {kept} times all");
}

/// The power is cut at each boundary of a start.
#[test]
fn a_cut_in_a_start_takes_all_or_nothing() {
    let (left, stored) = stopped();
    let (mut kept, mut gone) = (0, 0);
    for boundary in 0.. {
        let world = World::new(boundary);
        let plan = Plan { cut_at: Some(boundary), ..Plan::default() };
        let disk = Arc::new(Disk::new(world.clone(), left.clone(), BlockSize::PAGE, plan, boundary));
        let (env, file) = (world.clone(), Arc::new(File::new(disk.clone(), world.clone())));
        let start = async move {
            let settings = keeping(Keep::Always);
            Store::open(file, &settings, env, &Budget::new(64 << 20), &mut |_| Ok(())).await.is_ok()
        };
        let ended = until_cut(&world, &disk, start) == Some(true);
        let ends = ended && !disk.is_cut();
        disk.cut();
        world.power_off();
        let is_there = is_there(disk.survivors(), &stored);
        assert!(!(ended && is_there), "boundary {boundary}: it is in use, and still kept");
        *(if is_there { &mut kept } else { &mut gone }) += 1;
        if ends {
            break;
        }
    }
    assert!(gone > 1 && kept > 1, "{gone} times nothing, {kept} times all");
}

/// A file that was stopped with 30 pages, and these.
fn stopped() -> (Medium, BTreeMap<u32, Vec<u8>>) {
    let (house, _) = open(medium(), &keeping(Keep::IfThere), Plan::default(), 1).expect("it is blank");
    house.spill_pages(0..30, 0);
    house.stop_whole().expect("the disk is sound");
    let stored = house.stored();
    (house.cut(), stored)
}

#[test]
fn what_is_kept_is_taken_by_its_device_as_it_was_and_given_up_by_force_alone() {
    let (medium, stored) = stopped();
    let as_it_was = keeping(Keep::IfThere);
    let refused = |settings: Settings, kind: Kind, words: &[&str]| {
        let opened = open_again(medium.clone(), &settings, Plan::default(), 2, &stored);
        let error = opened.map(|(_, note)| note).expect_err("it is refused");
        assert!(error.kind == kind && words.iter().all(|word| error.message().contains(word)), "{error}");
        let force = Settings { force: true, ..settings };
        let (house, note) =
            open_again(medium.clone(), &force, Plan::default(), 2, &stored).expect("by force");
        assert!(note.expect("that is said").contains("force") && house.slots().is_empty());
    };
    refused(settings(), Kind::Busy, &["--keep", "--force"]);
    refused(Settings { name: "ram1".into(), ..as_it_was.clone() }, Kind::Busy, &["'ram0'", "'ram1'"]);
    refused(Settings { slots: 1 << 19, ..as_it_was.clone() }, Kind::Invalid, &["4G", "2G", "same size"]);
    let zstd = Settings { codecs: vec!["zstd".into()], ..as_it_was.clone() };
    refused(zstd, Kind::Invalid, &["these algorithms"]);
    assert!(again(medium, Keep::Always, &stored).expect("it is kept").0.stored() == stored);
}

#[test]
fn a_file_that_keeps_nothing_is_refused_where_it_has_to() {
    let missing = |medium: Medium| {
        let error =
            again(medium, Keep::Always, &BTreeMap::new()).map(|(_, note)| note).expect_err("it is refused");
        assert!(error.kind == Kind::Invalid && error.message().contains("--require-kept"), "{error}");
    };
    missing(medium());
    let killed = House::new(1);
    killed.spill_pages(0..30, 0);
    missing(killed.cut());
    let stopped = House::new(1);
    stopped.spill_pages(0..30, 0);
    stopped.stop().expect("the disk is sound");
    missing(stopped.cut());
    let empty = House::new(1);
    empty.stop_whole().expect("the disk is sound");
    assert!(
        again(empty.cut(), Keep::Always, &BTreeMap::new()).expect("it keeps nothing").0.slots().is_empty()
    );
}

/// A read of the start shows another place of the file, or fails: the start is refused, and nothing is lost by that.
#[test]
fn a_start_that_reads_something_else_is_refused() {
    let (medium, stored) = stopped();
    let (mut refused, mut taken) = (0, 0);
    for nth in 0..60 {
        let effect = if nth % 2 == 0 { Effect::Misread } else { Effect::GoBad };
        let faults = vec![Fault { call: Some(Call::Read), nth: nth / 2, effect, sticky: false }];
        let plan = Plan { faults, ..Plan::default() };
        match open_again(medium.clone(), &keeping(Keep::Always), plan, nth, &stored) {
            Ok((house, _)) => {
                assert!(house.stored() == stored, "read {nth}");
                taken += 1;
            }
            Err(why) => {
                assert!([Kind::Corrupt, Kind::Invalid, Kind::Io].contains(&why.kind), "read {nth}: {why}");
                refused += 1;
            }
        }
    }
    assert!(refused > 3 && taken > 0, "{refused} refused, {taken} taken");
}

/// One that fails again is no reason to call the file damaged: who believed that would discard it.
#[test]
fn a_start_makes_one_read_that_fails_again() {
    let (medium, stored) = stopped();
    let open = |nth, sticky| {
        let faults = vec![Fault { call: Some(Call::Read), nth, effect: Effect::Fail(Kind::Io), sticky }];
        let plan = Plan { faults, ..Plan::default() };
        open_again(medium.clone(), &keeping(Keep::Always), plan, nth, &stored)
    };
    let mut nth = 0;
    while let Err(why) = open(nth, true) {
        assert!(why.kind == Kind::Io && !why.message().contains("as it was written:"), "read {nth}: {why}");
        let (house, _) = open(nth, false).expect("it fails once");
        assert!(house.stored() == stored, "read {nth}");
        nth += 1;
    }
    assert!(nth > 8, "{nth} reads");
}

/// A write of the start fails, and one that says again what is kept: the next one has everything all the same.
#[test]
fn a_start_that_cannot_write_leaves_what_is_kept() {
    let (left, stored) = stopped();
    for failing in [&[0][..], &[1], &[1, 2], &[1, 3]] {
        let world = World::new(failing[0]);
        let effect = Effect::Fail(Kind::Io);
        let fault = |&nth| Fault { call: Some(Call::Write), nth, effect, sticky: false };
        let plan = Plan { faults: failing.iter().map(fault).collect(), ..Plan::default() };
        let disk = Arc::new(Disk::new(world.clone(), left.clone(), BlockSize::PAGE, plan, failing[0]));
        let (env, file) = (world.clone(), Arc::new(File::new(disk.clone(), world.clone())));
        let start = async move {
            let settings = keeping(Keep::Always);
            Store::open(file, &settings, env, &Budget::new(64 << 20), &mut |_| Ok(())).await.map(drop)
        };
        assert_eq!(run(&world, start).expect_err("a write fails").kind, Kind::Io);
        disk.cut();
        world.power_off();
        let next = again(disk.kept(), Keep::Always, &stored).expect("it is kept").0;
        assert!(next.stored() == stored, "writes {failing:?}");
    }
}

/// A disk puts the superblocks of the start elsewhere: what is kept is neither taken nor given up, or it would be there again after a crash.
#[test]
fn a_start_whose_superblocks_go_elsewhere_is_refused() {
    let (left, stored) = stopped();
    let force = Settings { force: true, ..keeping(Keep::Never) };
    for (settings, nth) in
        [keeping(Keep::Always), force].iter().flat_map(|settings| [(settings, 0), (settings, 1)])
    {
        let faults = vec![Fault { call: Some(Call::Write), nth, effect: Effect::Misdirect, sticky: true }];
        let plan = Plan { faults, ..Plan::default() };
        let opened = open_again(left.clone(), settings, plan, nth, &stored);
        let error = opened.map(|(_, note)| note).expect_err("a superblock is not where it was written");
        assert!(error.kind == Kind::Io && error.message().contains("broken"), "write {nth}: {error}");
    }
}

/// Writes of a stop fail.
#[test]
fn a_stop_that_fails_keeps_all_or_nothing() {
    let mut failed = 0;
    for nth in 0..60 {
        let effect = Effect::Fail(if nth % 2 == 0 { Kind::NoSpace } else { Kind::Io });
        let faults = vec![Fault { call: Some(Call::Write), nth, effect, sticky: true }];
        let plan = Plan { faults, ..Plan::default() };
        let Ok((house, _)) = open(medium(), &keeping(Keep::IfThere), plan, 1) else { continue };
        let _ = house.spill((0..4).map(|slot| (slot, bytes(slot.into(), 4096))).collect());
        let (stop, stored) = (house.stop_whole(), house.stored());
        failed += usize::from(stop.is_err());
        let (next, note) = again(house.cut(), Keep::IfThere, &stored).expect("it is its own");
        // The copy of the superblock may be what could not be written.
        let is_there = next.stored() == stored;
        assert!(is_there || stop.is_err() && next.slots().is_empty(), "write {nth}: {note}");
    }
    assert!(failed > 2, "{failed} stops failed");
}

/// Two writes in a row find no room on the host while the device is in use, an end of a segment among them: the stop has room for all.
#[test]
fn what_found_no_room_is_written_by_the_stop() {
    for nth in 2..16 {
        let fault =
            |nth| Fault { call: Some(Call::Write), nth, effect: Effect::Fail(Kind::NoSpace), sticky: false };
        let plan = Plan { faults: vec![fault(nth), fault(nth + 1)], ..Plan::default() };
        let (house, _) = open(medium(), &keeping(Keep::IfThere), plan, nth).expect("it is blank");
        for first in (0..48).step_by(4) {
            let pages = || (first..first + 4).map(|slot| (slot, bytes(slot.into(), 4096))).collect();
            let tries = (0..5).find(|_| house.spill(pages()).1 == Ok(()));
            assert!(tries.is_some(), "there is room, but for two writes");
        }
        house.verify();
        assert_eq!(house.stop_whole(), Ok(()), "write {nth}");
        let stored = house.stored();
        let (next, _) = again(house.cut(), Keep::Always, &stored).expect("it is kept");
        assert!(next.stored() == stored, "write {nth}: {} of {} pages", next.slots().len(), stored.len());
    }
}
