//! A model for the checker of threads: clients look at the size while the origin becomes larger.

use spillway_core::Grow;
use spillway_core::models::{every_order, finds};
use spillway_core::sync::shuttle::future::block_on;
use spillway_core::sync::shuttle::thread;

use super::{BLOCK, BlockDevice, House, write};
use crate::write_cache::format::OriginMark;

/// Bytes of the origin, as the superblock on the device has them.
fn marked(house: &House) -> u64 {
    let padding = house.cache.bytes.lock()[32..64].try_into().expect("a padding");
    OriginMark::decode(&padding).expect("it is ours").bytes
}

/// Who sees the new size finds it in the superblock, and can use what is new.
#[test]
fn the_superblock_has_a_size_before_a_client() {
    every_order(4000, || {
        let house = House::new(8);
        let cache = house.open(100);
        let (old, new) = (16 * BLOCK, 32 * BLOCK);
        assert_eq!((cache.geometry().size, marked(&house)), (old as u64, old as u64));
        house.origin.bytes.lock().resize(new, 0);
        let growing = cache.clone();
        let growing = thread::spawn(move || block_on(growing.grow(None)));
        while cache.geometry().size == old as u64 {
            thread::yield_now();
        }
        assert_eq!((cache.geometry().size, marked(&house)), (new as u64, new as u64));
        write(&cache, 31, 1);
        growing.join().expect("it ends").expect("it grows");
    });
}

#[test]
fn the_checker_finds_a_size_that_is_shown_early() {
    finds(
        "write_cache: show the new size before the superblock has it",
        the_superblock_has_a_size_before_a_client,
    );
}
