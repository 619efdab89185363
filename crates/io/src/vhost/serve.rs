//! Serving a device to front ends, one after the other.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use spillway_core::session::Peer;
use spillway_core::shared_memory::{
    Conversation, ConversationHost, EventOf, HEAD_LEN, MessageResponse, NewQueue, SharedMemory,
};
use spillway_core::sync::Mutex;
use spillway_core::{Error, Job, LocalFuture, Phase, Report, Shutdown, task};

use super::descriptors::{Gone, Wire, send_now};
use super::event;
use super::mapping::{Mapping, memory_file};
use super::queue::{Descriptors, EventSlot, Guard, QueueTask, Running};
use super::warn_once::WarnOnce;
use crate::net::peer::peer_of;
use crate::net::serve::await_connection;
use crate::net::socket::Listener;
use crate::runtime::env::yield_now;
use crate::runtime::op::shortage_passes;
use crate::runtime::pool::ThreadPool;
use crate::runtime::workers::Workers;

/// Messages of a front end before other tasks get their turn.
const MESSAGES_IN_A_ROW: u64 = 64;

/// Makes the conversation with a front end, on the front thread.
pub type NewConversation = Arc<dyn Fn() -> Box<dyn Conversation> + Send + Sync>;

/// What the task of a device and its owner share.
struct VhostState {
    pool: Arc<ThreadPool>,
    /// The device, for words to people.
    name: String,
    shutdown: Arc<Shutdown>,
    channel: Mutex<Option<OwnedFd>>,
    sent_away: WarnOnce,
    broken: WarnOnce,
}

/// A device that is served.
pub struct VhostServing {
    state: Arc<VhostState>,
    // Taken by stop; a drop without it aborts.
    served: Option<Job<()>>,
}

/// Serves the device `name` to each front end that connects to `listener`, one at a time.
pub fn serve_vhost(
    listener: Listener,
    name: &str,
    workers: &Workers,
    new_conversation: NewConversation,
) -> VhostServing {
    let state = Arc::new(VhostState {
        pool: workers.pool().clone(),
        name: name.to_owned(),
        shutdown: Arc::default(),
        channel: Mutex::default(),
        sent_away: WarnOnce::default(),
        broken: WarnOnce::default(),
    });
    let ((served, report), of) = (Job::new(), state.clone());
    workers.pool().front().post(task(move || serve_all(report, of, listener, new_conversation)));
    VhostServing { state, served: Some(served) }
}

impl VhostServing {
    /// Takes no front end any more, has each queue answer what it has taken, and closes. The future waits for that.
    pub fn stop(mut self) -> impl Future<Output = ()> + 'static {
        let served = self.served.take().expect("it ends once");
        self.state.shutdown.ask(Phase::Draining);
        async move { _ = served.await }
    }

    /// Sends the front end a message that answers none, if there is one that listens.
    pub fn tell(&self, message: &[u8]) {
        let channel = self.state.channel.lock();
        if let Some(channel) = &*channel
            && let Err(errno) = send_now(channel, message, None)
        {
            tracing::debug!("{}: the front end does not listen: {errno}", self.state.name);
        }
    }
}

impl Drop for VhostServing {
    fn drop(&mut self) {
        if self.served.is_some() {
            self.state.shutdown.ask(Phase::Aborting);
        }
    }
}

