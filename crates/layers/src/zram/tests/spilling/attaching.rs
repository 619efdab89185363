//! Spill files that come and go while the server runs: `backing_dev`.

use spillway_core::sync::Semaphore;
use spillway_core::{BlockSize, OpenStorage, SECTOR};
use spillway_sim::disk::{Disk, Latency, Medium, Plan};

use super::super::on_disk::{Spilling, config, content, medium, open, open_in, spilling};
use super::*;

/// A device whose files are `/there` and `/other`, each for one user at a time. `/small` is too small, `/foreign` holds something else, and
/// `/killed` is of a device that was not stopped.
fn device(config: Config, latency: Latency) -> Spilling {
    device_behind(&Arc::new(Semaphore::new(1)), config, latency)
}

/// The same; nothing is opened while `gate` has no unit.
fn device_behind(gate: &Arc<Semaphore>, config: Config, latency: Latency) -> Spilling {
    let world = World::new(1);
    let disk = |medium, seed| {
        let plan = Plan { latency, ..Plan::default() };
        Arc::new(Disk::new(world.clone(), medium, BlockSize::PAGE, plan, seed))
    };
    let (there, other) = (disk(medium(100), 1), disk(medium(100), 2));
    let killed = spilling(super::super::on_disk::config(), medium(100)).cut();
    let foreign = Medium::of(101 << 16, |_| [7; SECTOR as usize]);
    let files = [
        ("/there", there.clone()),
        ("/other", other),
        ("/small", disk(Medium::new(1 << 16), 3)),
        ("/foreign", disk(foreign, 4)),
        ("/killed", disk(killed, 5)),
    ];
    let users = files.each_ref().map(|(_, disk)| Arc::strong_count(disk));
    let find = move |backing: &BackingDevice| {
        let path = backing.path.to_str().expect("text");
        let found = files.iter().zip(users).find(|((name, _), _)| *name == path);
        let Some(((_, disk), free)) = found else {
            return Err(Error::new(Kind::NotFound, "nothing is there"));
        };
        if Arc::strong_count(disk) > free {
            return Err(Error::new(Kind::Busy, "another has it"));
        }
        Ok(OpenStorage { storage: disk.clone(), notes: Vec::new() })
    };
    let (gate, find) = (gate.clone(), Arc::new(find));
    let open_file = Arc::new(move |backing: &BackingDevice| {
        let (gate, find, backing) = (gate.clone(), find.clone(), backing.clone());
        Answer::pending(async move {
            let _open = gate.hold().await;
            find(&backing)
        })
    });
    open_in(world.clone(), world, there, "ram0", config, open_file)
        .expect("nothing is opened, or what is blank")
}

/// Without a size and a spill file.
fn bare() -> Config {
    Config { spill: None, disksize: 0, bring_back: Promotion::Never, ..config() }
}

/// Lets go of its file, and waits until nothing of the device has it any more.
fn reset(device: &Spilling) {
    device.set("reset", "1");
    device.settle();
}

fn use_it(device: &Spilling, version: u64) {
    device.set("disksize", "4M");
    device.fill(0..300, version);
    device.write_back_all();
    device.settle();
    assert_eq!(device.bd_stat()[0], 300);
    device.check(0..300, version);
}

#[test]
fn a_file_is_attached_before_the_size_and_let_go_by_a_reset() {
    let device = device(bare(), Latency::None);
    assert_eq!(device.show("backing_dev"), "none");
    let blank = device.disk.calls();
    for version in 0..3 {
        device.set("backing_dev", "/there\n");
        assert_eq!(device.show("backing_dev"), "/there");
        device.set("backing_dev", "/there");
        use_it(&device, version);
        assert!(device.disk.calls() > blank);
        assert_eq!(device.refuse("backing_dev", "/other"), Kind::Busy);
        assert!(device.show("policy").contains("nothing is spilled below"), "{}", device.show("policy"));
        reset(&device);
        assert_eq!((device.show("backing_dev"), device.bd_stat()), ("none".into(), [0; 3]));
        assert_eq!(device.show("policy"), "no spill file: pages stay in memory");
    }
    device.set("disksize", "4M");
    device.fill(0..300, 9);
    assert_eq!(device.refuse("writeback", "huge"), Kind::NoDevice);
    device.set("mem_limit", "256K");
    assert_eq!(device.write(300, &content(300, 9)), Err(Kind::NoSpace));
    device.settle();
}

#[test]
fn the_last_one_named_counts_and_a_refusal_changes_nothing() {
    let device = device(bare(), Latency::None);
    device.set("backing_dev", "/there");
    for (path, kind) in [
        ("/none", Kind::NotFound),
        ("there", Kind::NotFound),
        ("", Kind::NotFound),
        ("/small", Kind::NoSpace),
    ] {
        let refused = device.refuse("backing_dev", path);
        assert_eq!((refused, device.show("backing_dev")), (kind, "/there".into()), "{path:?}");
    }
    device.set("backing_dev", "/other");
    assert_eq!(device.show("backing_dev"), "/other");
    let untouched = device.disk.calls();
    use_it(&device, 1);
    assert_eq!(device.disk.calls(), untouched, "it was taken back");
    reset(&device);
    device.set("backing_dev", "/other");
    reset(&device);
    assert_eq!(device.show("backing_dev"), "none", "also where it was not in use yet");
}

