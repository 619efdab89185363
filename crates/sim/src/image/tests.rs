//! The lock of an image, who is locked out, and who has written last.

use super::*;
use crate::world::World;
use spillway_core::{Answer, IoBuf, Storage};

fn open(world: &Arc<World>, image: &Arc<Image>, take_over: bool) -> Result<Client, Error> {
    let (image, link) = (image.clone(), Arc::default());
    let opened = async move { Client::open(&image, &link, take_over, true).await };
    world.run(Answer::pending(opened))
}

fn write(world: &Arc<World>, client: &Client, at: u64, byte: u8) -> Result<usize, Kind> {
    let mut buf = IoBuf::new(4 * PIECE_BYTES as usize);
    buf.fill(byte);
    world.run(Answer::Pending(client.write(at, buf, 0, false))).0
}

#[test]
fn one_client_has_the_lock_and_one_that_has_lost_it_writes_nothing_more() {
    let world = World::new(1);
    let image = Image::new(world.clone(), 1 << 20, 1);
    let first = open(&world, &image, false).unwrap();
    assert_eq!(write(&world, &first, 0, 1), Ok(4 * PIECE_BYTES as usize));
    assert_eq!(open(&world, &image, false).map(drop).unwrap_err().kind, Kind::Busy);
    let second = open(&world, &image, true).unwrap();
    let [one, two] = [&first, &second].map(|client| client.geometry().writers.expect("it has some"));
    assert_eq!(two.last, one.own, "it knows who has written");
    assert_eq!(write(&world, &first, 0, 2), Err(Kind::Io));
    assert_eq!(first.connection().state, "fenced");
    assert_eq!(image.content()[0], 1);
    assert_eq!(world.run(Answer::Pending(second.close())), Ok(()));
    assert_eq!(image.owner(), None);
}

/// Its link is cut while a write is on its way.
#[test]
fn what_is_on_its_way_from_one_that_is_locked_out_arrives_nowhere() {
    for seed in 0..20 {
        let world = World::new(seed);
        let image = Image::new(world.clone(), 1 << 20, seed);
        let link: Arc<Link> = Arc::default();
        let (shared, over) = (image.clone(), link.clone());
        let opened = async move { Client::open(&shared, &over, false, true).await };
        let first = world.run(Answer::pending(opened)).unwrap();
        link.set_cut(true);
        let mut buf = IoBuf::new(4096);
        buf.fill(7);
        let written = first.write(0, buf, 0, false);
        world.spawn_here(Box::pin(async move { assert_eq!(written.await.0, Err(Kind::Io)) }));
        world.turn();
        let second = open(&world, &image, true).unwrap();
        link.set_cut(false);
        assert_eq!(write(&world, &second, 4096, 8), Ok(4 * PIECE_BYTES as usize));
        assert_eq!(world.run(Answer::Pending(second.close())), Ok(()));
        assert!(image.content()[..4096].iter().all(|&byte| byte == 0), "seed {seed}");
    }
}

#[test]
fn a_failure_is_one_of_its_client_and_kind_and_of_its_moment() {
    let world = World::new(1);
    let image = Image::new(world.clone(), 1 << 20, 1);
    let link = Arc::new(Link::new(Some(Duration::from_millis(500))));
    let (shared, over) = (image.clone(), link.clone());
    let opened = async move { Client::open(&shared, &over, false, true).await };
    let client = world.run(Answer::pending(opened)).unwrap();
    image.set_full(true);
    assert_eq!(write(&world, &client, 0, 1), Err(Kind::Exhausted));
    let (number, full) = (client.number(), world.now());
    link.set_cut(true);
    assert_eq!(write(&world, &client, 0, 1), Err(Kind::Unreachable));
    let silent = world.now();
    let failed = |kind, since| image.has_failed_since(number, kind, since);
    assert!(failed(Kind::Exhausted, full) && !failed(Kind::Exhausted, silent));
    assert!(
        failed(Kind::Unreachable, silent) && !failed(Kind::Unreachable, silent + Duration::from_nanos(1))
    );
    assert!(!image.has_failed_since(number + 1, Kind::Unreachable, Duration::ZERO));
    assert_eq!(image.longest(number), Duration::from_millis(500));
}
