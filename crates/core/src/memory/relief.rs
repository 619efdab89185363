//! How a request waits that was refused memory: one protocol for all users of a [`Budget`].
//!
//! ```text
//!   a charge is refused -> each reclaimer of the budget that has refused it is asked for an attempt
//!        ^                      -> wait until memory comes free, or all attempts are made
//!        |                                              |
//!        '----------------- try again <-----------------'
//! ```
//!
//! A request gives up once a round of attempts has freed nothing, and no reclaimer has anything left to try. Where none has from the
//! beginning, it tries once more, for what they gave back at once.

use std::time::Duration;

use futures_util::future::{join_all, select};

use crate::env::Env;
use crate::memory::budget::Budget;
use crate::memory::reclaim::{Attempt, Reclaim};
use crate::mutant;

/// A request that has tried in vain leaves what comes free to others for so long: it may have been its own.
const PAUSE: Duration = Duration::from_millis(1);

/// What a request has done that was refused memory.
pub struct Relief<'a> {
    budget: &'a Budget,
    /// Refusals of the outermost budget before the first try, or after the last wait.
    refusals: u64,
    own: Round,
    outermost: Round,
}

impl<'a> Relief<'a> {
    /// Of a request that is about to try; it charges to `budget`, or to one that this is a share of.
    pub fn new(budget: &'a Budget) -> Self {
        let refusals = budget.outermost().reclaim.refusals();
        Self { budget, refusals, own: Round::default(), outermost: Round::default() }
    }

    /// A try has brought the request further: what is refused next is asked for anew.
    pub fn progress(&mut self) {
        (self.own, self.outermost) = Default::default();
    }

    /// Waits, after a try was refused, until another one is worth it; false where nothing can be freed.
    pub async fn wait(&mut self, env: &dyn Env) -> bool {
        let outermost = self.budget.outermost();
        let refusals = || outermost.reclaim.refusals();
        // A share's limit is relieved by its own users alone.
        let alone = refusals() == self.refusals || mutant::on("relief: ask the users of its own share alone");
        let waited = if alone {
            self.own.wait(&self.budget.reclaim, env).await
        } else {
            self.outermost.wait(&outermost.reclaim, env).await
        };
        self.refusals = refusals();
        waited
    }
}

/// A round of attempts.
#[derive(Default)]
struct Round {
    /// Those that are not made yet.
    attempts: Vec<Attempt>,
    /// What reclaimers had freed when the round began.
    reclaimed: Option<u64>,
}

impl Round {
    async fn wait(&mut self, reclaim: &Reclaim, env: &dyn Env) -> bool {
        let _waiting = reclaim.wait();
        self.attempts.retain(|attempt| !attempt.is_made());
        if self.attempts.is_empty() {
            let reclaimed = reclaim.reclaimed();
            let before = self.reclaimed.replace(reclaimed);
            self.attempts = reclaim.ask(before != Some(reclaimed));
            if self.attempts.is_empty() {
                // What was given back at once may be enough.
                return before.is_none() && !mutant::on("relief: what is given back at once is not tried");
            }
        } else if mutant::on("relief: refuse after the first memory that comes free") {
            return false;
        } else {
            select(env.sleep(PAUSE), Box::pin(self.made())).await;
        }
        select(reclaim.freed.take(1), Box::pin(self.made())).await;
        // What came free may be what this request took in vain and gave back: others have their turn first.
        env.sleep(Duration::ZERO).await;
        true
    }

