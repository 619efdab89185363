//! What happens where memory ends and some can be freed soon.

use std::task::{Context, Poll, Wake, Waker};

use spillway_core::sync::Ordering;
use spillway_core::{LocalFuture, Place, Task};
use spillway_policy::compaction;

use super::*;

/// A device at its limit whose objects lie scattered: half of each span is free, and none of it serves a page of another size.
fn scattered(limit: &str) -> Bench {
    let bench = bench(sized(1 << 30));
    scatter(&bench, limit);
    bench
}

fn scatter(bench: &Bench, limit: &str) {
    let mut random = Random(11);
    bench.set("mem_limit", limit);
    let full = (0..).find(|&index| {
        let reply =
            bench.seam.submit(Request::write(index * PAGE as u64, IoBuf::copy_of(&page(&mut random, 45))));
        !matches!(reply, Answer::Done(reply) if reply.result == Ok(()))
    });
    let full = full.expect("memory ends");
    (0..full).filter(|index| index % 2 > 0).for_each(|index| discard_now(bench, index));
    bench.zram.core.pages.cool();
}

/// Discards without giving the compactor a turn.
fn discard_now(bench: &Bench, index: u64) {
    let range = ByteRange::new(index * PAGE as u64, PAGE as u64);
    let Answer::Done(reply) = bench.seam.submit(Request::bare(Op::Discard, range)) else {
        panic!("one page is discarded at once")
    };
    assert_eq!(reply.result, Ok(()));
}

const FAR: u64 = (512 << 20) / PAGE as u64;

/// Leaves room for nothing: neither a leaf nor a span.
fn fill_up(bench: &Bench) {
    let core = &bench.zram.core;
    core.budget.set_limit(core.budget.used());
}

#[test]
fn a_writer_goes_on_with_the_first_span_that_comes_free() {
    let bench = scattered("16M");
    fill_up(&bench);
    let noise = page(&mut Random(1), 100);
    assert_eq!(bench.write(FAR, &noise), Ok(()));
    let attempts = &bench.zram.core.compactor.attempts;
    assert!(attempts.asked() > 0 && attempts.is_asked(), "it did not wait for the whole pass");
    assert_eq!(bench.read(FAR, 1), noise);
}

#[test]
fn of_many_that_wait_each_goes_on_as_soon_as_there_is_memory_for_it() {
    let bench = scattered("16M");
    fill_up(&bench);
    let noise = page(&mut Random(1), 100);
    let writes = (0..300)
        .map(|index| bench.seam.submit(Request::write((FAR + index) * PAGE as u64, IoBuf::copy_of(&noise))));
    let replies = bench.world.run_all(writes.collect());
    assert!(replies.iter().all(|reply| reply.result == Ok(())));
    assert!(!bench.budget.is_waited_for() && !bench.zram.core.budget.is_waited_for());
}

#[test]
fn a_zeroing_that_needs_a_leaf_waits_as_a_write_does() {
    let bench = scattered("16M");
    fill_up(&bench);
    let mut request = Request::bare(Op::WriteZeroes, ByteRange::new(FAR * PAGE as u64, 16 << 20));
    request.flags.no_hole = true;
    assert_eq!(bench.run(bench.seam.submit(request)).result, Ok(()));
    assert_eq!(bench.number("failed_writes"), 0);
}

#[test]
fn a_large_write_shared_out_waits_for_what_its_assistants_found_no_memory_for() {
    let bench = scattered("16M");
    fill_up(&bench);
    bench.world.set_idle_workers(3);
    let mut random = Random(2);
    let content: Vec<u8> = (0..512).flat_map(|_| page(&mut random, 100)).collect();
    let write = Request::write(FAR * PAGE as u64, IoBuf::copy_of(&content));
    assert_eq!(bench.world.run(bench.seam.submit(write)).result, Ok(()));
    assert_eq!(bench.read(FAR, 512), content);
}

#[test]
fn where_nothing_more_can_be_freed_a_write_fails_after_one_pass() {
    let bench = scattered("16M");
    fill_up(&bench);
    let mut random = Random(2);
    let content: Vec<u8> = (0..4096).flat_map(|_| page(&mut random, 100)).collect();
    let write = Request::write(FAR * PAGE as u64, IoBuf::copy_of(&content));
    assert_eq!(bench.world.run(bench.seam.submit(write)).result, Err(Kind::NoSpace));
    let (object, taken) = (bench.number("compr_data_size"), bench.number("mem_used_total"));
    assert!((taken - object) * 1000 <= object * 50, "{taken} bytes were taken for {object} when it failed");
}

