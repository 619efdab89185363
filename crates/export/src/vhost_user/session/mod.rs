//! Messages to state: what a front end and the device have agreed on, and which queues run.

mod queues;
mod shared;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use spillway_core::session::Peer;
use spillway_core::shared_memory::{
    Conversation, ConversationHost, EventOf, HEAD_LEN, MessageResponse, SharedMemory,
};
use spillway_core::sync::Ordering;
use spillway_core::{Error, Kind, LocalFuture, Request};

use super::block;
use super::inflight::Unflushed;
use super::memory::{GuestMemory, REGIONS_MAX};
use super::message::{
    Addresses, CONFIG_SPACE_LEN, MessageHead, addresses, answer, config_range, event_of, protocol_feature,
    queue_state, request,
};
use super::ring::QUEUE_SIZE_MAX;
use super::setup::{SharedQueueState, TransferLimits};
use crate::export::{Connected, Export};

/// Features of every device and of its rings, by their bits.
mod feature {
    pub(super) const INDIRECT: u64 = 1 << 28;
    pub(super) const EVENT_INDEX: u64 = 1 << 29;
    pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub(super) const VERSION_1: u64 = 1 << 32;
    pub(super) const ALL: u64 = INDIRECT | EVENT_INDEX | PROTOCOL_FEATURES | VERSION_1;
}

/// What the conversations about one device have in common.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Queues that a front end may have.
    pub queues: u16,
    /// Limits of each queue.
    pub limits: TransferLimits,
    /// Whether acknowledged writes are lost with this process unless a flush has covered them.
    pub buffered: bool,
    /// Whether all content is lost with this process, unless it ends in order at best.
    pub in_memory: bool,
    /// Whether a front end may go on that knew the device before its content was lost.
    pub accept_empty: bool,
    /// A random number that tells this server from others, not 0.
    pub server: u64,
}

/// What is known of a queue.
#[derive(Default)]
struct QueueState {
    size: u16,
    base: u16,
    addresses: Option<Addresses>,
    /// Of the queue that runs.
    running: Option<Arc<SharedQueueState>>,
    /// Of the queue that ran, and says where the next one goes on unless the front end does.
    stopped: Option<Arc<SharedQueueState>>,
    enabled: bool,
}

impl QueueState {
    /// The first entry of the available ring that the next queue takes.
    fn base(&self) -> u16 {
        self.stopped.as_ref().map_or(self.base, |shared| shared.base.load(Ordering::Acquire) as u16)
    }
}

/// One front end. See [the module](super) for what it promises.
pub struct VhostUserSession {
    export: Arc<Export>,
    config: Config,
    features: u64,
    protocol_features: u64,
    memory: GuestMemory,
    inflight: Option<(Arc<dyn SharedMemory>, u16)>,
    unflushed: Arc<Unflushed>,
    queues: Vec<QueueState>,
    /// A message was refused, and the log says so.
    complained: bool,
    /// The front end's place among the clients of the export.
    connected: Option<Connected>,
}

/// Why a message is refused.
fn refused(text: impl Into<String>) -> Error {
    Error::invalid(text.into())
}

fn short() -> Error {
    refused("it is shorter than its kind")
}

/// What is `wanted`, if it was offered.
fn among(what: &str, offered: u64, wanted: u64) -> Result<u64, Error> {
    match wanted & !offered {
        0 => Ok(wanted),
        unknown => Err(refused(format!("it asks for {what} that were not offered: {unknown:#x}"))),
    }
}