/// The device counts as served until `report` is dropped.
async fn serve_all(
    report: Report<()>,
    state: Arc<VhostState>,
    listener: Listener,
    new_conversation: NewConversation,
) {
    while state.shutdown.phase() == Phase::Serving {
        match listener.accept() {
            Ok((socket, _)) => {
                let mut conversation = new_conversation();
                let taken = conversation.introduce(peer_of(&socket));
                if taken {
                    state.sent_away.forget();
                    converse(&state, socket, conversation).await;
                } else {
                    let why = "the device has no size, is being stopped, or one client has it alone";
                    state.sent_away.say(&format!("device {}: a front end is sent away: {why}", state.name));
                    yield_now().await;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                await_connection(&listener, &state.shutdown).await;
            }
            Err(error) => {
                tracing::debug!("{}: no front end could be accepted: {error}", state.name);
                shortage_passes().await;
            }
        }
    }
    drop(listener);
    drop(report);
}

async fn converse(state: &Arc<VhostState>, socket: OwnedFd, mut conversation: Box<dyn Conversation>) {
    tracing::info!("device {}: a front end has connected", state.name);
    let wire = Wire { socket: Arc::new(socket), shutdown: state.shutdown.clone() };
    let mut rings = Rings::new(state.clone());
    let ended = exchange(&wire, &mut *conversation, &mut rings).await;
    rings.end().await;
    if state.shutdown.phase() != Phase::Aborting {
        state.shutdown.unless(Phase::Aborting, conversation.wind_down()).await;
    }
    *state.channel.lock() = None;
    drop((wire, conversation));
    match ended {
        Some(error) => state.broken.say(&format!(
            "device {}: the front end is disconnected: {}",
            state.name,
            error.message()
        )),
        None => {
            state.broken.forget();
            tracing::info!("device {}: the front end has left", state.name);
        }
    }
}

/// Messages and answers, until one side has enough; then why, if the front end has broken the rules.
async fn exchange(wire: &Wire, conversation: &mut dyn Conversation, rings: &mut Rings) -> Option<Error> {
    for number in 1u64.. {
        if wire.shutdown.phase() != Phase::Serving {
            break;
        }
        // One that has much to say lets others have their turn.
        if number.is_multiple_of(MESSAGES_IN_A_ROW) {
            yield_now().await;
        }
        let mut descriptors = Vec::new();
        let mut head = [0; HEAD_LEN];
        let Ok(()) = wire.receive(&mut head, &mut descriptors).await else { return None };
        let mut body = match conversation.body_len(&head) {
            Ok(len) => vec![0; len],
            Err(error) => return Some(error),
        };
        let Ok(()) = wire.receive(&mut body, &mut descriptors).await else { return None };
        let answer = conversation.receive(&head, &body, descriptors, rings);
        let answer = wire.shutdown.unless(Phase::Aborting, answer).await?;
        match answer {
            Err(error) => return Some(error),
            Ok(response) => {
                let Ok(()) = respond(wire, response).await else { return None };
            }
        }
    }
    None
}

async fn respond(wire: &Wire, response: MessageResponse) -> Result<(), Gone> {
    if response.bytes.is_empty() { Ok(()) } else { wire.send(response).await }
}

/// A queue as the conversation knows it.
#[derive(Default)]
struct Slot {
    kick: Option<Arc<OwnedFd>>,
    call: EventSlot,
    error: EventSlot,
    running: Option<Running>,
}

/// The queues of a front end.
struct Rings {
    state: Arc<VhostState>,
    /// Of what the guest does.
    warnings: Arc<WarnOnce>,
    slots: Vec<Slot>,
}

impl Rings {
    fn new(state: Arc<VhostState>) -> Self {
        Self { state, warnings: Arc::default(), slots: Vec::new() }
    }

    fn slot(&mut self, index: usize) -> &mut Slot {
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Slot::default);
        }
        &mut self.slots[index]
    }

    /// Stops all queues, as the server does or else in order, and waits for that.
    async fn end(&mut self) {
        let running: Vec<_> = self.slots.iter_mut().filter_map(|slot| slot.running.take()).collect();
        running.iter().for_each(|queue| queue.shutdown.ask(Phase::Draining));
        for mut queue in running {
            if self.state.shutdown.unless(Phase::Aborting, &mut queue.task).await.is_none() {
                queue.shutdown.ask(Phase::Aborting);
                queue.task.await;
            }
        }
    }
}

impl ConversationHost for Rings {
    fn map(&mut self, file: OwnedFd, offset: u64, len: u64) -> Result<Arc<dyn SharedMemory>, Error> {
        Ok(Arc::new(Mapping::new(&file, offset, len)?))
    }

    fn create(&mut self, len: u64) -> Result<OwnedFd, Error> {
        memory_file(len)
    }

    fn set_event(&mut self, index: usize, event: EventOf, descriptor: Option<OwnedFd>) -> Result<(), Error> {
        let check = if matches!(event, EventOf::Kick) { event::check_kick } else { event::check };
        descriptor.as_ref().map_or(Ok(()), check)?;
        let (slot, descriptor) = (self.slot(index), descriptor.map(Arc::new));
        match event {
            EventOf::Kick => slot.kick = descriptor,
            EventOf::Call => {
                *slot.call.lock() = descriptor.clone();
                // A former server may have ended between an answer and its interrupt.
                descriptor.as_deref().into_iter().for_each(event::signal);
            }
            EventOf::Error => *slot.error.lock() = descriptor,
        }
        Ok(())
    }

    fn start(&mut self, index: usize, new_queue: NewQueue) {
        let (state, warnings) = (self.state.clone(), self.warnings.clone());
        let slot = self.slot(index);
        assert!(slot.running.is_none(), "queue {index} is started twice");
        let kick = slot.kick.clone().expect("a queue is started by its kick");
        let name = format!("device {}, queue {index}", state.name);
        let descriptors =
            Descriptors { kick, call: slot.call.clone(), error: slot.error.clone(), name, warnings };
        let ((task, report), shutdown) = (Job::new(), Arc::<Shutdown>::default());
        slot.running = Some(Running { shutdown: shutdown.clone(), task });
        // Each where there is least to do: queues of a device are spread, and those of several devices.
        let (worker, _) = state.pool.emptiest();
        let guard = Guard { shutdown, _load: state.pool.add_load(worker), _report: report };
        state
            .pool
            .thread(worker)
            .post(Box::new(move || Box::pin(QueueTask::new(new_queue(), descriptors, guard))));
    }

    fn wake(&mut self, index: usize) {
        if let Some(running) = &self.slot(index).running {
            running.shutdown.wake();
        }
    }

    fn stop(&mut self, index: usize) -> LocalFuture<()> {
        let Some(running) = self.slot(index).running.take() else { return Box::pin(std::future::ready(())) };
        self.slot(index).kick = None;
        running.shutdown.ask(Phase::Draining);
        Box::pin(async move { _ = running.task.await })
    }

    fn set_channel(&mut self, channel: OwnedFd) -> Result<(), Error> {
        match peer_of(&channel) {
            Peer::Program(id) if id == std::process::id() => {
                Err(Error::invalid("its channel is a connection to this server"))
            }
            Peer::Address(_) => Err(Error::invalid("its channel is no unix socket")),
            _ => {
                *self.state.channel.lock() = Some(channel);
                Ok(())
            }
        }
    }
}
