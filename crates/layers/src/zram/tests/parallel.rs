//! Requests and passes that several threads work on.

use spillway_core::{Answer, work};

use super::*;
use crate::zram::mover::slices::Caller;

/// A world of threads, with workers that have nothing to do: assistants run on threads of their own.
pub(in crate::zram) struct Idle(Arc<World>);

impl Idle {
    pub(in crate::zram) fn new() -> Self {
        Self(World::new(1))
    }
}

/// Pending once, and woken at once.
fn yield_once() -> spillway_core::LocalFuture<()> {
    let mut yielded = false;
    Box::pin(std::future::poll_fn(move |context| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    }))
}

impl Env for Idle {
    fn now(&self) -> Duration {
        self.0.now()
    }

    /// The clock of these threads stands: sleeping is looking again at once.
    fn sleep(&self, _duration: Duration) -> spillway_core::LocalFuture<()> {
        yield_once()
    }

    fn spawn(&self, place: spillway_core::Place, task: spillway_core::Task) {
        match place {
            spillway_core::Place::Assist => drop(std::thread::spawn(move || block_on(task()))),
            spillway_core::Place::Background | spillway_core::Place::Compute => self.0.spawn(place, task),
        }
    }

    fn spawn_here(&self, task: spillway_core::LocalFuture<()>) {
        self.0.spawn_here(task);
    }

    fn idle_workers(&self) -> usize {
        3
    }

    fn random(&self) -> u64 {
        self.0.random()
    }
}

