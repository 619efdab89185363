//! Errors of the spill file: what fails is one page's or one command's, and the device goes on.

use spillway_sim::disk::{Call, Effect, Fault};

use super::*;

/// Writes of a file that was opened.
const OPENED: u64 = 2;

impl Spilling {
    /// What went wrong since the file was opened: writes, reads, records that are not what was written, and lack of room.
    pub(super) fn errors(&self) -> [u64; 4] {
        ["write_errors", "read_errors", "mismatches", "full"]
            .map(|what| self.number(&format!("spill_{what}")))
    }
}

/// Spills to a disk on which call `nth` of that kind fails, once or from then on.
fn failing(call: Call, nth: u64, sticky: bool) -> Spilling {
    let fault = Fault { call: Some(call), nth, effect: Effect::Fail(Kind::Io), sticky };
    let config = Config { bring_back: Promotion::Never, ..config() };
    open("ram0", config, medium(100), Plan { faults: vec![fault], ..Plan::default() }).expect("it is blank")
}

#[test]
fn pages_whose_write_fails_stay_in_memory_and_leave_with_the_next() {
    let device = failing(Call::Write, OPENED, false);
    device.fill(0..3, 1);
    let before = device.number("compr_data_size");
    device.set("writeback_limit_enable", "1");
    device.set("writeback_limit", "10");
    assert_eq!(device.refuse("writeback", "page_indexes=0-2"), Kind::Io);
    assert_eq!((device.bd_stat(), device.number("compr_data_size")), ([0, 0, 0], before));
    assert_eq!(device.number("writeback_limit"), 10, "what was not written is given back");
    assert_eq!(device.errors(), [1, 0, 0, 0]);
    device.check(0..3, 1);
    device.fill(0..1, 2);
    device.set("writeback", "page_indexes=0-2");
    assert_eq!((device.bd_stat(), device.number("writeback_limit")), ([3, 0, 3], 7));
    device.check(0..1, 2);
    device.check(1..3, 1);
    assert_eq!(device.errors(), [1, 0, 0, 0]);
    device.settle();
}

/// Nothing is written any more, which it says; what is in memory and in the file is read, and writes end where memory does.
#[test]
fn after_failures_in_a_row_the_device_says_so_and_goes_on() {
    let device = failing(Call::Write, OPENED + 1, true);
    device.set("mem_limit", "1M");
    device.fill(0..20, 1);
    device.set("writeback", "page_indexes=0-1");
    assert!(!device.show("policy").contains("failed too often"));
    for _ in 0..8 {
        assert_eq!(device.refuse("writeback", "page_index=2"), Kind::Io);
    }
    assert!(device.show("policy").contains("failed too often"), "{}", device.show("policy"));
    let calls = device.disk.calls();
    assert_eq!((device.refuse("writeback", "page_indexes=2-19"), device.disk.calls()), (Kind::Io, calls));
    assert_eq!(device.errors(), [8, 0, 0, 0], "what is not tried does not fail");
    let noise = |slot| page(&mut Random(slot), 100);
    let refused = (100..1000).find_map(|slot| Some((slot, device.write(slot, &noise(slot)).err()?)));
    let (slot, kind) = refused.expect("it has a limit");
    assert_eq!(kind, Kind::NoSpace);
    assert!((100..slot).all(|slot| device.read(slot, 1) == noise(slot)));
    assert_eq!(device.bd_stat()[0], 2);
    device.check(0..20, 1);
    device.settle();
}

#[test]
fn a_read_that_fails_is_an_error_and_its_page_stays_where_it_is() {
    let device = failing(Call::Read, 100, false);
    device.fill(0..10, 1);
    device.write_back_all();
    let kind = (0..120).find_map(|_| device.try_read(5).err()).expect("the disk fails once");
    assert_eq!((kind, device.number("failed_reads"), device.number("lost_pages")), (Kind::Io, 1, 0));
    assert_eq!((device.bd_stat()[0], device.errors()), (10, [0, 1, 0, 0]));
    device.check(0..10, 1);
    device.settle();
}

#[test]
fn a_rotten_record_is_an_error_until_its_page_is_written() {
    let device = spilling(config(), medium(100));
    device.fill(0..100, 1);
    device.write_back_all();
    device.settle();
    let offset = device.zram.core.table.away(SlotIndex(40)).unwrap().at;
    let at = ((u64::from(offset.segment) + 1) << SHIFT) + u64::from(offset.offset);
    device.flip(8 * (at + 3));
    let read = |slot: u64| device.run(device.seam.submit(Request::read(slot << 12, IoBuf::new(PAGE)))).result;
    assert_eq!(read(40), Err(Kind::Corrupt));
    assert_eq!((device.number("lost_pages"), device.number("failed_reads")), (1, 1));
    assert_eq!(device.errors(), [0, 0, 1, 0]);
    assert_eq!(read(40), Err(Kind::Corrupt), "also when it is not looked for");
    device.check((0..40).chain(41..100), 1);
    device.write_back_all();
    device.fill(40..41, 2);
    device.check(40..41, 2);
    assert_eq!((device.number("lost_pages"), device.errors()), (0, [0, 0, 1, 0]), "it has happened");
    device.settle();
}

/// A batch is on its way, and fails after its limit was set anew: what was charged for it was of the limit before.
#[test]
fn a_limit_that_is_set_while_a_batch_is_in_flight_is_kept_too() {
    for limit in [0, 20] {
        let fault =
            Fault { call: Some(Call::Write), nth: OPENED, effect: Effect::Fail(Kind::Io), sticky: false };
        let plan = Plan { faults: vec![fault], latency: Latency::Network, ..Plan::default() };
        let device = open("ram0", config(), medium(100), plan).expect("it is blank");
        device.fill(0..100, 1);
        device.set("writeback_limit", "1000");
        device.set("writeback_limit_enable", "1");
        let command = device.table.store("writeback", "page_indexes=0-39");
        // No I/O ends as long as the clock stands.
        (0..100).for_each(|_| _ = device.world.turn());
        let charged = 1000 - device.number("writeback_limit");
        assert!(charged > 0, "its pages are on their way");
        let set = device.table.store("writeback_limit", &limit.to_string());
        assert_eq!(device.run(set), Ok(()));
        assert_eq!(device.run(command).unwrap_err().kind, Kind::Io);
        assert_eq!(device.refuse("writeback", "page_indexes=0-99"), Kind::Io);
        let written = device.bd_stat()[2];
        assert!((limit..charged + limit).contains(&written), "{written} pages by {charged} and {limit}");
        assert_eq!(device.number("writeback_limit"), 0);
        device.settle();
    }
}

/// The file was full, and then memory is no longer short: nothing is tried, and nothing stands in the way.
#[test]
fn a_file_that_was_full_is_not_spoken_of_where_no_page_has_to_leave() {
    let full =
        Fault { call: Some(Call::Write), nth: OPENED, effect: Effect::Fail(Kind::NoSpace), sticky: true };
    let plan = Plan { faults: vec![full], ..Plan::default() };
    let device = open("ram0", config(), medium(100), plan).expect("it is blank");
    device.set("mem_limit", "1M");
    let noise = |slot| page(&mut Random(slot), 100);
    (0..1000).find(|&slot| device.write(slot, &noise(slot)).is_err()).expect("the file is full");
    assert!(device.show("policy").contains("the spill file is full"), "{}", device.show("policy"));
    device.discard(0, 150 << 12);
    device.settle();
    device.world.advance(Duration::from_secs(60));
    assert!(device.show("policy").contains("nothing is spilled below 90 %"), "{}", device.show("policy"));
}