fn one(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, Error> {
    <[OwnedFd; 1]>::try_from(descriptors)
        .map(|[descriptor]| descriptor)
        .map_err(|all| refused(format!("it comes with {} descriptors instead of one", all.len())))
}

impl VhostUserSession {
    /// A conversation about `export`.
    pub fn new(export: Arc<Export>, config: Config) -> Self {
        assert!(config.server != 0, "a server that cannot be told from none");
        Self {
            export,
            config,
            features: 0,
            protocol_features: 0,
            memory: GuestMemory::default(),
            inflight: None,
            unflushed: Arc::new(Unflushed::unseen()),
            queues: (0..config.queues).map(|_| QueueState::default()).collect(),
            complained: false,
            connected: None,
        }
    }

    fn offered(&self) -> u64 {
        feature::ALL | block::features(&self.export.geometry())
    }

    fn queue(&mut self, index: u32) -> Result<&mut QueueState, Error> {
        let count = self.queues.len();
        let found = self.queues.get_mut(index as usize);
        found.ok_or_else(|| refused(format!("it is about queue {index} of {count}")))
    }

    /// A queue that does not run: what it is may change.
    fn queue_at_rest(&mut self, index: u32) -> Result<&mut QueueState, Error> {
        let queue = self.queue(index)?;
        match queue.running {
            None => Ok(queue),
            Some(_) => Err(refused(format!("queue {index} is running"))),
        }
    }

    fn set_size(&mut self, body: &[u8]) -> Result<(), Error> {
        let (index, size) = queue_state(body).ok_or_else(short)?;
        let sound = size.is_power_of_two() && size <= u32::from(QUEUE_SIZE_MAX);
        if !sound {
            return Err(refused(format!(
                "a queue of {size} entries: a power of two up to {QUEUE_SIZE_MAX} is allowed"
            )));
        }
        self.queue_at_rest(index)?.size = size as u16;
        Ok(())
    }

    fn set_base(&mut self, body: &[u8]) -> Result<(), Error> {
        let (index, base) = queue_state(body).ok_or_else(short)?;
        let queue = self.queue_at_rest(index)?;
        (queue.base, queue.stopped) = (base as u16, None);
        Ok(())
    }

    fn set_addresses(&mut self, body: &[u8]) -> Result<(), Error> {
        let (index, addresses) = addresses(body).ok_or_else(short)?;
        self.queue_at_rest(index)?.addresses = Some(addresses);
        Ok(())
    }

    fn set_enabled(&mut self, body: &[u8], host: &mut dyn ConversationHost) -> Result<(), Error> {
        let (index, enabled) = queue_state(body).ok_or_else(short)?;
        let queue = self.queue(index)?;
        queue.enabled = enabled != 0;
        if let Some(running) = &queue.running {
            running.enabled.store(u32::from(enabled != 0), Ordering::Release);
            host.wake(index as usize);
        }
        Ok(())
    }

    fn set_event(
        &mut self,
        body: &[u8],
        files: Vec<OwnedFd>,
        event: EventOf,
        host: &mut dyn ConversationHost,
    ) -> Result<(), Error> {
        let (index, given) = event_of(body).ok_or_else(short)?;
        self.queue(index as u32)?;
        let descriptor = given.then(|| one(files)).transpose()?;
        if !matches!(event, EventOf::Kick) {
            return host.set_event(index, event, descriptor);
        }
        self.queue_at_rest(index as u32)?;
        if descriptor.is_none() {
            return Err(refused("a queue without kicks, which would have to be looked at all the time"));
        }
        host.set_event(index, event, descriptor)?;
        let new_queue = self.new_queue(index)?;
        host.start(index, new_queue);
        Ok(())
    }

    fn get_config(&self, body: &[u8]) -> Result<Vec<u8>, Error> {
        let range =
            config_range(body).ok_or_else(|| refused("it asks for more than the configuration has"))?;
        let mut space = [0; CONFIG_SPACE_LEN];
        let block = self.export.device().preferred_block().bytes();
        let config = block::config(&self.export.geometry(), block, self.config.queues);
        space[..config.len()].copy_from_slice(&config);
        let numbers = [range.start as u32, range.len() as u32, 0].map(u32::to_ne_bytes);
        Ok([numbers.as_flattened(), &space[range]].concat())
    }

    /// What does not answer by itself.
    fn change(
        &mut self,
        head: MessageHead,
        body: &[u8],
        files: Vec<OwnedFd>,
        host: &mut dyn ConversationHost,
    ) -> Result<(), Error> {
        use crate::fields::Fields;
        let number = || Fields::of(body).u64().ok_or_else(short);
        match head.request {
            request::SET_FEATURES => {
                among("features", self.offered(), number()?).map(|wanted| self.features = wanted)
            }
            request::SET_PROTOCOL_FEATURES => among("protocol features", protocol_feature::ALL, number()?)
                .map(|wanted| self.protocol_features = wanted),
            request::SET_OWNER | request::RESET_OWNER => Ok(()),
            request::SET_MEM_TABLE => self.set_memory(body, files, host),
            request::ADD_MEM_REG => self.add_memory(body, files, host),
            request::REM_MEM_REG => self.remove_memory(body, host),
            request::SET_VRING_NUM => self.set_size(body),
            request::SET_VRING_BASE => self.set_base(body),
            request::SET_VRING_ADDR => self.set_addresses(body),
            request::SET_VRING_ENABLE => self.set_enabled(body, host),
            request::SET_VRING_KICK => self.set_event(body, files, EventOf::Kick, host),
            request::SET_VRING_CALL => self.set_event(body, files, EventOf::Call, host),
            request::SET_VRING_ERR => self.set_event(body, files, EventOf::Error, host),
            request::SET_INFLIGHT_FD => self.set_inflight(body, files, host),
            request::SET_BACKEND_REQ_FD => host.set_channel(one(files)?),
            unknown => Err(Error::new(Kind::NotSupported, format!("there is no request {unknown} here"))),
        }
    }

    /// The number that answers a question; `None` where the message is none.
    fn number(&self, request: u32) -> Option<u64> {
        match request {
            request::GET_FEATURES => Some(self.offered()),
            request::GET_PROTOCOL_FEATURES => Some(protocol_feature::ALL),
            request::GET_QUEUE_NUM => Some(self.config.queues.into()),
            request::GET_MAX_MEM_SLOTS => Some(REGIONS_MAX as u64),
            _ => None,
        }
    }

    fn acknowledged(
        &mut self,
        head: MessageHead,
        outcome: Result<(), Error>,
    ) -> Result<MessageResponse, Error> {
        // Without the memory that it knows a front end does not go on.
        let lasting = head.request == request::SET_INFLIGHT_FD && outcome.is_err();
        let asked_for = head.needs_reply && self.protocol_features & protocol_feature::REPLY_ACK != 0;
        if lasting || !asked_for {
            return outcome.map(|()| MessageResponse::default());
        }
        if let Err(error) = &outcome {
            self.complain(head, error);
        }
        let number = u64::from(outcome.is_err()).to_ne_bytes();
        Ok(MessageResponse { bytes: answer(head.request, &number), descriptor: None })
    }

    /// Warns once: a guest that writes to its configuration has QEMU ask for that change, as often as it likes.
    fn complain(&mut self, head: MessageHead, error: &Error) {
        let (device, request, why) = (self.export.name(), head.request, error.message());
        let said = format!("a message of a vhost-user front end is refused: {why}");
        match std::mem::replace(&mut self.complained, true) {
            false => tracing::warn!(device, request, "{said}; the next ones are shown by -vv alone"),
            true => tracing::debug!(device, request, "{said}"),
        }
    }
}

impl Conversation for VhostUserSession {
    fn introduce(&mut self, peer: Peer) -> bool {
        self.connected = self.export.connect(peer);
        self.connected.is_some()
    }

    fn body_len(&self, head: &[u8; HEAD_LEN]) -> Result<usize, Error> {
        let head =
            MessageHead::decode(head).ok_or_else(|| refused("what came is no message of vhost-user"))?;
        Ok(head.len as usize)
    }

    fn receive(
        &mut self,
        head: &[u8; HEAD_LEN],
        body: &[u8],
        descriptors: Vec<OwnedFd>,
        host: &mut dyn ConversationHost,
    ) -> LocalFuture<Result<MessageResponse, Error>> {
        let head = MessageHead::decode(head).expect("its length was asked for");
        let response = |bytes| MessageResponse { bytes, descriptor: None };
        let answered = match head.request {
            request::GET_VRING_BASE => match self.stop_queue(body, host) {
                Ok(stopped) => return Box::pin(async move { Ok(stopped.await) }),
                Err(error) => Err(error),
            },
            request::GET_CONFIG => self.get_config(body).map(|body| response(answer(head.request, &body))),
            request::GET_INFLIGHT_FD => self.get_inflight(body, host),
            _ => match self.number(head.request) {
                Some(number) => Ok(response(answer(head.request, &number.to_ne_bytes()))),
                None => {
                    let outcome = self.change(head, body, descriptors, host);
                    self.acknowledged(head, outcome)
                }
            },
        };
        Box::pin(std::future::ready(answered))
    }

    fn wind_down(&mut self) -> LocalFuture<()> {
        let (export, unflushed) = (self.export.clone(), self.unflushed.clone());
        if export.geometry().read_only {
            return Box::pin(std::future::ready(()));
        }
        let number = unflushed.begin_flush();
        let flushed = export.device().submit(Request::flush());
        Box::pin(async move {
            match flushed.await.result {
                Ok(()) => unflushed.flushed(number),
                Err(kind) => {
                    let (export, error) = (export.name(), kind.errno_name());
                    tracing::error!(export, error, "the last flush of a front end failed");
                }
            }
        })
    }
}
