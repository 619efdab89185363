//! The order of commits and clearing, and how many commits flushes take.

use super::clearing::Slow;
use super::*;

/// A flush after a discard waits until entries are clear. Clearing gets its turn although the next commit is always wanted already.
#[test]
fn commits_without_end_leave_time_to_clear() {
    const MOST: u64 = 2000;
    let house = House::new(1 << 20, 1 << 20);
    let disk = || Slow::new(&house.world, 16 << 20, 16 << 20, 5);
    let still = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let (cache, _) = house.open_over(&still, disk(), disk()).unwrap();
    house.write(&cache, 100, 1, 10);
    house.flush(&cache);
    let (done, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = |lane: u64| {
        let (cache, done, writes) = (cache.clone(), done.clone(), writes.clone());
        Answer::pending(async move {
            let seam = Seam::new(cache.clone());
            // The second one writes while the first one's commit is under way, and so on in turns.
            while lane == 1 && cache.core.journal.work.is_idle() {
                cache.core.env.sleep(Duration::from_micros(1)).await;
            }
            while !done.load(Ordering::Relaxed) && writes.fetch_add(1, Ordering::Relaxed) < MOST {
                let write = Request::write(lane * BLOCK as u64, IoBuf::new(BLOCK)).with_fua();
                assert_eq!(seam.submit(write).await.result, Ok(()));
            }
        })
    };
    let other = {
        let (cache, done, writes) = (cache.clone(), done.clone(), writes.clone());
        Answer::pending(async move {
            let seam = Seam::new(cache.clone());
            while writes.load(Ordering::Relaxed) < 50 {
                cache.core.env.sleep(Duration::from_micros(100)).await;
            }
            let discard = Request::bare(Op::Discard, ByteRange::new(100 * BLOCK as u64, 10 * BLOCK as u64));
            assert_eq!(seam.submit(discard).await.result, Ok(()));
            assert_eq!(seam.submit(Request::flush()).await.result, Ok(()));
            done.store(true, Ordering::Relaxed);
        })
    };
    house.world.run_all((0..2).map(writer).chain([other]).collect());
    let writes = writes.load(Ordering::Relaxed);
    assert!(writes < 200, "{writes} writes were committed while a flush waited");
}
