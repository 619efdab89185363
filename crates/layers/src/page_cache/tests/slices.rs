//! No poll does more than about a slice of work, whatever a client asks for and whatever the cache holds. Counted where it is done, not where
//! it is planned.

use spillway_sim::disk::{Call, Effect, Fault};

use super::*;
use crate::slice::SLICE;
use crate::slice::meter::{self, Metered};

/// Blocks of the device: 32 MiB.
const BLOCKS: usize = 8192;

/// What one poll does at most, 0.7 ms: a slice, or the copy of all that is dirty of a region, each of its 512 folios looked at a few times.
const MOST: u64 = SLICE as u64 + 512 * 10;

/// A cache that holds all of its disk in folios of a block.
fn house(plan: Plan) -> House {
    let config = Config {
        page_cache_bytes_max: Some(44 << 20),
        folio_size: Some(BLOCK as u64),
        dirty_ratio: 100,
        dirty_background_ratio: 100,
        cut: Cut { shards: 1, ..Cut::default() },
        ..mebibyte()
    };
    House::over(&config, plan, Medium::new((BLOCKS * BLOCK) as u64))
}

fn nvme() -> Plan {
    Plan { latency: Latency::Nvme, ..Plan::default() }
}

/// Asks for something; none of it takes more than [`MOST`] at once.
fn ask(house: &House, request: Request) -> (Reply, u64) {
    let what = format!("{:?} of {} bytes", request.op, request.range.len);
    let Metered { answer, worst, all, .. } =
        meter::metered(|| house.submit(request), || _ = house.world.go_on());
    house.cache.verify();
    meter::take();
    assert!(worst <= MOST, "{what}: {worst} units in a poll, {all} in all");
    (answer, all)
}

fn all(op: Op) -> Request {
    Request::bare(op, ByteRange::new(0, (BLOCKS * BLOCK) as u64))
}

/// Fills it with every block, or every other one.
fn fill(house: &House, value: u8, step: usize) {
    for block in (0..BLOCKS).step_by(512) {
        match step {
            1 => house.write(block, value, 512),
            _ => (block..block + 512).step_by(step).for_each(|block| {
                let written = house.world.run(house.submit(filled(block, value, 1)));
                assert_eq!(written.result, Ok(()));
            }),
        }
    }
}

#[test]
fn zeroes_and_discards_over_many_folios_take_a_slice_at_a_time() {
    for (op, step, clean) in [
        (Op::WriteZeroes, 1, true),
        (Op::WriteZeroes, 1, false),
        (Op::Discard, 1, true),
        (Op::Discard, 1, false),
        (Op::Discard, 2, false),
    ] {
        let house = house(nvme());
        fill(&house, 7, step);
        if clean {
            house.flush();
        }
        house.below.take(op);
        let (reply, units) = ask(&house, all(op));
        assert_eq!(reply.result, Ok(()), "{op:?}");
        assert!(units > 4 * MOST, "{units} units for {op:?}");
        assert_eq!(house.number("unsaved_bytes"), 0);
        assert_eq!([0, 4097, BLOCKS - 2].map(|block| house.read(block, 1)[0]), [0; 3]);
        if clean {
            assert_eq!(house.below.take(op), [(0, (BLOCKS * BLOCK) as u64)], "the device gets it whole");
        }
    }
}

#[test]
fn extents_of_much_that_is_dirty_take_a_slice_at_a_time() {
    for step in [1, 2] {
        let house = house(nvme());
        fill(&house, 7, step);
        let whole = ByteRange::new(0, (BLOCKS * BLOCK) as u64);
        let ask = || house.cache.extents(whole, BLOCKS);
        let Metered { answer, worst, all, .. } = meter::metered(ask, || _ = house.world.go_on());
        let extents = answer.expect("the disk can tell");
        assert_eq!(extents.len(), if step == 1 { 1 } else { BLOCKS }, "every block is told of");
        assert!(worst <= MOST && all > 2 * MOST, "{worst} units in a poll, {all} in all");
    }
}

#[test]
fn large_reads_and_writes_of_what_is_in_memory_take_a_slice_at_a_time() {
    let house = house(nvme());
    for value in [1, 2] {
        let (reply, units) = ask(&house, filled(0, value, 4096));
        assert!(reply.result == Ok(()) && units > 2 * MOST, "{units} units for a write");
    }
    let (reply, units) = ask(&house, Request::read(0, IoBuf::new(4096 * BLOCK)));
    assert!(reply.result == Ok(()) && units > 2 * MOST, "{units} units for a read");
    assert!(reply.buf.iter().all(|byte| *byte == 2));
}

/// Every folio has been accessed as often as counts, and each of them could stay for three rounds more.
#[test]
fn the_first_that_leave_after_many_were_used_often_take_a_slice_at_a_time() {
    for direct in [false, true] {
        let config = Config {
            page_cache_bytes_max: Some(22 << 20),
            folio_size: Some(BLOCK as u64),
            cut: Cut { shards: 1, ..Cut::default() },
            ..mebibyte()
        };
        let house = House::over(&config, nvme(), Medium::new((BLOCKS * BLOCK) as u64));
        let folios = house.number("folio_bytes_max") as usize / BLOCK / 32 * 31;
        (0..folios).for_each(|block| _ = house.world.run(house.submit(read(block, 1))));
        for _ in 0..4 {
            (0..folios).for_each(|block| _ = house.submit(read(block, 1)).now());
        }
        if direct {
            // Background reclaim has no turn meanwhile.
            for block in folios..BLOCKS {
                meter::take();
                let mut submission = house.submit(filled(block, 1, 1));
                let units = meter::take();
                assert!(units <= MOST, "block {block}: {units} units");
                if let Answer::Pending(_) = &mut submission {
                    break;
                }
            }
            assert!(house.number("folios_evicted_directly") > 0);
        }
        let (reply, units) = ask(&house, read(folios, BLOCKS - folios));
        assert!(reply.result == Ok(()) && units > MOST, "{units} units for a read");
        assert!(house.number("folios_evicted") > 0);
    }
}