#[test]
fn the_file_of_the_configuration_stays_unless_another_is_named() {
    let device = device(Config { spill: Some("/there".into()), disksize: 4 << 20, ..bare() }, Latency::None);
    assert_eq!(device.show("backing_dev"), "/there");
    use_it(&device, 1);
    reset(&device);
    assert_eq!(device.show("backing_dev"), "/there");
    use_it(&device, 2);
    reset(&device);
    device.set("backing_dev", "/other");
    use_it(&device, 3);
    reset(&device);
    assert_eq!(device.show("backing_dev"), "none");
    device.set("backing_dev", "/there");
    use_it(&device, 4);
}

/// Opening takes as long as it takes. Nobody but who asks for it waits, and the size, which belongs to what is opened.
#[test]
fn a_size_waits_for_a_file_that_is_being_opened() {
    let gate = Arc::new(Semaphore::new(1));
    let device = device_behind(
        &gate,
        Config { spill: Some("/there".into()), disksize: 4 << 20, ..bare() },
        Latency::None,
    );
    reset(&device);
    let closed = gate.try_hold().expect("nothing is being opened");
    let attached = device.table.store("backing_dev", "/other");
    let turns = || (0..100).for_each(|_| _ = device.world.turn());
    turns();
    let sized = device.table.store("disksize", "4M");
    turns();
    device.set("mem_limit", "1M");
    assert_eq!((device.number("disksize"), device.show("backing_dev")), (0, "/there".into()));
    drop(closed);
    assert_eq!(device.run(sized), Ok(()));
    assert_eq!((device.run(attached), device.show("backing_dev")), (Ok(()), "/other".into()));
    device.set("mem_limit", "0");
    use_it(&device, 1);
}

#[test]
fn what_is_not_taken_is_not_forced_and_a_refusal_says_what_to_do() {
    let device = device(bare(), Latency::None);
    for (path, kind, what) in [
        ("/foreign", Kind::Invalid, "not blank"),
        ("/killed", Kind::Busy, "was not stopped: 'ram0' uses it, or was killed"),
    ] {
        let error = device.run(device.table.store("backing_dev", path)).unwrap_err();
        let words = error.message();
        assert!(error.kind == kind && words.contains(what) && words.contains("blkdiscard"), "{words}");
        assert!(!words.contains("--force, which"), "{words}");
    }
    assert_eq!(device.show("backing_dev"), "none");
}

/// A device is stopped while it gets its size, and with it the file that waits.
#[test]
fn a_file_that_is_opened_while_its_device_is_stopped_is_free_again() {
    for turns in 0..100 {
        let device = device(bare(), Latency::None);
        device.set("backing_dev", "/there");
        drop(device.table.store("disksize", "4M"));
        (0..turns).for_each(|_| _ = device.world.turn());
        let left = device.stop();
        let again = open("ram0", super::super::on_disk::config(), left, Plan::default());
        assert!(again.is_ok(), "after {turns} turns: {}", again.err().expect("it is refused"));
    }
}

/// Batches are on their way to the file that is let go, and another one comes at once.
#[test]
fn nothing_of_a_file_is_left_in_the_next_one() {
    let device = device(bare(), Latency::UsbStick);
    for version in 0..6 {
        let path = if version % 2 == 0 { "/there" } else { "/other" };
        device.set("backing_dev", path);
        device.set("disksize", "4M");
        device.set("mem_limit", "1M");
        device.fill(0..600, version);
        assert!(device.show("bd_stat").split_whitespace().next() != Some("0"), "{}", device.show("policy"));
        device.check((0..600).step_by(7), version);
        reset(&device);
        assert_eq!(device.show("backing_dev"), "none");
    }
    device.settle();
}

#[test]
fn what_a_reset_lets_go_is_anybodys() {
    let device = device(bare(), Latency::None);
    device.set("backing_dev", "/there");
    use_it(&device, 1);
    reset(&device);
    assert!(open("ram1", config(), device.cut(), Plan::default()).is_ok());
}

/// What was written to one file is owed in the next, and what is written there is owed too, whenever that is looked at.
#[test]
pub(in crate::zram) fn the_bytes_of_a_day_are_counted_in_every_file() {
    // What is owed after the first file, where that is looked at, and after the second.
    let owed = |looks: bool| {
        let device = device(Config { spill_daily_bytes: 1 << 20, ..bare() }, Latency::None);
        let core = &device.zram.core;
        let wait = || core.spends_in(&core.backing.get().expect("it is attached"));
        let write_to = |path: &str, begins: bool| {
            device.set("backing_dev", path);
            device.set("disksize", "4M");
            // The limit counts from when it is looked at first.
            assert!(!begins || wait().is_zero());
            device.fill(0..300, 1);
            device.write_back_all();
            device.settle();
        };
        write_to("/there", true);
        let first = looks.then(wait);
        reset(&device);
        write_to("/other", false);
        let second = wait();
        device.settle();
        (first, second)
    };
    let (first, second) = owed(true);
    let first = first.expect("it was looked at");
    assert!(first > Duration::from_secs(3600), "{first:?}");
    assert!(second > first * 9 / 5, "{second:?} after {first:?}");
    let unseen = owed(false).1;
    assert!(unseen > first * 9 / 5, "{unseen:?} without looks, {second:?} with them");
}
