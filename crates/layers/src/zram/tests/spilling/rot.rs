//! A spill file that rots under a device.

use super::super::on_disk::{SHIFT, Spilling, config, content, medium, spilling};
use super::*;

const SLOTS: u64 = 120;

/// Where a slot's record lies in the file.
fn place(device: &Spilling, slot: u64) -> std::ops::Range<u64> {
    let away = device.zram.core.table.away(SlotIndex::new(slot)).expect("it was written back");
    let start = ((u64::from(away.at.segment) + 1) << SHIFT) + u64::from(away.at.offset);
    start..start + away.len as u64
}

/// 10,000 times one bit of the file flips, in what lies there or elsewhere: the page whose record has it, if one has, reads with an error until
/// it is written again; all others read as they were written.
#[test]
fn a_flipped_bit_is_an_error_of_the_page_that_it_hits_and_of_no_other() {
    let device = spilling(Config { bring_back: Promotion::Never, ..config() }, medium(100));
    let mut version = vec![0; SLOTS as usize];
    let (mut random, mut lost) = (Random(3), 0);
    (0..SLOTS).for_each(|slot| device.write(slot, &content(slot, 0)).unwrap());
    device.set("writeback", &format!("page_indexes=0-{}", SLOTS - 1));
    for flip in 1..=10_000 {
        let places: Vec<_> = (0..SLOTS).map(|slot| place(&device, slot)).collect();
        let end = places.iter().map(|place| place.end).max().expect("there are slots");
        let bit = random.below(end.next_multiple_of(1 << SHIFT) * 8);
        let hit = (0..SLOTS).find(|&slot| places[slot as usize].contains(&(bit / 8)));
        device.flip(bit);
        // All of a request fail together: one page at a time, that one and a few others.
        for slot in hit.into_iter().chain([(); 3].map(|()| random.below(SLOTS))) {
            let expected = match hit == Some(slot) {
                true => Err(Kind::Corrupt),
                false => Ok(content(slot, version[slot as usize])),
            };
            assert!(device.try_read(slot) == expected, "flip {flip}, slot {slot}, and {hit:?} was hit");
        }
        device.flip(bit);
        if let Some(slot) = hit {
            lost += 1;
            version[slot as usize] = flip;
            device.write(slot, &content(slot, flip)).unwrap();
            device.set("writeback", &format!("page_index={slot}"));
        }
    }
    assert!((1000..9000).contains(&lost), "{lost} pages were lost");
    for slot in 0..SLOTS {
        let right = device.try_read(slot).is_ok_and(|bytes| bytes == content(slot, version[slot as usize]));
        assert!(right, "slot {slot} is not right again");
    }
    assert_eq!(device.number("lost_pages"), 0);
    device.settle();
}