/// Writes pages of every length, so few that the spans of most classes are hardly used and nothing can be merged.
fn sparse_in_every_class(bench: &Bench, pages_each: u64) {
    let mut random = Random(12);
    for index in 0..88 * pages_each {
        bench.write(index, &page(&mut random, index as usize % 88)).unwrap();
    }
}

/// Writes pages that take a page each, at the limit, and reads them back.
fn write_noise(bench: &Bench, pages: u64) {
    bench.zram.core.pages.cool();
    fill_up(bench);
    let noise: Vec<_> = (0..pages).map(|seed| page(&mut Random(seed), 100)).collect();
    for (index, noise) in (0..).zip(&noise) {
        assert_eq!(bench.write(FAR + index, noise), Ok(()), "page {index}");
    }
    (0..).zip(&noise).for_each(|(index, noise)| assert!(bench.read(FAR + index, 1) == *noise));
}

#[test]
fn what_lies_in_the_last_span_of_each_class_makes_room_too() {
    let bench = bench(sized(1 << 30));
    sparse_in_every_class(&bench, 1);
    write_noise(&bench, 100);
}

#[test]
fn what_is_dead_in_packed_spans_makes_room_too() {
    let bench = bench(sized(1 << 30));
    sparse_in_every_class(&bench, 6);
    look(&bench, 10);
    assert!(bench.zram.core.pool.packed_spans() > 10, "most of it is packed");
    (0..6 * 88).filter(|index| index % 5 < 2).for_each(|index| discard_now(&bench, index));
    write_noise(&bench, 30);
}

#[test]
fn a_write_of_any_length_fails_only_once_the_pool_is_dense() {
    let (bench, mut random) = (bench(sized(1 << 30)), Random(14));
    bench.set("mem_limit", "8M");
    let mut fill = |first: u64| {
        let mut write = |index| {
            let share = 8 + random.below(75) as usize;
            bench.write(index, &page(&mut random, share))
        };
        (first..).take_while(|&index| write(index).is_ok()).count() as u64
    };
    let full = fill(0);
    let mut random = Random(15);
    (0..full).filter(|_| random.below(2) == 0).for_each(|index| discard_now(&bench, index));
    let more = fill(FAR);
    let (object, taken) = (bench.number("compr_data_size"), bench.number("mem_used_total"));
    assert!((taken - object) * 1000 <= object * 50, "{taken} bytes for {object} of {full} and {more} pages");
    bench.discard(0, 1 << 30);
    look(&bench, 10);
    assert_eq!((bench.number("mem_used_total"), bench.zram.core.pages.borrowed()), (0, 0));
}

/// Writes so many small pages of many lengths that packing them takes several turns and is hardly worth it.
fn loose_by_little(bench: &Bench) {
    let mut random = Random(12);
    for index in 0..900 {
        bench.write(index, &page(&mut random, 1 + index as usize % 30)).unwrap();
    }
}

/// Lets a pass that no writer asked for come as far as where it would no longer be begun: it has a span to spare and more to free.
fn stop_in_a_pass(bench: &Bench) {
    let core = &bench.zram.core;
    let rests = || compaction::next_compaction(core.pool_load(false)) == compaction::Compaction::Rest;
    for _ in 0..1000 {
        bench.world.step();
        core.pages.cool();
        if core.pool.has_spare() && rests() {
            return;
        }
        bench.world.advance(Duration::from_millis(1));
    }
    panic!("no pass went on below the limit at which it begins");
}

#[test]
fn a_writer_waits_for_what_a_pass_under_way_frees() {
    let bench = bench(sized(1 << 30));
    loose_by_little(&bench);
    stop_in_a_pass(&bench);
    fill_up(&bench);
    assert_eq!(bench.write(FAR, &page(&mut Random(1), 100)), Ok(()));
}

#[test]
fn a_pass_takes_no_room_from_writers_while_there_is_a_reserve() {
    let bench = bench(sized(1 << 30));
    loose_by_little(&bench);
    bench.zram.core.pages.cool();
    let before = bench.budget.used();
    bench.budget.reset_peak();
    look(&bench, 10);
    assert!(bench.zram.core.pool.packed_spans() > 0, "a pass was made");
    assert_eq!(bench.budget.peak(), before);
}

