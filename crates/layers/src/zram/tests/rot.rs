//! A spill file that rots under a device.

use super::on_disk::{config, content, medium, spilling};
use super::*;

const SLOTS: u64 = 120;

/// 10,000 times one bit of the file flips, in what lies there or elsewhere: the page at that place reads as it was written, or with an
/// error; and so it does until it is written again.
#[test]
fn a_flipped_bit_is_an_error_of_one_page_or_does_no_harm() {
    let device = spilling(Config { bring_back: BringBack::Never, ..config() }, medium(100));
    let mut version = vec![0; SLOTS as usize];
    let (mut random, mut lost) = (Random(3), 0);
    (0..SLOTS).for_each(|slot| device.write(slot, &content(slot, 0)).unwrap());
    device.set("writeback", &format!("page_indexes=0-{}", SLOTS - 1));
    for flip in 0..10_000 {
        let segments = 1 + device.number("spill_bytes") / (1 << 16);
        let bit = random.below((segments + 1) << 19);
        device.flip(bit);
        // All of a request fail together: one page at a time, a few of them.
        for slot in (0..6).map(|_| random.below(SLOTS)) {
            match device.try_read(slot) {
                Ok(bytes) => {
                    assert!(bytes == content(slot, version[slot as usize]), "flip {flip}, slot {slot}")
                }
                Err(kind) => {
                    assert_eq!(kind, Kind::Corrupt, "flip {flip}, slot {slot}");
                    lost += 1;
                    version[slot as usize] = flip + 1;
                    device.write(slot, &content(slot, flip + 1)).unwrap();
                    device.set("writeback", &format!("page_index={slot}"));
                }
            }
        }
        device.flip(bit);
    }
    assert!(lost > 50, "{lost} pages were lost");
    for slot in 0..SLOTS {
        if device.try_read(slot).is_ok_and(|bytes| bytes == content(slot, version[slot as usize])) {
            continue;
        }
        panic!("slot {slot} is not right again");
    }
    assert_eq!(device.number("lost_pages"), 0);
    device.settle();
}
