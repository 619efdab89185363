//! No poll does more than a slice of work, whatever a client asks for. Counted where it is done, not where it is planned.

use super::*;
use crate::slice::SLICE;
use crate::slice::meter::{self, Metered};

/// A slice, and the page or leaf at which it was seen to be over.
pub(super) fn most(one_page: u32) -> u64 {
    u64::from(SLICE + SLICE / 8).max(u64::from(one_page) + 100)
}

/// Runs an answer to a request. Alone, no poll but the last does less than a slice: none yields for nothing.
pub(super) fn metered(bench: &Bench, submit: impl FnOnce() -> Submission) -> (Reply, u64, u64) {
    let Metered { answer, worst, all, yields } = meter_of(bench, submit);
    let paid_for = all / u64::from(SLICE);
    assert!(yields <= paid_for || bench.world.idle_workers() > 0, "{yields} yields, {paid_for} paid for");
    (answer, worst, all)
}

fn meter_of<T: Unpin + 'static>(bench: &Bench, submit: impl FnOnce() -> Answer<T>) -> Metered<T> {
    meter::metered(submit, || _ = bench.world.step())
}

fn zeroing(range: ByteRange) -> Request {
    let mut request = Request::bare(Op::WriteZeroes, range);
    request.flags.no_hole = true;
    request
}

#[test]
fn zeroing_describing_and_discarding_gigabytes_take_a_slice_at_a_time() {
    const BYTES: u64 = 2 << 30;
    let bench = bench(sized(BYTES));
    let range = ByteRange::new(0, BYTES);
    let (reply, worst, all) = metered(&bench, || bench.seam.submit(zeroing(range)));
    assert_eq!(reply.result, Ok(()));
    assert!(worst <= most(0) && all > 100 * most(0), "zeroing: {worst} units in a poll, {all} in all");

    let (mut at, mut asked) = (0, 0);
    while at < BYTES {
        meter::take();
        let Answer::Done(extents) = bench.seam.extents(ByteRange::new(at, BYTES - at), 100) else {
            panic!("a part is known at once");
        };
        let (extents, units) = (extents.unwrap(), meter::take());
        assert!(units <= most(0), "extents: {units} units in a call");
        assert!(extents.iter().all(|extent| extent.zero && !extent.hole));
        at += extents.iter().map(|extent| extent.len).sum::<u64>();
        asked += 1;
    }
    assert!(at == BYTES && (2..100).contains(&asked), "{asked} calls for {at} bytes");

    let discard = Request::bare(Op::Discard, range);
    let (reply, worst, all) = metered(&bench, || bench.seam.submit(discard));
    assert_eq!((reply.result, bench.number("orig_data_size")), (Ok(()), 0));
    assert!(worst <= most(0) && all > 100 * most(0), "discard: {worst} units in a poll, {all} in all");
}

#[test]
fn a_device_of_terabytes_with_little_on_it_is_described_in_one_answer() {
    let bench = bench(sized(16 << 40));
    bench.write((9 << 40) / PAGE as u64, &page(&mut Random(3), 50)).unwrap();
    let (mut at, mut asked, mut stored) = (0, 0, 0);
    while at < 16 << 40 {
        meter::take();
        let answer = bench.seam.extents(ByteRange::new(at, (16 << 40) - at), 100);
        let Answer::Done(Ok(extents)) = answer else { panic!("a part is known at once") };
        assert!(meter::take() <= most(0));
        stored += extents.iter().filter(|extent| !extent.hole).map(|extent| extent.len).sum::<u64>();
        at += extents.iter().map(|extent| extent.len).sum::<u64>();
        asked += 1;
    }
    assert_eq!((at, stored), (16 << 40, PAGE as u64));
    assert_eq!(asked, 1, "what is empty costs nothing");
}

#[test]
fn large_writes_and_reads_compress_a_slice_at_a_time_with_every_codec_and_level() {
    for (name, params, one_page) in [
        ("lz4", None, 31),
        ("zstd", Some("level=-3"), 250),
        ("zstd", None, 250),
        ("lz4hc", None, 500),
        ("lz4hc", Some("level=12"), 2000),
        ("deflate", None, 670),
        ("deflate", Some("level=9"), 1000),
        ("zstd", Some("level=9"), 1000),
        ("zstd", Some("level=19"), 10_000),
    ] {
        for idle in [0, 3] {
            let config = Config {
                comp_algorithm: name,
                algorithm_params: params.map(str::to_string),
                ..sized(4 << 20)
            };
            let (bench, mut random) = (bench(config), Random(5));
            bench.world.set_idle_workers(idle);
            let content: Vec<u8> = (0..512).flat_map(|_| page(&mut random, 40)).collect();
            let write = || bench.seam.submit(Request::write(0, IoBuf::copy_of(&content)));
            let (reply, worst, all) = metered(&bench, write);
            assert_eq!(reply.result, Ok(()));
            let what = format!("{name} {params:?}, {idle} idle: {worst} units in a poll, {all} in all");
            assert!(worst <= most(one_page) && all >= 512 * u64::from(one_page), "write with {what}");
            let read = || bench.seam.submit(Request::read(0, IoBuf::new(content.len())));
            let (reply, worst, all) = metered(&bench, read);
            assert!(reply.result == Ok(()) && reply.buf[..] == content[..]);
            assert!(worst <= most(0) && all > 4 * most(0), "read with {what}: {worst}, {all}");
        }
    }
}