/// Asks for a pass, and again as soon as that has been made: in the very wake.
struct Insistent {
    zram: Arc<Zram>,
    asks_left: AtomicU64,
}

impl Wake for Insistent {
    fn wake(self: Arc<Self>) {
        if self.asks_left.fetch_sub(1, Ordering::Relaxed) > 1 {
            let attempt = self.zram.core.compactor.attempts.ask();
            let mut made = Box::pin(async move { attempt.made().await });
            let waker = Waker::from(self.clone());
            assert!(made.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            // Dropped, it would no longer be woken.
            std::mem::forget(made);
        }
    }
}

#[test]
fn others_have_their_turn_between_two_passes_that_are_asked_for() {
    let bench = bench(sized(1 << 20));
    bench.world.turn();
    Arc::new(Insistent { zram: bench.zram.clone(), asks_left: AtomicU64::new(50) }).wake();
    // Each pass that is made is followed by an ask.
    let asked = || bench.zram.core.compactor.attempts.asked();
    let mut before = asked();
    while before < 49 {
        assert!(bench.world.step(), "the pass that was asked for is not made");
        assert!(asked() <= before + 1, "{} passes in one poll", asked() - before);
        before = asked();
    }
}

#[test]
fn asks_are_not_taken_for_time_that_goes_by() {
    let bench = bench(sized(1 << 20));
    let mut random = Random(1);
    (0..10).for_each(|index| bench.write(index, &page(&mut random, 100)).unwrap());
    (0..10).for_each(|index| discard_now(&bench, index));
    let warm = bench.number("mem_used_total");
    assert!(warm > 0);
    for _ in 0..10 {
        bench.zram.core.compactor.attempts.ask();
        (0..10).for_each(|_| _ = bench.world.turn());
        assert!(!bench.zram.core.compactor.is_asked());
    }
    assert_eq!(bench.number("mem_used_total"), warm, "it was found to be at rest at once");
    look(&bench, 5);
    assert_eq!(bench.number("mem_used_total"), 0);
}

/// A world that allows so many tries to store pages in one poll: each asks for the time once.
struct Watched {
    world: Arc<World>,
    tries_left: AtomicU64,
}

impl Watched {
    /// One try is made when the request is submitted, another when its task takes over.
    fn begin_poll(&self) {
        self.tries_left.store(2, Ordering::Relaxed);
    }
}

impl Env for Watched {
    fn now(&self) -> Duration {
        self.world.now()
    }

    fn coarse_now(&self) -> Duration {
        let left = self.tries_left.fetch_sub(1, Ordering::Relaxed);
        assert!(left > 0, "a writer that was refused tried again and again in one poll");
        self.world.coarse_now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        self.world.sleep(duration)
    }

    fn spawn(&self, place: Place, task: Task) {
        self.world.spawn(place, task);
    }

    fn spawn_here(&self, task: LocalFuture<()>) {
        self.world.spawn_here(task);
    }

    fn random(&self) -> u64 {
        self.world.random()
    }
}

/// A write that finds room for its object and none for the leaf of its slot gives the span back: what came free is its own.
#[test]
fn a_writer_that_was_refused_tries_once_a_poll_whatever_there_was_room_for() {
    for pages in 0..10 {
        let world = World::new(1);
        let env = Arc::new(Watched { world: world.clone(), tries_left: AtomicU64::new(u64::MAX) });
        let bench = bench_in(env.clone(), world, sized(1 << 30));
        scatter(&bench, "2M");
        let core = &bench.zram.core;
        core.budget.set_limit(core.budget.used() + pages * PAGE as u64 + 512);
        let noise = page(&mut Random(1), 100);
        env.begin_poll();
        let request = Request::write(FAR * PAGE as u64, IoBuf::copy_of(&noise));
        let mut write = std::pin::pin!(bench.seam.submit(request));
        let mut polls = 0;
        let reply = loop {
            match write.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(reply) => break reply,
                Poll::Pending => bench.world.turn(),
            };
            env.begin_poll();
            polls += 1;
            assert!(polls < 1000, "no answer with room for {pages} pages");
        };
        assert_eq!(reply.result, Ok(()), "with room for {pages} pages");
    }
}
