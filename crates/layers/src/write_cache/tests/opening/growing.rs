//! The origin becomes larger under a cache.

use spillway_core::Works;
use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use futures_util::future::join;

use super::*;
use crate::write_cache::format::{OriginMark, SUPERBLOCK_LEN};

const MIB: u64 = 1 << 20;

/// The bytes that a cache's superblock gives its origin.
fn marked(house: &House) -> u64 {
    let head = house.read(house.device(1), 0, SUPERBLOCK_LEN.next_multiple_of(512));
    OriginMark::decode(head[32..64].try_into().expect("a padding")).expect("it is ours").bytes
}

/// It is known by what it says of itself, where it does.
#[test]
fn an_origin_that_has_grown_is_the_same_and_another_one_is_not() {
    let mark = |bytes, identity| OriginMark { bytes, identity, writers: [0; 2] };
    for (bytes, identity, same) in
        [(2, 7, true), (1, 7, true), (2, 8, false), (1, 8, false), (2, 0, false), (1, 0, true)]
    {
        assert_eq!(mark(1, 7).is(&mark(bytes, identity)), same, "{bytes} bytes, identity {identity}");
    }
    assert!(!mark(2, 7).is(&mark(1, 7)), "it does not shrink");
}

/// A cache over a disk that may be enlarged, and the device over that disk.
fn open(house: &House) -> (Arc<WriteCache>, Arc<File>) {
    let origin = Arc::new(File::new(house.disks[0].clone(), house.world.clone()));
    let (cache, _) = house.open_over(&config(), origin.clone(), house.device(1)).unwrap();
    (cache, origin)
}

async fn grow(cache: Arc<WriteCache>, origin: Arc<File>) -> Result<(), Error> {
    origin.grow(None).await?;
    cache.grow(None).await
}

fn grow_now(house: &House, (cache, origin): &(Arc<WriteCache>, Arc<File>)) -> Result<(), Error> {
    house.world.run(Answer::pending(grow(cache.clone(), origin.clone())))
}

#[test]
fn a_cache_follows_its_origin_however_often_it_grows() {
    let house = House::new(MIB, MIB);
    let both = open(&house);
    let (cache, _) = &both;
    house.write(cache, 255, 1, 1);
    for (value, mib) in [2, 3, 64, 65, 200].into_iter().enumerate() {
        house.disks[0].enlarge(mib * MIB);
        assert!(cache.geometry().size < mib * MIB, "not before it is asked to");
        grow_now(&house, &both).unwrap();
        assert_eq!((cache.geometry().size, marked(&house)), (mib * MIB, mib * MIB));
        house.write(cache, mib * 256 - 1, value as u8 + 2, 1);
        cache.verify();
    }
    set(cache, "drain", "1").unwrap();
    house.wait_for("the end", || show(cache, "drain_state") == "complete");
    house.flush(cache);
    drop(both);
    let house = house.again();
    for (value, mib) in [1, 2, 3, 64, 65, 200].into_iter().enumerate() {
        let found = house.read(house.device(0), mib * MIB - 4096, 4096);
        assert!(found == [value as u8 + 1; 4096], "the last block of {mib} MiB was not written back");
    }
}

#[test]
fn a_grown_origin_may_be_too_large_or_cost_more_memory_than_there_is() {
    let mut house = House::new(MIB, MIB);
    house.budget = Budget::new(8 << 20);
    let both = open(&house);
    house.disks[0].enlarge(128 * MIB);
    house.budget.charge(house.budget.room()).unwrap();
    assert_eq!(both.0.target(Some(128 * MIB)).unwrap_err().kind, Kind::NoSpace, "before the origin grows");
    assert_eq!(grow_now(&house, &both).unwrap_err().kind, Kind::NoSpace);
    assert_eq!((both.0.geometry().size, marked(&house)), (MIB, MIB));
}

/// What a client was told before the power went.
#[derive(Default)]
struct Told {
    cache: OnceCell<Arc<WriteCache>>,
    /// The new size: asked for after each step.
    grown: Cell<bool>,
    old_end: Cell<bool>,
    new_end: Cell<bool>,
}

/// Opens the cache, grows the origin beside a client that writes and flushes, and uses what is new.
async fn story(disks: [Arc<Disk>; 2], world: Arc<World>, told: Rc<Told>) {
    let [origin, cache] = disks.each_ref().map(|disk| Arc::new(File::new(disk.clone(), world.clone())));
    let budget = Budget::new(64 << 20);
    let (cache, _) =
        WriteCache::open(&config(), origin.clone(), cache, world, budget, Works::default()).await.unwrap();
    let seam = Seam::new(cache.clone());
    let _ = told.cache.set(cache.clone());
    let write = async |block: u64, value: u8| {
        let mut buf = IoBuf::new(BLOCK);
        buf.fill(value);
        seam.submit(Request::write(block * BLOCK as u64, buf)).await.result.unwrap();
        seam.submit(Request::flush()).await.result.unwrap();
    };
    write(255, 5).await;
    told.old_end.set(true);
    disks[0].enlarge(2 * MIB);
    let beside = seam.submit(Request::write(0, IoBuf::new(8 * BLOCK)));
    let (_, grown) = join(beside, grow(cache, origin)).await;
    grown.unwrap();
    write(511, 6).await;
    told.new_end.set(true);
}

