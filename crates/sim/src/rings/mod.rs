//! What lies between a virtual machine and a [`Conversation`](spillway_core::shared_memory::Conversation): memory that both share, events,
//! and a host that runs queues as `io::vhost` does.
//!
//! Memory outlives the host, as that of a machine does whose device is served anew. A descriptor stands for the memory that was handed over
//! with it, in order.

mod event;
mod task;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use spillway_core::shared_memory::{ConversationHost, EventOf, NewQueue, SharedMemory};
use spillway_core::sync::Mutex;
use spillway_core::{Error, Job, LocalFuture, Phase, Shutdown};

use crate::pace::{Chance, Pace, Tempo};
use crate::world::World;
use task::QueueTask;

pub use event::EventDescriptor;

/// Memory of a machine.
pub struct MachineMemory(Mutex<Vec<u8>>);

impl MachineMemory {
    /// `len` zeroes.
    pub fn new(len: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![0; len as usize])))
    }
}

impl SharedMemory for MachineMemory {
    fn len(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        to.copy_from_slice(&self.0.lock()[at as usize..][..to.len()]);
    }

    fn write(&self, at: u64, from: &[u8]) {
        self.0.lock()[at as usize..][..from.len()].copy_from_slice(from);
    }

    fn load(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    fn store(&self, at: u64, value: u16) {
        assert!(at.is_multiple_of(2), "a number at {at}");
        self.write(at, &value.to_le_bytes());
    }

    fn is_whole(&self) -> bool {
        true
    }
}

/// The events of a queue, and whether it runs.
#[derive(Default)]
struct Slot {
    kick: Rc<EventDescriptor>,
    call: Rc<EventDescriptor>,
    running: Option<Running>,
}

/// A queue that runs.
struct Running {
    shutdown: Arc<Shutdown>,
    task: Job<()>,
}

/// A host: see the head of this file.
pub struct Rings {
    world: Arc<World>,
    pace: Pace,
    chance: Chance,
    descriptor: File,
    handed_over: VecDeque<Arc<MachineMemory>>,
    made: Option<Arc<MachineMemory>>,
    slots: BTreeMap<usize, Slot>,
}

impl Rings {
    /// A host without queues. `seed` decides what is late.
    pub fn new(world: &Arc<World>, pace: Pace, seed: u64) -> Self {
        Self {
            world: world.clone(),
            pace,
            chance: Chance::new(seed),
            descriptor: File::open("/dev/null").expect("every system has it"),
            handed_over: VecDeque::new(),
            made: None,
            slots: BTreeMap::new(),
        }
    }

    /// A descriptor for a message.
    pub fn descriptor(&self) -> OwnedFd {
        self.descriptor.try_clone().expect("a story opens few").into()
    }

    /// A descriptor that stands for `memory`.
    pub fn hand_over(&mut self, memory: &Arc<MachineMemory>) -> OwnedFd {
        self.handed_over.push_back(memory.clone());
        self.descriptor()
    }

    /// What the last [`ConversationHost::create`] has made.
    pub fn made(&mut self) -> Option<Arc<MachineMemory>> {
        self.made.take()
    }

    /// The machine kicks queue `index`; nothing where none runs.
    pub fn kick(&self, index: usize) {
        self.slots.get(&index).into_iter().for_each(|slot| slot.kick.tell());
    }

    /// What tells that requests of queue `index` were answered.
    pub fn interrupts(&mut self, index: usize) -> Rc<EventDescriptor> {
        self.slots.entry(index).or_default().call.clone()
    }

    /// Has all queues end as `phase` says, in order or at once. The future waits for that.
    pub fn end(&mut self, phase: Phase) -> LocalFuture<()> {
        let running: Vec<_> = self.slots.values_mut().filter_map(|slot| slot.running.take()).collect();
        running.iter().for_each(|queue| queue.shutdown.ask(phase));
        Box::pin(async move {
            for queue in running {
                queue.task.await;
            }
        })
    }
}

impl ConversationHost for Rings {
    fn map(&mut self, _: OwnedFd, offset: u64, len: u64) -> Result<Arc<dyn SharedMemory>, Error> {
        let memory = self.handed_over.pop_front().expect("memory is handed over with its descriptor");
        assert!(offset == 0 && memory.len() >= len, "{len} bytes of {}", memory.len());
        Ok(memory)
    }

    fn create(&mut self, len: u64) -> Result<OwnedFd, Error> {
        self.made = Some(MachineMemory::new(len));
        Ok(self.descriptor())
    }

    fn set_event(&mut self, index: usize, event: EventOf, _: Option<OwnedFd>) -> Result<(), Error> {
        let slot = self.slots.entry(index).or_default();
        if matches!(event, EventOf::Call) {
            slot.call.tell();
        }
        Ok(())
    }

    fn start(&mut self, index: usize, new_queue: NewQueue) {
        let slot = self.slots.entry(index).or_default();
        assert!(slot.running.is_none(), "queue {index} is started twice");
        let (events, shutdown) = ((slot.kick.clone(), slot.call.clone()), Arc::<Shutdown>::default());
        let (end, tempo) = (shutdown.clone(), Tempo::new(&self.world, &self.chance, self.pace));
        // The queue is gone before anybody hears of it.
        let task = Job::spawn_here(&*self.world, async move {
            let mut task = QueueTask::new(new_queue(), events, end, tempo);
            std::future::poll_fn(|context| task.turn(context)).await;
        });
        slot.running = Some(Running { shutdown, task });
    }

    fn wake(&mut self, index: usize) {
        let running = self.slots.get(&index).and_then(|slot| slot.running.as_ref());
        running.into_iter().for_each(|running| running.shutdown.wake());
    }

    fn stop(&mut self, index: usize) -> LocalFuture<()> {
        let Some(running) = self.slots.entry(index).or_default().running.take() else {
            return Box::pin(std::future::ready(()));
        };
        running.shutdown.ask(Phase::Draining);
        Box::pin(async move { _ = running.task.await })
    }

    fn set_channel(&mut self, _: OwnedFd) -> Result<(), Error> {
        Ok(())
    }
}
