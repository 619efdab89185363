//! The order of commits and clearing, and how many commits flushes take.

use super::clearing::Slow;
use super::*;

fn commits(cache: &Arc<WriteCache>) -> u64 {
    number(cache, "commits")
}

/// Without shared commits a flush commits by itself, unless a commit that began after what it covers has ended.
#[test]
fn a_flush_alone_skips_the_commit_that_another_has_made() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house
        .open(&Config {
            ablation: Ablation { lone_commits: true, ..Ablation::default() },
            autocommit_time: 3_600_000,
            ..config()
        })
        .unwrap();
    let flush = || Seam::new(cache.clone()).submit(Request::flush());
    (0..8).for_each(|block| house.write(&cache, block, 1, 1));
    let replies = house.world.run_all((0..8).map(|_| flush()).collect());
    assert!(replies.iter().all(|reply| reply.result == Ok(())));
    assert_eq!(commits(&cache), 1, "the first flush covers all");
    (1..4).for_each(|nth| {
        house.write(&cache, nth, 2, 1);
        house.flush(&cache);
        house.flush(&cache);
        assert_eq!(commits(&cache), 1 + nth, "what is new takes a commit");
    });
    // A write while another's commit is under way is not covered by it.
    let client = |lane: u64| {
        let seam = Seam::new(cache.clone());
        Answer::pending(async move {
            for nth in 0..20 {
                let mut buf = IoBuf::new(BLOCK);
                buf.fill(nth);
                assert_eq!(seam.submit(Request::write(lane * BLOCK as u64, buf)).await.result, Ok(()));
                assert_eq!(seam.submit(Request::flush()).await.result, Ok(()));
            }
        })
    };
    house.world.run_all((0..3).map(client).collect());
    let house = house.again();
    let cache = house.open(&config()).unwrap();
    (0..3).for_each(|lane| assert_eq!(house.read(cache.clone(), lane * BLOCK as u64, BLOCK), [19; BLOCK]));
}

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