/// Plays the story on what `media` hold, until it ends or the power of `disk` goes at a boundary.
fn play(media: [Medium; 2], disk: usize, boundary: u64) -> (House, Rc<Told>) {
    let world = World::new(boundary);
    let mut number = 0;
    let disks = media.map(|medium| {
        let plan = Plan { cut_at: (number == disk).then_some(boundary), ..Plan::default() };
        number += 1;
        Arc::new(Disk::new(world.clone(), medium, BlockSize::SECTOR, plan, boundary))
    });
    let (house, told) = (House::of(&world, disks), Rc::<Told>::default());
    world.spawn_here(Box::pin(story(house.disks.clone(), world.clone(), told.clone())));
    while !told.new_end.get() && house.disks[disk].boundaries() <= boundary && world.go_on() {
        let is_new = |cache: &Arc<WriteCache>| cache.geometry().size > MIB;
        told.grown.set(told.cache.get().is_some_and(is_new));
    }
    (house, told)
}

/// The cache opens again, says of which origin it is, and has what was flushed. Returns whether it has the new size.
fn check(house: &House, told: &Told) -> bool {
    let now = marked(house);
    assert!(now == MIB || now == 2 * MIB && told.old_end.get(), "{now} bytes");
    assert!(now == 2 * MIB || !told.grown.get(), "a client saw the new size before the cache knew it");
    let cache = house.open(&config()).unwrap();
    for (was, block, value) in [(&told.old_end, 255, 5), (&told.new_end, 511, 6)] {
        if was.get() {
            assert!(house.read(cache.clone(), block * 4096, 4096) == [value; 4096], "block {block} is lost");
        }
    }
    now == 2 * MIB
}

#[test]
fn power_cuts_at_every_boundary_leave_a_cache_of_the_old_or_the_new_size() {
    let first = House::new(MIB, MIB);
    first.open(&config()).unwrap();
    let media = [0, 1].map(|disk| first.survivor(disk));
    for disk in [0, 1] {
        let mut seen = [0, 0];
        for boundary in 0.. {
            let (house, told) = play(media.clone(), disk, boundary);
            let house = house.again();
            seen[usize::from(check(&house, &told))] += 1;
            if told.new_end.get() {
                break;
            }
        }
        assert!(disk == 0 || seen[0] > 3 && seen[1] > 3, "{seen:?}: the cuts miss the change");
    }
}

/// Its owner has made the origin longer before a server began, and nobody has synced that.
#[test]
fn a_length_that_a_cache_finds_is_durable_before_the_cache_holds_blocks_from_there() {
    let known = House::new(MIB, MIB);
    known.open(&config()).unwrap();
    let known = [0, 1].map(|disk| known.survivor(disk));
    for [mut origin, cache] in [known, [Medium::new(MIB), Medium::new(MIB)]] {
        origin.enlarge(2 * MIB);
        for boundary in 0.. {
            let (house, written) = write_behind([origin.clone(), cache.clone()], boundary);
            let house = house.again();
            let found = house.open(&config()).expect("it opens, whenever the power goes");
            assert!(!written || house.read(found, 300 * 4096, 4096) == [6; 4096], "block 300 is lost");
            if written {
                break;
            }
        }
    }
}

/// Opens a cache and makes a block behind the first MiB durable, until that is done or the power goes at a boundary of the cache's disk.
fn write_behind(media: [Medium; 2], boundary: u64) -> (House, bool) {
    let world = World::new(boundary);
    let cuts = [None, Some(boundary)];
    let disks = [0, 1].map(|disk: usize| {
        let plan = Plan { cut_at: cuts[disk], ..Plan::default() };
        Arc::new(Disk::new(world.clone(), media[disk].clone(), BlockSize::SECTOR, plan, boundary))
    });
    let house = House::of(&world, disks);
    let (origin, cache, budget) = (house.device(0), house.device(1), house.budget.clone());
    let written = Rc::new(Cell::new(false));
    let (told, env) = (written.clone(), world.clone());
    world.spawn_here(Box::pin(async move {
        let (cache, _) =
            WriteCache::open(&config(), origin, cache, env, budget, Works::default()).await.unwrap();
        let mut buf = IoBuf::new(BLOCK);
        buf.fill(6);
        let mut request = Request::write(300 * BLOCK as u64, buf);
        request.flags.fua = true;
        told.set(Seam::new(cache).submit(request).await.result == Ok(()));
    }));
    while !written.get() && house.disks[1].boundaries() <= boundary && world.go_on() {}
    (house, written.get())
}
