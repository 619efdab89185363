//! How long requests take: histograms by operation.
//!
//! A request is timed from its submission until who submitted it knows the answer. Between two layers every request is timed: there it takes
//! I/O, as a rule. Of the reads and writes of clients a [`Sampler`] has one in 64 timed, at random distances, so that no rhythm of a
//! client is in step with the sample; of their other requests, which are rare and long, each one. To read a clock twice for every small read
//! that memory answers would cost more than all other counting together.

use std::sync::Arc;
use std::time::Duration;

use crate::block_device::device::{Answer, Submission};
use crate::block_device::request::Op;
use crate::env::Env;
use crate::random::Random;
use crate::sync::{AtomicU64, Ordering};

/// Of so many reads and writes one is timed.
const SAMPLED: u64 = 64;

/// Buckets with an end. The first ends at [`FIRST_NANOS`], each other at twice the end of the one before: the last at 33.6 s.
const BUCKETS: usize = 28;

/// Where the first bucket ends, in nanoseconds.
const FIRST_NANOS: u64 = 250;

const OPERATIONS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

/// How long requests of one operation took, since the device is open.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationLatency {
    /// [`Op::name`].
    pub operation: &'static str,
    /// What those that were timed took together.
    pub seconds: f64,
    /// Of those that were timed, how many took at most 250 ns, of the others how many at most 500 ns, and so on to 33.6 s; the last
    /// number is of those that took longer.
    pub counts: Vec<u64>,
}

impl OperationLatency {
    /// Where each bucket ends, in seconds; the last has no end.
    pub fn ends() -> impl Iterator<Item = f64> {
        (0..BUCKETS).map(|bucket| (FIRST_NANOS << bucket) as f64 / 1e9).chain([f64::INFINITY])
    }
}

#[derive(Default)]
struct Histogram {
    counts: [AtomicU64; BUCKETS + 1],
    nanos: AtomicU64,
}

impl Histogram {
    fn add(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let firsts = nanos.div_ceil(FIRST_NANOS).max(1);
        let bucket = (u64::BITS - (firsts - 1).leading_zeros()) as usize;
        self.counts[bucket.min(BUCKETS)].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

/// Histograms of a device, or of what passes from one layer to the next.
pub struct Latencies {
    env: Arc<dyn Env>,
    of: [Histogram; OPERATIONS.len()],
    /// Draws a seed for each sampler.
    seeds: AtomicU64,
}

impl Latencies {
    /// Histograms by the clock of `env`.
    pub fn new(env: Arc<dyn Env>) -> Arc<Self> {
        Arc::new(Self { env, of: Default::default(), seeds: AtomicU64::new(0) })
    }

    /// Submits a request by `submit`, and times it. One that is withdrawn is not counted.
    pub fn timed(self: &Arc<Self>, op: Op, submit: impl FnOnce() -> Submission) -> Submission {
        let begun = self.env.now();
        match submit() {
            Answer::Done(reply) => {
                self.took(op, begun);
                Answer::Done(reply)
            }
            Answer::Pending(future) => {
                let latencies = self.clone();
                Answer::pending(async move {
                    let reply = future.await;
                    latencies.took(op, begun);
                    reply
                })
            }
        }
    }

    fn took(&self, op: Op, begun: Duration) {
        let index = OPERATIONS.iter().position(|other| *other == op).expect("each operation is listed");
        self.of[index].add(self.env.now().saturating_sub(begun));
    }

    /// What was timed, of each operation that was asked for.
    pub fn shown(&self) -> Vec<OperationLatency> {
        let all = OPERATIONS.iter().zip(&self.of);
        let shown = all.map(|(op, histogram)| OperationLatency {
            operation: op.name(),
            seconds: histogram.nanos.load(Ordering::Relaxed) as f64 / 1e9,
            counts: histogram.counts(),
        });
        shown.filter(|latency| latency.counts.iter().any(|&count| count > 0)).collect()
    }
}

fn is_frequent(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write)
}

/// Which requests of a session are timed.
#[derive(Default)]
pub struct Sampler {
    /// Reads and writes before the next that is timed.
    left: u64,
    /// Absent before the first.
    random: Option<Random>,
}

impl Sampler {
    /// Submits a request by `submit`, and times it if it is its turn.
    #[inline]
    pub fn submit(
        &mut self,
        latencies: Option<&Arc<Latencies>>,
        op: Op,
        submit: impl FnOnce() -> Submission,
    ) -> Submission {
        match latencies {
            Some(latencies) if !is_frequent(op) || self.is_due(latencies) => latencies.timed(op, submit),
            _ => submit(),
        }
    }

