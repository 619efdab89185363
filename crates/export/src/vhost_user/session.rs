//! Messages to state: what a front end and the device have agreed on, and which queues run.

mod shared;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use spillway_core::session::Peer;
use spillway_core::shared_memory::{Conversation, EventOf, HEAD_LEN, Host, Response, SharedMemory};
use spillway_core::sync::{AtomicU32, Mutex, Ordering};
use spillway_core::{Error, Kind, LocalFuture};

use super::block;
use super::inflight::{Inflight, Unflushed};
use super::memory::{GuestMemory, REGIONS_MAX};
use super::message::{
    Addresses, CONFIG_SPACE_LEN, Head, addresses, answer, config_range, event_of, protocol_feature,
    queue_state, request,
};
use super::queue::BlockQueue;
use super::ring::{Layout, QUEUE_SIZE_MAX, part_lens};
use super::setup::{Parts, Shared, TransferLimits};
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
    running: Option<Arc<Shared>>,
    enabled: bool,
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

    fn set_features(&mut self, wanted: u64) -> Result<(), Error> {
        let unknown = wanted & !self.offered();
        if unknown != 0 {
            return Err(refused(format!("it asks for features that were not offered: {unknown:#x}")));
        }
        self.features = wanted;
        Ok(())
    }

    fn set_protocol_features(&mut self, wanted: u64) -> Result<(), Error> {
        let unknown = wanted & !protocol_feature::ALL;
        if unknown != 0 {
            return Err(refused(format!(
                "it asks for protocol features that were not offered: {unknown:#x}"
            )));
        }
        self.protocol_features = wanted;
        Ok(())
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
        self.queue_at_rest(index)?.base = base as u16;
        Ok(())
    }

    fn set_addresses(&mut self, body: &[u8]) -> Result<(), Error> {
        let (index, addresses) = addresses(body).ok_or_else(short)?;
        self.queue_at_rest(index)?.addresses = Some(addresses);
        Ok(())
    }

    fn set_enabled(&mut self, body: &[u8], host: &mut dyn Host) -> Result<(), Error> {
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
        host: &mut dyn Host,
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
        let new_queue = self.new_queue(index)?;
        host.set_event(index, event, descriptor)?;
        host.start(index, new_queue);
        Ok(())
    }

    /// Where queue `index` lies for the guest.
    fn layout(&self, index: usize) -> Result<Layout, Error> {
        let QueueState { size, addresses, .. } = &self.queues[index];
        let Some(addresses) = addresses.filter(|_| *size > 0) else {
            return Err(refused(format!("queue {index} has no size or no place")));
        };
        let lens = part_lens(*size);
        let parts = [addresses.descriptors, addresses.available, addresses.used];
        let found = [0, 1, 2].map(|part| self.memory.guest_address(parts[part], lens[part]));
        let [Some(descriptors), Some(available), Some(used)] = found else {
            return Err(refused(format!("queue {index} lies where no memory is shared")));
        };
        if [(descriptors, 16), (available, 2), (used, 4)].iter().any(|(at, unit)| at % unit != 0) {
            return Err(refused(format!("queue {index} lies at an odd place")));
        }
        Ok(Layout { size: *size, descriptors, available, used })
    }

    fn new_queue(&mut self, index: usize) -> Result<spillway_core::shared_memory::NewQueue, Error> {
        let layout = self.layout(index)?;
        let inflight = match &self.inflight {
            None => None,
            Some((memory, size)) if *size >= layout.size => Some(
                Inflight::open(memory.clone(), index, *size)
                    .ok_or_else(|| refused("the memory for requests in flight holds something else"))?,
            ),
            Some((_, size)) => {
                return Err(refused(format!("queue {index} is larger than the {size} requests in flight")));
            }
        };
        // Without the feature a queue is enabled from the start.
        let enabled = self.features & feature::PROTOCOL_FEATURES == 0 || self.queues[index].enabled;
        let shared = Arc::new(Shared {
            memory: Mutex::new(Arc::new(self.memory.clone())),
            enabled: AtomicU32::new(u32::from(enabled)),
            base: AtomicU32::new(0),
        });
        let parts = Parts {
            export: self.export.clone(),
            limits: self.config.limits,
            shared: shared.clone(),
            layout,
            event_index: self.features & feature::EVENT_INDEX != 0,
            base: self.queues[index].base,
            inflight,
            unflushed: self.unflushed.clone(),
            write_through: self.features & block::feature::FLUSH == 0,
        };
        self.queues[index].running = Some(shared);
        Ok(Box::new(move || Box::new(BlockQueue::new(parts))))
    }

    /// Stops a queue, and says how far it has come.
    fn stop_queue(&mut self, body: &[u8], host: &mut dyn Host) -> Result<LocalFuture<Response>, Error> {
        let (index, _) = queue_state(body).ok_or_else(short)?;
        let queue = self.queue(index)?;
        let (running, known) = (queue.running.take(), queue.base);
        let stopped = host.stop(index as usize);
        Ok(Box::pin(async move {
            stopped.await;
            let base = running.map_or(known.into(), |shared| shared.base.load(Ordering::Acquire));
            let numbers = [index, base].map(u32::to_ne_bytes);
            Response { bytes: answer(request::GET_VRING_BASE, numbers.as_flattened()), descriptor: None }
        }))
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
        head: Head,
        body: &[u8],
        files: Vec<OwnedFd>,
        host: &mut dyn Host,
    ) -> Result<(), Error> {
        use crate::fields::Fields;
        let number = || Fields::of(body).u64().ok_or_else(short);
        match head.request {
            request::SET_FEATURES => self.set_features(number()?),
            request::SET_PROTOCOL_FEATURES => self.set_protocol_features(number()?),
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
            request::SET_BACKEND_REQ_FD => {
                host.set_channel(one(files)?);
                Ok(())
            }
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

    fn acknowledged(&self, head: Head, outcome: Result<(), Error>) -> Result<Response, Error> {
        if !(head.needs_reply && self.protocol_features & protocol_feature::REPLY_ACK != 0) {
            return outcome.map(|()| Response::default());
        }
        if let Err(error) = &outcome {
            self.complain(head, error);
        }
        let number = u64::from(outcome.is_err()).to_ne_bytes();
        Ok(Response { bytes: answer(head.request, &number), descriptor: None })
    }

    fn complain(&self, head: Head, error: &Error) {
        let (device, request) = (self.export.name(), head.request);
        tracing::warn!(
            device,
            request,
            "a message of a vhost-user front end is refused: {}",
            error.message()
        );
    }
}

impl Conversation for VhostUserSession {
    fn introduce(&mut self, peer: Peer) -> bool {
        self.connected = self.export.connect(peer);
        self.connected.is_some()
    }

    fn body_len(&self, head: &[u8; HEAD_LEN]) -> Result<usize, Error> {
        let head = Head::decode(head).ok_or_else(|| refused("what came is no message of vhost-user"))?;
        Ok(head.len as usize)
    }

    fn receive(
        &mut self,
        head: &[u8; HEAD_LEN],
        body: &[u8],
        descriptors: Vec<OwnedFd>,
        host: &mut dyn Host,
    ) -> LocalFuture<Result<Response, Error>> {
        let head = Head::decode(head).expect("its length was asked for");
        let response = |bytes| Response { bytes, descriptor: None };
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
        let answered = answered.inspect_err(|error| self.complain(head, error));
        Box::pin(std::future::ready(answered))
    }
}