fn read(block: usize, blocks: usize) -> Request {
    Request::read((block * BLOCK) as u64, IoBuf::new(blocks * BLOCK))
}

/// Polls a request, and everybody else, until `enough`. It is not answered before.
fn poll_until(house: &House, submission: &mut Submission, enough: impl Fn() -> bool) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let Answer::Pending(asked) = submission else { panic!("it is answered at once") };
    while !enough() {
        assert!(asked.as_mut().poll(&mut context).is_pending(), "it is answered too soon");
        house.world.go_on();
    }
}

fn firsts(house: &House) -> Vec<u8> {
    (0..BLOCKS).step_by(512).map(|block| house.read(block, 1)[0]).collect()
}

#[test]
fn a_long_discard_that_is_withdrawn_in_the_midst_leaves_the_rest_as_it_was() {
    let house = house(nvme());
    fill(&house, 7, 1);
    let mut submission = house.submit(all(Op::Discard));
    let zeroes = || house.below.seen.lock().iter().filter(|(op, _)| *op == Op::WriteZeroes).count();
    poll_until(&house, &mut submission, || zeroes() > 4);
    meter::take();
    drop(submission);
    let units = meter::take();
    assert!(units > 0 && units <= MOST, "{units} units to withdraw it");
    house.cache.verify();
    assert_eq!(house.number("nr_writeback"), 0);
    assert!(matches!(house.submit(filled(BLOCKS - 1, 8, 1)), Answer::Done(_)), "nobody holds it");
    assert_eq!(firsts(&house), [[0; 2].as_slice(), &[7; 14]].concat());
    house.flush();
    assert_eq!([0, 2 * 512, BLOCKS - 2].map(|block| house.survivor(block)), [0, 7, 7]);
}

#[test]
fn zeroes_over_what_cannot_be_written_back_change_nothing() {
    let house = house(nvme());
    fill(&house, 7, 1);
    *house.below.full.lock() = Some(ByteRange::new(6 << 21, 4096));
    assert_eq!(ask(&house, all(Op::WriteZeroes)).0.result, Err(Kind::NoSpace));
    assert!(house.below.take(Op::WriteZeroes).is_empty());
    assert_eq!(firsts(&house), [7; 16]);
    *house.below.full.lock() = None;
    assert_eq!(house.stop(), Ok(()));
    assert_eq!([0, 6 * 512, BLOCKS - 1].map(|block| house.survivor(block)), [7; 3]);
}

#[test]
fn a_long_discard_that_fails_in_the_midst_leaves_the_rest_as_it_was() {
    let fault = Fault { call: Some(Call::Zero), nth: 5, effect: Effect::Fail(Kind::Io), sticky: false };
    let house = house(Plan { faults: vec![fault], ..nvme() });
    fill(&house, 7, 1);
    assert_eq!(ask(&house, all(Op::Discard)).0.result, Err(Kind::Io));
    assert_eq!(firsts(&house), [[0; 2].as_slice(), &[7; 14]].concat());
    house.flush();
    assert_eq!([0, 2 * 512, BLOCKS - 1].map(|block| house.survivor(block)), [0, 7, 7]);
}

/// What others ask for in the regions that it has taken, or has still to take.
#[test]
fn flushes_and_writes_go_on_beside_a_long_discard() {
    let house = house(nvme());
    fill(&house, 7, 1);
    let (first, last) = (100, BLOCKS - 100);
    let range = ByteRange::new((first * BLOCK) as u64, ((last - first) * BLOCK) as u64);
    let discarded = house.spawn(house.submit(Request::bare(Op::Discard, range)));
    house.until("the discard", || !house.below.seen.lock().is_empty());
    let over = [4000, last - 1].map(|block| house.submit(filled(block, 9, 1).with_fua()));
    let answers: Vec<_> = over
        .into_iter()
        .chain([first - 1, last].map(|block| house.submit(filled(block, 8, 1).with_fua())))
        .chain([house.submit(Request::flush())])
        .map(|submission| house.spawn(submission))
        .chain([discarded])
        .collect();
    house.until("all of them", || answers.iter().all(|answer| answer.get() == Some(Ok(()))));
    let blocks = [first - 2, first - 1, first, 3999, 4000, 4001, last - 2, last - 1, last, last + 1];
    let expected = [7, 8, 0, 0, 9, 0, 0, 9, 8, 7];
    assert_eq!(blocks.map(|block| house.read(block, 1)[0]), expected);
    house.flush();
    house.disk.cut();
    let again = House::over(&mebibyte(), Plan::default(), house.disk.survivors());
    assert_eq!(blocks.map(|block| again.read(block, 1)[0]), expected);
}