    /// Waits until all attempts are made.
    async fn made(&self) {
        join_all(self.attempts.iter().map(Attempt::made)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::{Arc, Weak};
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::memory::reclaim::{Attempts, Reclaimer};
    use crate::sync::{AtomicU32, Ordering};
    use crate::test_clock::Clock;

    /// Makes an attempt, when it is told to, for who asks anew.
    #[derive(Default)]
    struct User {
        attempts: Arc<Attempts>,
        asked_anew: AtomicU32,
        asked_again: AtomicU32,
    }

    impl Reclaimer for User {
        fn reclaim(&self, anew: bool) -> Vec<Attempt> {
            let asked = if anew { &self.asked_anew } else { &self.asked_again };
            asked.fetch_add(1, Ordering::Relaxed);
            if anew { vec![self.attempts.ask()] } else { vec![] }
        }
    }

    impl User {
        fn of(budget: &Budget) -> Arc<Self> {
            let user = Arc::<Self>::default();
            budget.register(&(Arc::downgrade(&user) as Weak<dyn Reclaimer>));
            user
        }

        fn asked(&self) -> [u32; 2] {
            [&self.asked_anew, &self.asked_again].map(|asked| asked.load(Ordering::Relaxed))
        }
    }

    /// Polls it until its pauses are over.
    fn poll<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
        let mut context = Context::from_waker(Waker::noop());
        let mut polls = (0..3).map(|_| future.as_mut().poll(&mut context));
        polls.find(Poll::is_ready).unwrap_or(Poll::Pending)
    }

    #[test]
    fn who_is_refused_gives_up_after_a_round_that_freed_nothing_and_not_after_one_that_did() {
        let (whole, clock) = (Budget::new(100), Clock::default());
        let share = Budget::share(&whole, Budget::UNLIMITED);
        let (user, other) = (User::of(&share), User::of(&whole));
        let mut relief = Relief::new(&share);
        for reclaimed in [true, false] {
            assert!(share.charge(101).is_err());
            let mut wait = pin!(relief.wait(&clock));
            assert!(poll(wait.as_mut()).is_pending());
            user.attempts.serve_all();
            assert!(poll(wait.as_mut()).is_pending(), "the other one is at it");
            if reclaimed {
                Budget::share(&whole, 10).note_reclaimed();
            }
            other.attempts.serve_all();
            assert_eq!(poll(wait.as_mut()), Poll::Ready(true));
        }
        assert!(share.charge(101).is_err());
        assert_eq!(poll(pin!(relief.wait(&clock))), Poll::Ready(false));
        assert_eq!((user.asked(), other.asked()), ([2, 1], [2, 1]));
        assert!(!whole.is_waited_for());
    }

    #[test]
    fn the_limit_of_a_share_is_no_business_of_others() {
        let (whole, clock) = (Budget::new(100), Clock::default());
        let share = Budget::share(&whole, 10);
        let (user, other) = (User::of(&share), User::of(&whole));
        let mut relief = Relief::new(&share);
        assert!(share.charge(11).is_err());
        let mut wait = pin!(relief.wait(&clock));
        assert!(poll(wait.as_mut()).is_pending());
        assert!(share.is_waited_for() && !whole.is_waited_for());
        assert_eq!((user.asked(), other.asked()), ([1, 0], [0, 0]));
        user.attempts.end();
        assert_eq!(poll(wait.as_mut()), Poll::Ready(true), "who ends has no attempt to make");
    }

    #[test]
    fn memory_that_comes_free_is_waited_for_no_longer_than_that_and_wakes_one() {
        let (whole, clock) = (Budget::new(100), Clock::default());
        let shares = [Budget::share(&whole, 1000), Budget::share(&whole, 1000)];
        let _user = User::of(&whole);
        let mut reliefs = [Relief::new(&shares[0]), Relief::new(&shares[0])];
        assert!(shares[0].charge(101).is_err());
        let mut waits = reliefs.each_mut().map(|relief| Box::pin(relief.wait(&clock)));
        assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
        shares[1].wake_one();
        assert_eq!(waits.iter_mut().filter_map(|wait| ready(poll(wait.as_mut()))).count(), 1);
        shares[1].wake_one();
        assert!(waits[1..].iter_mut().all(|wait| poll(wait.as_mut()) == Poll::Ready(true)));
    }

    fn ready<T>(poll: Poll<T>) -> Option<T> {
        if let Poll::Ready(value) = poll { Some(value) } else { None }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use std::sync::{Arc, Weak};

    use shuttle::future::block_on;
    use shuttle::thread;

    use super::*;
    use crate::env::LocalFuture;
    use crate::models::{Tasks, every_order, finds};
    use crate::reclaim::{Attempts, Reclaimer};
    use crate::sync::{AtomicBool, Ordering};

    /// Holds a byte that it frees in its first attempt.
    struct User {
        budget: Arc<Budget>,
        attempts: Arc<Attempts>,
        ended: AtomicBool,
    }

    impl Reclaimer for User {
        fn reclaim(&self, anew: bool) -> Vec<Attempt> {
            if anew { vec![self.attempts.ask()] } else { vec![] }
        }
    }

    impl User {
        fn of(whole: &Arc<Budget>) -> Arc<Self> {
            let (budget, attempts) = (Budget::share(whole, Budget::UNLIMITED), Arc::default());
            budget.charge(1).expect("there is room");
            let user = Arc::new(Self { budget, attempts, ended: AtomicBool::new(false) });
            user.budget.register(&(Arc::downgrade(&user) as Weak<dyn Reclaimer>));
            user
        }

        fn make_attempts(&self) {
            let mut never: LocalFuture<()> = Box::pin(std::future::pending());
            while !self.ended.load(Ordering::SeqCst) {
                block_on(self.attempts.asked_or(&mut never));
                let asks = self.attempts.asked();
                if self.budget.used() > 0 {
                    self.budget.uncharge(1);
                    self.budget.note_reclaimed();
                    self.budget.wake_one();
                }
                self.attempts.serve(asks);
            }
        }
    }

    /// Two requests want a byte each, and two users have one each for others.
    fn requests() {
        let whole = Budget::new(2);
        let users = [(); 2].map(|()| User::of(&whole));
        let workers = users.each_ref().map(|user| {
            let user = user.clone();
            thread::spawn(move || user.make_attempts())
        });
        let requests = [(); 2].map(|()| {
            let share = Budget::share(&whole, Budget::UNLIMITED);
            thread::spawn(move || {
                let mut relief = Relief::new(&share);
                while share.charge(1).is_err() {
                    assert!(block_on(relief.wait(&Tasks)), "there is a byte for each");
                }
                drop(relief);
                share
            })
        });
        let shares = requests.map(|request| request.join().expect("it has its byte"));
        for user in &users {
            user.ended.store(true, Ordering::SeqCst);
            drop(user.attempts.ask());
        }
        workers.into_iter().for_each(|worker| worker.join().expect("it ends"));
        assert_eq!((whole.used(), shares.len()), (2, 2));
    }

    #[test]
    fn no_request_is_refused_or_waits_for_ever_where_something_can_be_freed() {
        every_order(2000, requests);
    }

    #[test]
    fn the_checker_finds_a_request_that_misses_the_end_of_an_attempt() {
        finds(
            "watermark: wait without looking again",
            no_request_is_refused_or_waits_for_ever_where_something_can_be_freed,
        );
    }
}
