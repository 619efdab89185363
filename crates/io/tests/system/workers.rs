//! The threads: tasks, wakes between them, time, and what a panic does.

use std::cell::Cell;
use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::toy::{BOTH, until};
use spillway_core::sync::Mutex;
use spillway_core::{Env, Place, task};
use spillway_io::{DriverChoice, Local, Workers, WorkersOptions, block_on};

fn thread_name() -> String {
    std::thread::current().name().unwrap_or_default().to_string()
}

#[test]
fn tasks_run_where_they_are_sent() {
    let workers = crate::toy::workers(2, DriverChoice::Auto);
    let (sender, names) = mpsc::channel();
    for index in [0, 1] {
        let sender = sender.clone();
        let task = task(move || async move { sender.send(thread_name()).unwrap() });
        workers.run_on(index, task);
        assert_eq!(names.recv().unwrap(), format!("spillway-{index}"));
    }
    let env = workers.env();
    for (place, name) in [(Place::Background, "spillway-bg"), (Place::Compute, "spillway-cpu")] {
        let sender = sender.clone();
        let task = task(move || async move { sender.send(thread_name()).unwrap() });
        env.spawn(place, task);
        assert_eq!(names.recv().unwrap(), name);
    }
    workers.stop();
}

/// Tasks go to the threads of their post in turn, so that all of these run at the same time, and no thread serves two posts.
#[test]
fn posts_have_threads_of_their_own() {
    let options = WorkersOptions { count: 1, background: 2, compute: 3, ..WorkersOptions::default() };
    let workers = Workers::start(options).unwrap();
    let (hold, threads) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(HashSet::new())));
    for place in [Place::Background, Place::Compute, Place::Background, Place::Compute, Place::Compute] {
        let (hold, threads) = (hold.clone(), threads.clone());
        let task = task(move || async move {
            threads.lock().insert(std::thread::current().id());
            while hold.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        workers.env().spawn(place, task);
    }
    until("five threads at the same time", || threads.lock().len() == 5);
    hold.store(false, Ordering::Relaxed);
    workers.stop();
}

/// Counts how often each of two tasks of the compute thread has its turn until the first had it so many times: the first one is not
/// hurried, the second one is.
fn turns(workers: &Workers, first_turns: usize) -> usize {
    let (done, second_turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (sender, ended) = mpsc::channel();
    for hurried in [false, true] {
        let (env, done, turns, sender) = (workers.env(), done.clone(), second_turns.clone(), sender.clone());
        let task = task(move || async move {
            while hurried && !done.load(Ordering::Relaxed) {
                turns.fetch_add(1, Ordering::Relaxed);
                env.give_way(true).await;
            }
            for _ in 0..if hurried { 0 } else { first_turns } {
                env.give_way(false).await;
            }
            done.store(true, Ordering::Relaxed);
            sender.send(()).unwrap();
        });
        workers.env().spawn(Place::Compute, task);
    }
    (0..2).for_each(|_| ended.recv().unwrap());
    second_turns.load(Ordering::Relaxed)
}

#[test]
fn computing_stands_back_while_all_workers_are_busy_unless_it_is_hurried() {
    const TURNS: usize = 20;
    let options = WorkersOptions { count: 1, background: 1, compute: 1, ..WorkersOptions::default() };
    let workers = Workers::start(options).unwrap();
    let env = workers.env();
    until("an idle worker", || env.idle_workers() == 1);
    let side_by_side = turns(&workers, TURNS);
    assert!(side_by_side <= 4 * TURNS, "{side_by_side} turns of the other task");
    let release = Arc::new(AtomicBool::new(false));
    let gate = release.clone();
    let busy = task(move || async move {
        while !gate.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    });
    workers.run_on(0, busy);
    until("no idle worker", || env.idle_workers() == 0);
    let beside_a_rest = turns(&workers, TURNS);
    release.store(true, Ordering::Relaxed);
    assert!(beside_a_rest > 10 * TURNS, "{beside_a_rest} turns of the other task");
    workers.stop();
}

#[test]
fn a_worker_ends_with_the_last_task_that_it_has_to_finish() {
    let workers = crate::toy::workers(1, DriverChoice::Auto);
    let (sender, events) = mpsc::channel();
    let env = workers.env();
    let task = task(move || async move {
        let (clock, finished) = (env.clone(), sender.clone());
        env.spawn_here(Box::pin(async move {
            // Many short sleeps: the worker has learned by then that yielding before it sleeps is in vain.
            for _ in 0..40 {
                clock.sleep(Duration::from_millis(1)).await;
            }
            finished.send("finished").unwrap();
        }));
        sender.send("begun").unwrap();
    });
    workers.run_on(0, task);
    assert_eq!(events.recv().unwrap(), "begun");
    let (stopped, end) = mpsc::channel();
    std::thread::spawn(move || {
        workers.stop();
        stopped.send(()).unwrap();
    });
    assert_eq!(events.recv().unwrap(), "finished");
    end.recv_timeout(Duration::from_secs(60)).expect("the worker ends");
}

#[test]
fn assistance_comes_from_another_worker() {
    let workers = crate::toy::workers(2, DriverChoice::Auto);
    let (sender, names) = mpsc::channel();
    for index in [0, 1, 0, 1] {
        let (env, sender) = (workers.env(), sender.clone());
        workers.run_on(
            index,
            task(move || async move {
                let reply = sender.clone();
                env.spawn(Place::Assist, task(move || async move { reply.send(thread_name()).unwrap() }));
            }),
        );
        assert_eq!(names.recv().unwrap(), format!("spillway-{}", 1 - index));
    }
    workers.stop();
}

#[test]
fn workers_without_work_are_idle() {
    let workers = crate::toy::workers(3, DriverChoice::Auto);
    let env = workers.env();
    until("idle workers", || env.idle_workers() == 3);
    let release = Arc::new(AtomicBool::new(false));
    let gate = release.clone();
    workers.run_on(
        1,
        task(move || async move {
            while !gate.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        }),
    );
    until("one busy worker", || env.idle_workers() == 2);
    release.store(true, Ordering::Relaxed);
    until("idle workers", || env.idle_workers() == 3);
    workers.stop();
}

#[test]
fn time_passes_and_sleep_zero_lets_others_run() {
    let workers = crate::toy::workers(1, DriverChoice::Auto);
    let env = workers.env();
    let before = env.coarse_now();
    until("the coarse clock to move", || env.coarse_now() > before);
    assert!(env.coarse_now() <= env.now());
    let (sender, done) = mpsc::channel();
    let inside = env.clone();
    workers.run_on(
        0,
        task(move || async move {
            let start = inside.now();
            inside.sleep(Duration::from_millis(20)).await;
            assert!(inside.now() - start >= Duration::from_millis(20));
            yields(&inside).await;
            sender.send(()).unwrap();
        }),
    );
    done.recv().unwrap();
    workers.stop();
}

/// Two tasks of one thread that each wait for the other by `sleep(0)` only.
async fn yields(env: &Arc<dyn Env>) {
    let turn = Cell::new(0);
    let player = |me: usize| {
        let turn = &turn;
        async move {
            for round in 0..100 {
                while turn.get() != 2 * round + me {
                    env.sleep(Duration::ZERO).await;
                }
                turn.set(turn.get() + 1);
            }
        }
    };
    let (mut left, mut right) = (Box::pin(player(0)), Box::pin(player(1)));
    poll_fn(|context| {
        let both = [left.as_mut().poll(context).is_ready(), turn.get() >= 199];
        if turn.get() < 200 {
            let _ = right.as_mut().poll(context);
        }
        if both == [true, true] && turn.get() == 200 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A task that waits until it has been told to go `rounds` times.
struct Follower {
    told: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

impl Follower {
    fn tell(&self) {
        self.told.fetch_add(1, Ordering::SeqCst);
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }

    async fn follow(self: Arc<Self>, rounds: usize) {
        poll_fn(|context| {
            *self.waker.lock() = Some(context.waker().clone());
            if self.told.load(Ordering::SeqCst) >= rounds { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// On each worker one task wakes thousands of the other worker's tasks in a single poll, both at the same time. A wake queue
/// that fills up makes both spin, and neither empties its own.
#[test]
fn two_workers_that_wake_each_other_massively_do_not_deadlock() {
    const FOLLOWERS: usize = 8000;
    const ROUNDS: usize = 20;
    for driver in BOTH {
        let workers = crate::toy::workers(2, driver);
        let finished = Arc::new(AtomicUsize::new(0));
        let followers: [Arc<Vec<Arc<Follower>>>; 2] = [0, 1].map(|side| {
            let new = || Arc::new(Follower { told: AtomicUsize::new(0), waker: Mutex::new(None) });
            let all: Vec<_> = (0..FOLLOWERS).map(|_| new()).collect();
            for follower in all.iter().cloned() {
                let finished = finished.clone();
                let task = task(move || async move {
                    follower.follow(ROUNDS).await;
                    finished.fetch_add(1, Ordering::SeqCst);
                });
                workers.run_on(side, task);
            }
            Arc::new(all)
        });
        let asleep = |one: &Arc<Follower>| one.waker.lock().is_some();
        until("followers", || followers.iter().all(|side| side.iter().all(asleep)));
        let env = workers.env();
        for side in [0, 1] {
            let (others, env) = (followers[1 - side].clone(), env.clone());
            let task = task(move || async move {
                for _ in 0..ROUNDS {
                    others.iter().for_each(|follower| follower.tell());
                    env.sleep(Duration::ZERO).await;
                }
            });
            workers.run_on(side, task);
        }
        until("all followers", || finished.load(Ordering::SeqCst) == 2 * FOLLOWERS);
        workers.stop();
    }
}

/// Who runs goes on having turns while thousands arrive at once.
#[test]
fn a_flood_of_new_tasks_waits_its_turn() {
    const FLOOD: usize = 4000;
    for driver in BOTH {
        let workers = crate::toy::workers(1, driver);
        let log = Arc::new(Mutex::new(Vec::new()));
        let (ready, is_ready) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (env, turns) = (workers.env(), log.clone());
        let resident = task(move || async move {
            ready.send(()).unwrap();
            released.recv().unwrap();
            while turns.lock().iter().filter(|new| **new).count() < FLOOD {
                turns.lock().push(false);
                env.sleep(Duration::ZERO).await;
            }
        });
        workers.run_on(0, resident);
        is_ready.recv().unwrap();
        for _ in 0..FLOOD {
            let log = log.clone();
            workers.run_on(0, task(move || async move { log.lock().push(true) }));
        }
        release.send(()).unwrap();
        until("the flood", || log.lock().iter().filter(|new| **new).count() == FLOOD);
        let log = log.lock().clone();
        let longest = log.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len).max().unwrap();
        assert!(longest <= 128, "{longest} new tasks in a row");
        workers.stop();
    }
}

#[test]
fn stop_drops_what_still_runs_on_its_own_thread() {
    struct Token(mpsc::Sender<String>);
    impl Drop for Token {
        fn drop(&mut self) {
            self.0.send(thread_name()).unwrap();
        }
    }
    for driver in BOTH {
        let workers = crate::toy::workers(1, driver);
        let (sender, dropped) = mpsc::channel();
        let (ready, began) = mpsc::channel();
        workers.run_on(
            0,
            task(move || async move {
                let _token = Token(sender);
                ready.send(()).unwrap();
                std::future::pending::<()>().await;
            }),
        );
        began.recv().unwrap();
        workers.stop();
        assert_eq!(dropped.try_recv().unwrap(), "spillway-0");
    }
}

#[test]
fn block_on_has_timers_and_keeps_its_runtime() {
    let slept = block_on(async {
        let workers = crate::toy::workers(1, DriverChoice::Auto);
        let env = workers.env();
        env.sleep(Duration::from_millis(1)).await;
        env.sleep(Duration::ZERO).await;
        env.now() > Duration::ZERO
    });
    assert!(slept);
    assert_eq!(Local::new(DriverChoice::Poll).unwrap().block_on(async { 7 }), 7);
}

/// The test below runs this one alone in a process of its own.
#[test]
#[ignore = "ends its process"]
fn panics_on_a_worker() {
    let workers = crate::toy::workers(1, DriverChoice::Auto);
    workers.run_on(0, task(|| async { panic!("on purpose") }));
    loop {
        std::thread::park();
    }
}

#[test]
fn a_panic_on_a_worker_ends_the_process() {
    let this = std::env::current_exe().unwrap();
    let output = std::process::Command::new(this)
        .args(["--ignored", "--exact", "workers::panics_on_a_worker", "--nocapture"])
        .output()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(6), "SIGABRT");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("on purpose") && words.contains("thread spillway-0; aborting"), "{words}");
}