#[test]
fn compaction_moves_objects_under_readers_and_writers() {
    let (budget, regions) = (Budget::new(64 << 20), Arc::new(VecRegions::new(128 << 20)));
    let zram = Zram::new(sized(16 << 20), Arc::new(Idle::new()), regions, budget).unwrap();
    let (core, seam) = (zram.core.clone(), Seam::new(zram.clone()));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3u64)
            .map(|lane| {
                let seam = seam.clone();
                scope.spawn(move || {
                    let mut random = Random(lane);
                    let mut versions = vec![0u64; 1000];
                    for _ in 0..20_000 {
                        let slot = random.below(1000);
                        let offset = (slot * 3 + lane) * PAGE as u64;
                        if random.below(3) > 0 {
                            versions[slot as usize] = random.draw();
                            let mut content = Random(versions[slot as usize]);
                            let share = content.below(100) as usize;
                            let buf = IoBuf::copy_of(&page(&mut content, share));
                            assert_eq!(block_on(seam.submit(Request::write(offset, buf))).result, Ok(()));
                        } else if versions[slot as usize] != 0 {
                            let mut content = Random(versions[slot as usize]);
                            let share = content.below(100) as usize;
                            let reply = block_on(seam.submit(Request::read(offset, IoBuf::new(PAGE))));
                            assert_eq!(reply.result, Ok(()));
                            assert_eq!(&reply.buf[..], &page(&mut content, share)[..]);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while workers.iter().any(|worker| !worker.is_finished()) {
                block_on(core.make_pass(Compaction::Pack, Caller::Requests));
            }
        });
    });
    zram.verify();
    block_on(zram.core.reset()).unwrap();
    assert_eq!(attributes(zram.clone()).show("mem_used_total").unwrap(), "0");
    zram.verify();
}

#[test]
fn a_large_write_shared_out_lands_whole_and_a_withdrawn_one_never_late() {
    let (regions, budget) = (Arc::new(VecRegions::new(128 << 20)), Budget::new(64 << 20));
    let config = Config { max_comp_streams: 4, ..sized(4 << 20) };
    let zram = Zram::new(config, Arc::new(Idle::new()), regions, budget).unwrap();
    let (seam, mut random) = (Seam::new(zram), Random(9));
    for round in 0..60 {
        let pages = 16 + random.below(240) as usize;
        let content: Vec<u8> = (0..pages).flat_map(|_| page(&mut random, 60)).collect();
        let submission = seam.submit(Request::write(0, IoBuf::copy_of(&content)));
        if round % 3 == 0 {
            let mut submission = Box::pin(submission);
            let _ = submission.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            drop(submission);
        } else {
            let reply = block_on(submission);
            assert_eq!((reply.result, reply.buf[..] == content), (Ok(()), true));
        }
        let after: Vec<u8> = (0..8).flat_map(|_| page(&mut random, 30)).collect();
        assert_eq!(
            block_on(seam.submit(Request::write(8 * PAGE as u64, IoBuf::copy_of(&after)))).result,
            Ok(())
        );
        // Read page by page: longer reads yield, and this world takes no turns.
        let page_at =
            |index: usize| block_on(seam.submit(Request::read((index * PAGE) as u64, IoBuf::new(PAGE)))).buf;
        let read: Vec<u8> = (0..pages).flat_map(|index| page_at(index).to_vec()).collect();
        assert_eq!(&read[8 * PAGE..16 * PAGE], &after[..], "round {round}");
        if round % 3 != 0 {
            assert_eq!(
                (&read[..8 * PAGE], &read[16 * PAGE..]),
                (&content[..8 * PAGE], &content[16 * PAGE..])
            );
        }
    }
}

/// A second large read in a turn is made by another thread, unless it is withdrawn before.
#[test]
fn a_large_read_is_lent_to_a_worker_with_nothing_to_do() {
    let (regions, budget) = (Arc::new(VecRegions::new(128 << 20)), Budget::new(64 << 20));
    let config = Config { comp_algorithm: "zstd", ..sized(4 << 20) };
    let zram = Zram::new(config, Arc::new(Idle::new()), regions, budget).unwrap();
    let (seam, mut random) = (Seam::new(zram.clone()), Random(9));
    let content: Vec<u8> = (0..1024).flat_map(|_| page(&mut random, 60)).collect();
    assert_eq!(block_on(seam.submit(Request::write(0, IoBuf::copy_of(&content)))).result, Ok(()));
    for round in 0..200 {
        let _turn = work::turn(work::TURN);
        let pages = 16 + random.below(100) as usize;
        let (offset, len) = (random.below(900) as usize * PAGE, pages * PAGE);
        let first = seam.submit(Request::read(offset as u64, IoBuf::new(16 * PAGE)));
        assert!(matches!(first, Answer::Done(_)), "a worker that has done nothing yet reads by itself");
        work::spend_bytes(16 * PAGE, work::BYTES_STORED);
        let mut second = seam.submit(Request::read(offset as u64, IoBuf::new(len)));
        assert!(matches!(second, Answer::Pending(_)));
        if round % 3 == 0 {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let _ = std::pin::Pin::new(&mut second).poll(&mut context);
            drop(second);
        } else {
            assert!(block_on(second).buf[..] == content[offset..offset + len]);
        }
    }
    block_on(zram.core.reset()).unwrap();
    zram.verify();
}

#[test]
fn a_large_write_shared_out_fails_as_a_whole_where_memory_ends() {
    let (regions, budget) = (Arc::new(VecRegions::new(128 << 20)), Budget::new(1 << 20));
    let config = Config { max_comp_streams: 4, ..sized(4 << 20) };
    let zram = Zram::new(config, Arc::new(Idle::new()), regions, budget.clone()).unwrap();
    let (seam, mut random) = (Seam::new(zram.clone()), Random(9));
    let content: Vec<u8> = (0..512).flat_map(|_| page(&mut random, 100)).collect();
    let reply = block_on(seam.submit(Request::write(0, IoBuf::copy_of(&content))));
    assert_eq!((reply.result, reply.buf.len()), (Err(Kind::NoSpace), content.len()));
    assert_eq!(attributes(zram).show("failed_writes").unwrap(), "1");
    assert!(budget.used() <= 1 << 20);
    let read = block_on(seam.submit(Request::read(0, IoBuf::new(64 * PAGE)))).buf;
    let pages = read.chunks(PAGE).zip(content.chunks(PAGE));
    assert!(
        pages.clone().all(|(read, written)| read == written || read == [0; PAGE]),
        "whole pages or nothing"
    );
}

/// The writer pauses for all of it where memory is short.
#[test]
pub(in crate::zram) fn what_assistants_store_counts_as_the_writers() {
    let bench = bench(Config { max_comp_streams: 4, ..sized(4 << 20) });
    bench.world.set_idle_workers(3);
    let content: Vec<u8> = (0..256).flat_map(|number| page(&mut Random(number), 100)).collect();
    let (pressure, more) = (&bench.zram.core.pressure, PAGE as u64);
    pressure.looked(0, content.len() as u64 + more);
    let write = Request::write(0, IoBuf::copy_of(&content));
    assert_eq!(bench.world.run(bench.seam.submit(write)).result, Ok(()));
    assert!(
        !pressure.grew(more - 1, 0) && pressure.grew(1, 0),
        "the next look is due after {more} bytes more"
    );
}
