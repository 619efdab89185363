//! Queues, from what a front end has said of them.

use std::sync::Arc;

use spillway_core::shared_memory::{ConversationHost, MessageResponse, NewQueue};
use spillway_core::sync::{AtomicU32, Mutex, Ordering};
use spillway_core::{Error, LocalFuture};

use super::super::block;
use super::super::inflight::Inflight;
use super::super::message::{answer, queue_state, request};
use super::super::queue::BlockQueue;
use super::super::ring::{RingLayout, part_lens};
use super::super::setup::{Parts, SharedQueueState};
use super::{QueueState, VhostUserSession, feature, refused, short};

impl VhostUserSession {
    /// Where queue `index` lies for the guest.
    pub(super) fn layout(&self, index: usize) -> Result<RingLayout, Error> {
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
        Ok(RingLayout { size: *size, descriptors, available, used })
    }

    pub(super) fn new_queue(&mut self, index: usize) -> Result<NewQueue, Error> {
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
        let shared = Arc::new(SharedQueueState {
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
            base: self.queues[index].base(),
            inflight,
            unflushed: self.unflushed.clone(),
            write_through: self.features & block::feature::FLUSH == 0,
        };
        self.queues[index].running = Some(shared);
        Ok(Box::new(move || Box::new(BlockQueue::new(parts))))
    }

    /// Stops a queue, and says how far it has come.
    pub(super) fn stop_queue(
        &mut self,
        body: &[u8],
        host: &mut dyn ConversationHost,
    ) -> Result<LocalFuture<MessageResponse>, Error> {
        let (index, _) = queue_state(body).ok_or_else(short)?;
        let queue = self.queue(index)?;
        queue.stopped = queue.running.take().or(queue.stopped.take());
        let (shared, known) = (queue.stopped.clone(), queue.base);
        let stopped = host.stop(index as usize);
        Ok(Box::pin(async move {
            stopped.await;
            let base = shared.map_or(known.into(), |shared| shared.base.load(Ordering::Acquire));
            let numbers = [index, base].map(u32::to_ne_bytes);
            MessageResponse {
                bytes: answer(request::GET_VRING_BASE, numbers.as_flattened()),
                descriptor: None,
            }
        }))
    }
}