#[test]
fn compaction_takes_a_slice_at_a_time() {
    let (bench, mut random) = (bench(sized(64 << 20)), Random(8));
    (0..4000).for_each(|index| bench.write(index, &page(&mut random, 40)).unwrap());
    (0..4000).filter(|index| index % 3 > 0).for_each(|index| bench.discard(index * PAGE as u64, PAGE as u64));
    let (before, mut worst) = (bench.number("mem_used_total"), 0);
    for _ in 0..20 {
        bench.world.advance(Duration::from_millis(100));
        for _ in 0..200 {
            meter::take();
            bench.world.step();
            worst = meter::take().max(worst);
        }
    }
    assert!(bench.number("mem_used_total") < before / 2, "something was moved");
    assert!(worst > 0 && worst <= most(0), "{worst} units in a poll");
}

#[test]
fn compact_and_reset_take_a_slice_at_a_time() {
    let (bench, mut random) = (bench(sized(2 << 30)), Random(8));
    (0..4000).for_each(|index| bench.write(index, &page(&mut random, 40)).unwrap());
    (0..4000).filter(|index| index % 3 > 0).for_each(|index| bench.discard(index * PAGE as u64, PAGE as u64));
    let before = bench.number("mem_used_total");
    let compact = meter_of(&bench, || bench.table.store("compact", "1"));
    assert_eq!(compact.answer, Ok(()));
    assert!(bench.number("mem_used_total") < before / 2, "something was moved");
    assert!(compact.worst <= most(0) && compact.all > 2 * most(0), "{} in a poll", compact.worst);

    let fill = bench.seam.submit(zeroing(ByteRange::new(64 << 20, 1 << 30)));
    assert_eq!(bench.run(fill).result, Ok(()));
    let reset = meter_of(&bench, || bench.table.store("reset", "1"));
    assert_eq!((reset.answer, bench.number("mem_used_total")), (Ok(()), 0));
    assert!(reset.worst <= most(0) && reset.all > 100 * most(0), "{} in a poll", reset.worst);
}

#[test]
fn a_reset_goes_on_without_its_client_and_nothing_is_set_meanwhile() {
    let bench = bench(sized(2 << 30));
    assert_eq!(bench.run(bench.seam.submit(zeroing(ByteRange::new(0, 1 << 30)))).result, Ok(()));
    drop(bench.table.store("reset", "1"));
    bench.world.run_until(|| bench.number("disksize") == 0);
    let refused =
        [("disksize", "1M"), ("comp_algorithm", "zstd"), ("algorithm_params", "level=1"), ("reset", "1")];
    for (name, value) in refused {
        assert_eq!(bench.refuse(name, value), Kind::Busy, "{name}");
    }
    assert!(bench.number("mem_used_total") > 0, "it takes longer than that");
    bench.world.run_until(|| bench.table.store("disksize", "1M").now().is_ok());
    assert_eq!((bench.number("mem_used_total"), bench.number("disksize")), (0, 1 << 20));
}

#[test]
fn pages_that_cost_little_are_many_in_a_slice() {
    for (name, params) in [("lz4", None), ("zstd", Some("level=19"))] {
        let params = params.map(str::to_string);
        let bench = bench(Config { comp_algorithm: name, algorithm_params: params, ..sized(64 << 20) });
        // Sizes of which the last slice does little, and some that are a slice or less.
        for pages in [1, 64, 200, 1000, 1715, 4000, 8000] {
            for word in [0, 0xabu8] {
                let content = vec![word; pages * PAGE];
                let write = || bench.seam.submit(Request::write(0, IoBuf::copy_of(&content)));
                let (reply, worst, all) = metered(&bench, write);
                assert!(reply.result == Ok(()) && worst <= most(0), "{name}: {pages} pages, {worst} units");
                assert!(all <= 10 * pages as u64, "{name}: {all} units for {pages} pages of a word");
            }
            bench.discard(0, (pages * PAGE) as u64 / 2 / PAGE as u64 * PAGE as u64);
            let read = || bench.seam.submit(Request::read(0, IoBuf::new(pages * PAGE)));
            let (reply, worst, all) = metered(&bench, read);
            assert!(reply.result == Ok(()) && worst <= most(0), "{name}: {pages} pages, {worst} units");
            assert!(all <= 10 * pages as u64, "{name}: {all} units for reading {pages} pages of a word");
        }
    }
}

#[test]
fn raw_pages_are_read_by_what_a_copy_costs() {
    let bench = bench(Config { comp_algorithm: "zstd", ..sized(8 << 20) });
    let mut content = vec![0; 1000 * PAGE];
    Random(6).fill(&mut content);
    let (reply, ..) = metered(&bench, || bench.seam.submit(Request::write(0, IoBuf::copy_of(&content))));
    assert_eq!(reply.result, Ok(()));
    let (reply, worst, all) =
        metered(&bench, || bench.seam.submit(Request::read(0, IoBuf::new(content.len()))));
    assert!(reply.result == Ok(()) && reply.buf[..] == content[..]);
    assert!(worst <= most(0) && all <= 10 * 1000, "{worst} units in a poll, {all} in all");
}
