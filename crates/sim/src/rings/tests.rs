//! Queues run until they are asked to end, and no kick and no interrupt is lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use spillway_core::shared_memory::{ConversationHost, EventOf, Queue, SharedMemory};
use spillway_core::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use spillway_core::{Env, LocalFuture, Phase};

use super::{MachineMemory, Rings};
use crate::pace::Pace;
use crate::world::World;

/// Places of a queue that counts: how many requests there are, and how many were answered.
const ADDED: u64 = 0;
const ANSWERED: u64 = 2;

/// What a queue is asked, from outside.
#[derive(Default)]
struct Shared {
    /// Answers that are held back.
    held: AtomicU64,
    waker: Mutex<Option<Waker>>,
    gone: AtomicBool,
}

impl Shared {
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

/// Takes a request in each round, and answers those that are not held back.
struct Counting {
    memory: Arc<MachineMemory>,
    shared: Arc<Shared>,
    taken: u16,
    said: u16,
    stopped: bool,
}

impl Queue for Counting {
    fn poll(&mut self, context: &mut Context<'_>) {
        *self.shared.waker.lock() = Some(context.waker().clone());
        if !self.stopped && self.taken < self.memory.load(ADDED) {
            self.taken += 1;
        }
        let held = self.shared.held.load(Ordering::Relaxed) as u16;
        self.memory.store(ANSWERED, self.taken.saturating_sub(held));
    }

    fn interrupts(&mut self) -> bool {
        let answered = self.memory.load(ANSWERED);
        std::mem::replace(&mut self.said, answered) != answered
    }

    fn arm(&mut self) -> bool {
        self.stopped || self.taken == self.memory.load(ADDED)
    }

    fn stop(&mut self) {
        self.stopped = true;
    }

    fn pending(&self) -> usize {
        usize::from(self.taken - self.memory.load(ANSWERED))
    }

    fn broken(&mut self) -> Option<&'static str> {
        None
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.shared.gone.store(true, Ordering::Relaxed);
    }
}

/// A host with one queue, and what that shares.
fn start(world: &Arc<World>, seed: u64) -> (Rings, Arc<MachineMemory>, Arc<Shared>) {
    let mut rings = Rings::new(world, Pace { turn: 17, delay: Duration::from_millis(1) }, seed);
    let (memory, shared) = (MachineMemory::new(4), Arc::<Shared>::default());
    let descriptor = rings.hand_over(&memory);
    assert_eq!(rings.map(descriptor, 0, 4).unwrap().len(), 4);
    rings.set_event(0, EventOf::Kick, None).unwrap();
    let (seen, told) = (memory.clone(), shared.clone());
    let queue = move || Counting { memory: seen, shared: told, taken: 0, said: 0, stopped: false };
    rings.start(0, Box::new(move || Box::new(queue())));
    (rings, memory, shared)
}

/// Runs `task` to its end.
fn run(world: &Arc<World>, task: LocalFuture<()>) {
    let done = Rc::<Cell<bool>>::default();
    let seen = done.clone();
    world.spawn_here(Box::pin(async move {
        task.await;
        seen.set(true);
    }));
    world.run_until(|| done.get());
}

#[test]
fn a_queue_hears_every_kick_and_its_machine_every_answer() {
    for seed in 0..100 {
        let world = World::new(seed);
        let (mut rings, memory, shared) = start(&world, seed);
        let interrupts = rings.interrupts(0);
        let rings = Rc::new(RefCell::new(rings));
        let (machine, kicks) = (memory.clone(), rings.clone());
        run(
            &world,
            Box::pin(async move {
                for number in 1..=40 {
                    machine.store(ADDED, number);
                    kicks.borrow().kick(0);
                    while number % 3 == 0 && machine.load(ANSWERED) < number {
                        interrupts.told().await;
                    }
                }
            }),
        );
        let ended = rings.borrow_mut().end(Phase::Draining);
        run(&world, ended);
        assert!(shared.is_gone() && memory.load(ANSWERED) >= 39);
    }
}

#[test]
fn a_queue_ends_in_order_once_it_has_answered_and_else_at_once() {
    let (world, order) = (World::new(1), [Phase::Draining, Phase::Aborting]);
    for phase in order {
        let (mut rings, memory, shared) = start(&world, 1);
        shared.held.store(1, Ordering::Relaxed);
        memory.store(ADDED, 3);
        rings.kick(0);
        world.run_until(|| memory.load(ANSWERED) == 2);
        let ended = rings.end(phase);
        if phase == Phase::Draining {
            (0..1000).for_each(|_| _ = world.step());
            assert!(!shared.is_gone(), "one request is not answered");
            shared.held.store(0, Ordering::Relaxed);
            shared.waker.lock().take().unwrap().wake();
        }
        run(&world, ended);
        assert_eq!(
            (shared.is_gone(), memory.load(ANSWERED)),
            (true, if phase == Phase::Draining { 3 } else { 2 })
        );
    }
}