    #[inline]
    fn is_due(&mut self, latencies: &Latencies) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                false
            }
            None => self.draw(latencies),
        }
    }

    /// Draws the next distance, [`SAMPLED`] on average. A session begins somewhere between two.
    #[cold]
    fn draw(&mut self, latencies: &Latencies) -> bool {
        let begins = self.random.is_none();
        let seed = || Random(latencies.seeds.fetch_add(1, Ordering::Relaxed));
        self.left = self.random.get_or_insert_with(seed).below(2 * SAMPLED - 1);
        !begins || self.is_due(latencies)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::block_device::request::Reply;
    use crate::error::Kind;
    use crate::memory::buffer::IoBuf;
    use crate::sync::Mutex;
    use crate::test_clock::Clock;

    fn done(result: Result<(), Kind>) -> Submission {
        Answer::Done(Reply { result, buf: IoBuf::new(0) })
    }

    /// Takes so many nanoseconds by `clock`.
    fn taking(clock: &Clock, nanos: u64) -> impl FnOnce() -> Submission + '_ {
        move || {
            clock.pass(Duration::from_nanos(nanos));
            done(Ok(()))
        }
    }

    fn latencies() -> (Arc<Clock>, Arc<Latencies>) {
        let clock = Arc::new(Clock::default());
        (clock.clone(), Latencies::new(clock))
    }

    #[test]
    fn each_bucket_holds_what_took_at_most_its_end() {
        let (clock, latencies) = latencies();
        let mut sampler = Sampler::default();
        let times = [0, 1, 250, 251, 500, 501, 1000, 33_554_432_000, 33_554_432_001, 60_000_000_000_000];
        for nanos in times {
            drop(sampler.submit(Some(&latencies), Op::Flush, taking(&clock, nanos)));
        }
        let [flush] = &latencies.shown()[..] else { panic!("{:?}", latencies.shown()) };
        let sum: u64 = times.iter().sum();
        assert_eq!((flush.operation, flush.seconds), ("flush", sum as f64 / 1e9));
        let filled: Vec<_> = flush.counts.iter().enumerate().filter(|(_, count)| **count > 0).collect();
        assert_eq!(filled, [(0, &3), (1, &2), (2, &2), (27, &1), (28, &2)]);
        let ends: Vec<f64> = OperationLatency::ends().collect();
        assert_eq!((ends.len(), ends[0], ends[27]), (flush.counts.len(), 250e-9, 33.554432));
        for (bucket, &nanos) in [0, 1, 250, 251, 500, 501, 1000].iter().enumerate().skip(2) {
            let first = ends.iter().position(|&end| nanos as f64 / 1e9 <= end).unwrap();
            assert_eq!(first, [0, 0, 0, 1, 1, 2, 2][bucket], "{nanos} ns");
        }
    }

    #[test]
    fn of_reads_and_writes_one_in_64_is_timed_at_random_distances() {
        let (clock, latencies) = latencies();
        let mut timed = Vec::new();
        for _ in 0..100 {
            let mut sampler = Sampler::default();
            for request in 0..640 {
                let op = if request % 2 == 0 { Op::Read } else { Op::Write };
                let before: u64 = latencies.shown().iter().flat_map(|latency| latency.counts.clone()).sum();
                drop(sampler.submit(Some(&latencies), op, taking(&clock, 1)));
                let after: u64 = latencies.shown().iter().flat_map(|latency| latency.counts.clone()).sum();
                if after > before {
                    timed.push(request);
                }
            }
        }
        assert!((900..1100).contains(&timed.len()), "{} of 64000", timed.len());
        let firsts = timed.iter().filter(|&&request| request < 64).count();
        assert!((60..140).contains(&firsts), "{firsts} among the first 64 of 100 sessions");
        let in_step = |rest: u64| timed.iter().filter(|&&request| request % 16 == rest).count();
        assert!((0..16).all(|rest| (30..110).contains(&in_step(rest))), "a rhythm of 16 requests is in step");
    }

    #[test]
    fn an_answer_that_comes_later_is_timed_until_it_comes_and_one_that_is_given_up_is_not() {
        let (clock, latencies) = latencies();
        let mut sampler = Sampler::default();
        for completes in [true, false] {
            let sender = Arc::new(Mutex::new(None));
            let answer = sender.clone();
            let pending = Answer::pending(std::future::poll_fn(move |_| match answer.lock().take() {
                Some(reply) => Poll::Ready(reply),
                None => Poll::Pending,
            }));
            let submission = sampler.submit(Some(&latencies), Op::Discard, || pending);
            let Answer::Pending(mut future) = submission else { panic!("it is not known at once") };
            let mut context = Context::from_waker(Waker::noop());
            assert!(future.as_mut().poll(&mut context).is_pending());
            clock.pass(Duration::from_micros(3));
            if completes {
                *sender.lock() = Some(Reply { result: Err(Kind::Io), buf: IoBuf::new(0) });
                assert!(future.as_mut().poll(&mut context).is_ready());
            }
        }
        let [discard] = &latencies.shown()[..] else { panic!("{:?}", latencies.shown()) };
        assert_eq!((discard.seconds, discard.counts[4]), (3e-6, 1), "failed requests count too");
    }

    #[test]
    fn without_a_clock_requests_pass_through() {
        let mut sampler = Sampler::default();
        let answer = sampler.submit(None, Op::Flush, || done(Err(Kind::Io)));
        assert!(matches!(answer, Answer::Done(Reply { result: Err(Kind::Io), .. })));
    }
}
