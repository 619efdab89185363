//! What a stop has written when the power goes.

#[path = "../../../tests/spill_reader/reader.rs"]
pub(crate) mod reader;

use spillway_core::{BlockDevice, IoBuf, Request};

use super::*;
use crate::spill::format::{self, UNIT};

/// The bytes of a disk.
fn bytes_of(medium: Medium) -> Vec<u8> {
    let world = World::new(1);
    let disk = Arc::new(Disk::new(world.clone(), medium, BlockSize::PAGE, Plan::default(), 1));
    let file = File::new(disk, world.clone());
    let len = file.geometry().size as usize;
    world.run(file.submit(Request::read(0, IoBuf::new(len)))).buf.to_vec()
}

/// A stop during which the power is cut at that boundary of the disk: what is left, what slots named, and whether it had ended before.
fn stop_cut_at(cut_at: u64, seed: u64) -> (Vec<u8>, BTreeMap<u32, Vec<u8>>, bool) {
    let plan = Plan { cut_at: Some(cut_at), ..Plan::default() };
    let (house, _) = open(medium(), &settings(), plan, seed).expect("it is cut later");
    house.spill_pages(0..40, 0);
    (0..10).for_each(|slot| house.release(slot));
    let (store, slots) = (house.store.clone(), house.slots.clone());
    let ended: Arc<Mutex<bool>> = Arc::default();
    let told = ended.clone();
    let stop = async move {
        store.stop(&*slots, None).await.expect("the disk is sound");
        *told.lock() = true;
    };
    spillway_core::Env::spawn_here(&*house.world, Box::pin(stop));
    while !house.disk.is_cut() && !*ended.lock() && house.world.go_on() {}
    let held = house.slots.held.lock().iter().map(|(&slot, held)| (slot, held.bytes.clone())).collect();
    let ended = *ended.lock();
    (bytes_of(house.cut()), held, ended)
}

/// The power is cut at each boundary of a stop: a file that says that it was stopped holds all that slots named.
#[test]
pub(in crate::spill) fn what_says_that_it_was_stopped_is_whole() {
    let whole = House::new(1);
    whole.spill_pages(0..40, 0);
    let (first, mut stopped) = (whole.disk.boundaries(), 0);
    let cuts = (first..).flat_map(|cut_at| (0..4).map(move |seed| (cut_at, seed)));
    for (cut_at, seed) in cuts {
        let (mut file, held, ended) = stop_cut_at(cut_at, seed);
        // The first superblock is believed; its copy is for where that is damaged.
        file.copy_within(..UNIT, format::copy_offset(SHIFT) as usize);
        match reader::read(&file) {
            Ok(found) => {
                stopped += 1;
                assert_eq!(
                    (found.name.as_str(), found.slots, found.codecs.concat().len()),
                    ("ram0", 1 << 20, 0)
                );
                assert!(found.live.iter().all(|page| page.codec == 13));
                let found: BTreeMap<u32, Vec<u8>> =
                    found.live.into_iter().map(|page| (page.slot, page.bytes)).collect();
                assert!(found == held, "cut at {cut_at}: {} of {} pages", found.len(), held.len());
            }
            Err(words) => {
                let begins = ["there is no superblock", "it was not stopped"];
                let told = begins.iter().any(|begin| words.starts_with(begin));
                assert!(told && !ended, "cut at {cut_at}: it says that it was stopped, and {words}");
            }
        }
        if ended {
            break;
        }
    }
    assert!(stopped > 1, "it says so before the last call has ended");
}
