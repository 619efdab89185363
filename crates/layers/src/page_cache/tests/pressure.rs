//! Memory that a shard is short of: what is written back for who waits there, and whose turn it is.

use super::*;
use spillway_policy::dirty_regions::RegionNumber;

/// Blocks of a region.
const REGION: usize = 16;

/// Where everything may be dirty, in four shards and folios of a region.
fn house(latency: Latency) -> House {
    let cut = Cut { region_bytes: (REGION * BLOCK) as u64, shards: 4 };
    let config = Config {
        page_cache_bytes_max: Some(4 << 20),
        folio_size: Some((REGION * BLOCK) as u64),
        dirty_ratio: 100,
        dirty_background_ratio: 100,
        dirty_expire: 86_400_000,
        cut,
        ..mebibyte()
    };
    House::with_plan(&config, Plan { latency, ..Plan::default() })
}

/// The regions of each shard, up the device.
fn regions(house: &House) -> Vec<Vec<usize>> {
    let mut regions = vec![Vec::new(); 4];
    for region in 0..(32 << 20) / (REGION * BLOCK) {
        regions[house.cache.core.places.shard_of(RegionNumber(region as u64))].push(region);
    }
    regions
}

fn whole(region: usize) -> Request {
    filled(region * REGION, 1 + region as u8 % 200, REGION)
}

#[test]
fn what_is_written_back_where_memory_is_short_is_what_has_to_leave_there() {
    let house = house(Latency::Nvme);
    let of = regions(&house);
    let room = |shard: usize| house.cache.core.shards[shard].read().free_of(0) as usize;
    // Most of the others, and of the first all but what reclaim leaves free.
    for shard in 1..4 {
        of[shard][..room(shard) * 2 / 3].iter().for_each(|region| house.write(region * REGION, 1, REGION));
    }
    of[0][..room(0) * 2 / 3].iter().for_each(|region| house.write(region * REGION, 1, REGION));
    assert_eq!(house.below.take(Op::Write), []);
    let more = &of[0][of[0].len() - room(0) - 8..];
    let writes: Vec<_> = more.iter().map(|region| house.spawn(house.submit(whole(*region)))).collect();
    house.until("the writes", || writes.iter().all(|write| write.get() == Some(Ok(()))));
    let written = house.below.take(Op::Write);
    assert!(!written.is_empty());
    for (offset, _) in written {
        let shard = house.cache.core.places.shard_of(house.cache.core.places.region_at(offset));
        assert_eq!(shard, 0, "{offset} is in another shard than who waits");
    }
}

/// Nothing of that shard can be written.
#[test]
fn what_fails_where_memory_is_short_keeps_nothing_old_of_others_from_being_written_back() {
    let house = house(Latency::Nvme);
    let of = regions(&house);
    *house.below.full.lock() = Some(ByteRange::new(0, 16 << 20));
    let room = house.cache.core.shards[0].read().free_of(0) as usize;
    let (short, old) = (&of[0][..room], of[1][of[1].len() - 1]);
    let (first, half) = (short[room - 1] * REGION * BLOCK, 16 << 20);
    assert!(first < half && old * REGION * BLOCK >= half, "only what is old is written where there is room");
    house.write(old * REGION, 1, REGION);
    short.iter().for_each(|region| house.write(region * REGION, 1, REGION));
    house.until("a failure", || house.text("error") == "ENOSPC");
    assert_eq!(house.number("unsaved_bytes"), ((room + 1) * REGION * BLOCK) as u64);
    house.set("dirty_expire", "1000");
    house.until("the rest below", || house.number("unsaved_bytes") == (room * REGION * BLOCK) as u64);
}

/// Whether a request of all the memory of a shard is answered while so many clients write there for ever.
fn answers_before(house: &House, request: Request, small: &Rc<Cell<usize>>, most: usize) {
    let before = small.get();
    let answered = house.spawn(house.submit(request));
    house.until("the large write", || answered.get().is_some() || small.get() - before > most);
    assert_eq!(answered.get(), Some(Ok(())), "it still waits after {} others", small.get() - before);
}

/// Clients that write one region after the other, of those of the first shard, for ever.
fn keep_writing(house: &House, clients: usize) -> Rc<Cell<usize>> {
    let (of, written) = (Rc::new(regions(house)), Rc::<Cell<usize>>::default());
    for client in 0..clients {
        let (seam, of, written) = (Seam::new(house.cache.clone()), of.clone(), written.clone());
        house.world.spawn_here(Box::pin(async move {
            for nth in (client..).step_by(clients) {
                let region = of[0][of[0].len() / 2 + nth % (of[0].len() / 2)];
                assert_eq!(seam.submit(whole(region)).await.result, Ok(()));
                written.set(written.get() + 1);
            }
        }));
    }
    written
}

#[test]
fn who_comes_later_takes_no_memory_before_who_waits() {
    let house = house(Latency::SataSsd);
    let small = keep_writing(&house, 63);
    house.until("a full shard", || small.get() > 200);
    assert!(house.number("writes_blocked") > 16, "memory is short");
    // Each of the others once, and what of them finds its folio there: where chance decides, that is too few for one of these.
    for region in &regions(&house)[0][..20] {
        answers_before(&house, whole(*region), &small, 110);
    }
}

/// Reads can do without.
#[test]
fn reads_take_no_memory_before_a_write_that_waits() {
    let house = house(Latency::SataSsd);
    let of = Rc::new(regions(&house));
    let reads = Rc::<Cell<usize>>::default();
    for client in 0..64 {
        let (seam, of, reads) = (Seam::new(house.cache.clone()), of.clone(), reads.clone());
        house.world.spawn_here(Box::pin(async move {
            for nth in (client * 7..).step_by(61) {
                let region = of[0][nth % of[0].len()];
                let read = Request::read((region * REGION * BLOCK) as u64, IoBuf::new(REGION * BLOCK));
                assert_eq!(seam.submit(read).await.result, Ok(()));
                reads.set(reads.get() + 1);
            }
        }));
    }
    house.until("a full shard", || reads.get() > 200);
    answers_before(&house, whole(of[0][5]), &reads, 3 * 64);
}
