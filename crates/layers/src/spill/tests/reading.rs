//! What is written is read, in any combination, by few I/Os; and bits that flip are noticed.

use spillway_core::sync::{AtomicU32, Ordering};
use spillway_core::{BlockDevice, Geometry, IoBuf, Op, Request, Submission};

use super::*;

#[test]
fn records_of_any_length_come_back_alone_and_together() {
    let house = House::new(1);
    let mut random = Random(5);
    for first in (0..120).step_by(6) {
        let mut room = 16 << 10;
        let pages = (first..first + 6).map(|slot| {
            let len = 1 + random.below(room.min(4096) / 2 + 1) as usize;
            room -= len as u64;
            (slot, bytes(slot.into(), len))
        });
        let pages: Vec<_> = pages.collect();
        assert_eq!(house.spill(pages), (6, Ok(())));
    }
    let all = house.slots();
    assert!(all.len() == 120 && all.iter().all(|&slot| house.check(slot).is_ok()));
    for (found, slot) in house.read(&all).into_iter().zip(&all) {
        assert_eq!(found.as_ref(), Ok(&house.slots.held.lock()[slot].bytes), "slot {slot}");
    }
    house.verify();
}

#[test]
fn neighbours_are_read_by_one_io_and_written_by_one() {
    let house = House::new(1);
    let calls = house.disk.calls();
    house.spill_pages(0..4, 0);
    house.spill_pages(4..8, 0);
    assert_eq!(house.disk.calls() - calls, 2, "a write for each batch");
    let before = house.store.count(Count::Reads);
    assert!(house.read(&[3, 0, 2, 1, 7, 4, 5, 6]).iter().all(Result::is_ok));
    assert_eq!(house.store.count(Count::Reads) - before, 1);
    // A gap of 24 KiB is not read.
    assert!(house.read(&[0, 7]).iter().all(Result::is_ok));
    assert_eq!(house.store.count(Count::Reads) - before, 3);
}

#[test]
fn what_is_packed_is_hardly_longer_than_its_records() {
    let house = House::new(1);
    let mut len = 0;
    for first in (0..64).step_by(8) {
        let pages: Vec<_> = (first..first + 8).map(|slot| (slot, bytes(7, 1900 + slot as usize))).collect();
        len += pages.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        assert_eq!(house.spill(pages).1, Ok(()));
    }
    // Batches of 16 KiB here: a pad of half a unit each, footers, and a summary for 64 KiB.
    let most = len + 8 * 4096 + 3 * 4096 + 2 * 4096;
    assert!(house.store.count(Count::BytesWritten) <= most as u64, "{len} bytes of records");
}

/// 10,000 times one bit of the file flips: what is read is right, or an error, and right again once the bit is.
#[test]
fn a_flipped_bit_is_an_error_or_does_no_harm() {
    let house = House::new(1);
    for first in (0..60).step_by(6) {
        let pages =
            (first..first + 6).map(|slot| (slot, bytes(slot.into(), 700 + 30 * slot as usize))).collect();
        assert_eq!(house.spill(pages).1, Ok(()));
    }
    let all: Vec<Held> = house.slots.held.lock().values().cloned().collect();
    let (mut random, mut noticed) = (Random(9), 0);
    let file = Arc::new(File::new(house.disk.clone(), house.world.clone()));
    for _ in 0..10_000 {
        let bit = random.below(4 << SHIFT << 3);
        let byte = bit / 8;
        flip(&house, &file, bit);
        let segment = (byte >> SHIFT).wrapping_sub(1) as u32;
        let near = all.iter().filter(|held| {
            let at = held.spilled.at;
            let offset = byte & ((1 << SHIFT) - 1);
            at.segment == segment && u64::from(at.offset).abs_diff(offset) < 8192
        });
        let near: Vec<&Held> = near.collect();
        let slots: Vec<u32> = near.iter().map(|held| held.spilled.record.slot).collect();
        for (found, held) in house.read(&slots).into_iter().zip(&near) {
            match found {
                Ok(bytes) => assert!(bytes == held.bytes, "bit {bit} changed {:?}", held.spilled),
                Err(kind) => {
                    assert_eq!(kind, Kind::Corrupt);
                    noticed += 1;
                }
            }
        }
        flip(&house, &file, bit);
    }
    assert!(noticed > 2000, "{noticed} flips lay in records");
    assert_eq!(house.store.count(Count::Mismatches), noticed);
    assert!(house.slots().into_iter().all(|slot| house.check(slot).is_ok()));
}

/// A device some reads of which have a wrong bit, as over a bad cable.
struct Noisy {
    file: File,
    /// Reads that are spoiled yet.
    spoils: AtomicU32,
}

impl BlockDevice for Noisy {
    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        let less = |left: u32| left.checked_sub(1);
        let spoils = request.op == Op::Read
            && self.spoils.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        let answer = self.file.submit(request);
        Answer::pending(async move {
            let mut reply = answer.await;
            if spoils {
                reply.buf.iter_mut().for_each(|byte| *byte ^= 1);
            }
            reply
        })
    }
}

#[test]
fn a_record_is_read_again_before_it_is_said_to_be_wrong() {
    let house = House::new(1);
    let (world, disk) = (house.world.clone(), house.disk.clone());
    let noisy = Arc::new(Noisy { file: File::new(disk, world.clone()), spoils: AtomicU32::new(0) });
    let force = Settings { force: true, ..settings() };
    let (device, env, budget) = (noisy.clone(), world.clone(), house.budget.clone());
    let opened =
        run(
            &world,
            async move { Store::open(device, &force, env, &budget, &mut |_| Err(Kind::Corrupt)).await },
        );
    let house = House { store: opened.expect("it is taken by force").0, ..house };
    house.spill_pages(0..8, 0);
    noisy.spoils.store(1, Ordering::Relaxed);
    assert!(house.read(&[0, 1, 2]).iter().all(Result::is_ok), "a wrong read is no wrong record");
    assert_eq!(house.store.count(Count::Mismatches), 0);
    noisy.spoils.store(2, Ordering::Relaxed);
    assert_eq!(house.read(&[0]), [Err(Kind::Corrupt)]);
    assert_eq!(house.store.count(Count::Mismatches), 1);
    assert!(house.check(0).is_ok());
    house.verify();
}

fn flip(house: &House, file: &Arc<File>, bit: u64) {
    let (unit, at) = (bit / 8 / 4096 * 4096, (bit / 8 % 4096) as usize);
    let ask = |request| house.world.run(file.submit(request));
    let mut buf = ask(Request::read(unit, IoBuf::new(4096))).buf;
    buf[at] ^= 1 << (bit % 8);
    assert_eq!(ask(Request::write(unit, buf)).result, Ok(()));
}
