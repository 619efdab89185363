//! What a front end shares: the guest's memory, and that for requests in flight.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use spillway_core::Error;
use spillway_core::shared_memory::{ConversationHost, MessageResponse};

use super::super::inflight::{Former, Unflushed, total_len};
use super::super::memory::{GuestMemory, REGIONS_MAX, SharedRegion};
use super::super::message::{FileRegion, InflightFile, answer, regions, request, single_region};
use super::super::ring::QUEUE_SIZE_MAX;
use super::{Config, VhostUserSession, one, refused, short};

impl VhostUserSession {
    pub(super) fn map(
        &mut self,
        (place, offset): FileRegion,
        file: OwnedFd,
        host: &mut dyn ConversationHost,
    ) -> Result<SharedRegion, Error> {
        if !place.is_sound() {
            return Err(refused(format!("a region of {} bytes ends nowhere", place.len)));
        }
        Ok(SharedRegion { place, memory: host.map(file, offset, place.len)? })
    }

    pub(super) fn set_memory(
        &mut self,
        body: &[u8],
        files: Vec<OwnedFd>,
        host: &mut dyn ConversationHost,
    ) -> Result<(), Error> {
        let regions = regions(body, files.len())
            .ok_or_else(|| refused("it has other regions than descriptors, or is too short"))?;
        let mut memory = GuestMemory::default();
        for (region, file) in regions.into_iter().zip(files) {
            if !memory.add(self.map(region, file, host)?) {
                return Err(refused("regions overlap"));
            }
        }
        self.share(memory, host);
        Ok(())
    }

    pub(super) fn add_memory(
        &mut self,
        body: &[u8],
        files: Vec<OwnedFd>,
        host: &mut dyn ConversationHost,
    ) -> Result<(), Error> {
        let region = self.map(single_region(body).ok_or_else(short)?, one(files)?, host)?;
        let mut memory = self.memory.clone();
        if !memory.add(region) {
            return Err(refused(format!("a region overlaps another, or there are more than {REGIONS_MAX}")));
        }
        self.share(memory, host);
        Ok(())
    }

    pub(super) fn remove_memory(
        &mut self,
        body: &[u8],
        host: &mut dyn ConversationHost,
    ) -> Result<(), Error> {
        let (place, _) = single_region(body).ok_or_else(short)?;
        let mut memory = self.memory.clone();
        if !memory.remove(place) {
            return Err(refused("there is no such region"));
        }
        self.share(memory, host);
        Ok(())
    }

    /// Gives all queues another view of the guest's memory. Where a queue is at work, the view that it has lives on meanwhile.
    pub(super) fn share(&mut self, memory: GuestMemory, host: &mut dyn ConversationHost) {
        self.memory = memory;
        let shared = Arc::new(self.memory.clone());
        for (index, queue) in self.queues.iter().enumerate() {
            if let Some(running) = &queue.running {
                *running.memory.lock() = shared.clone();
                host.wake(index);
            }
        }
    }

    pub(super) fn get_inflight(
        &mut self,
        body: &[u8],
        host: &mut dyn ConversationHost,
    ) -> Result<MessageResponse, Error> {
        let InflightFile { queues, size, .. } = InflightFile::decode(body).ok_or_else(short)?;
        let sound = (1..=self.config.queues).contains(&queues) && (1..=QUEUE_SIZE_MAX).contains(&size);
        if !sound {
            return Err(refused(format!("it asks for {queues} queues of {size} entries")));
        }
        let len = total_len(queues, size);
        let descriptor = Some(host.create(len)?);
        let made = InflightFile { len, offset: 0, queues, size };
        let bytes = answer(request::GET_INFLIGHT_FD, &made.encode());
        Ok(MessageResponse { bytes, descriptor })
    }

    pub(super) fn set_inflight(
        &mut self,
        body: &[u8],
        files: Vec<OwnedFd>,
        host: &mut dyn ConversationHost,
    ) -> Result<(), Error> {
        let InflightFile { len, offset, queues, size } = InflightFile::decode(body).ok_or_else(short)?;
        let sound = (1..=self.config.queues).contains(&queues) && (1..=QUEUE_SIZE_MAX).contains(&size);
        if !sound || len < total_len(queues, size) {
            return Err(refused(format!("{len} bytes are no memory for {queues} queues of {size} entries")));
        }
        if self.queues.iter().any(|queue| queue.running.is_some()) {
            return Err(refused("queues are running"));
        }
        let memory = host.map(one(files)?, offset, total_len(queues, size))?;
        let Config { server, buffered, .. } = self.config;
        // After a reset it is as another server, which has lost the content.
        let server = server.wrapping_add(self.export.era());
        let (mut unflushed, former) = Unflushed::open(memory.clone(), server, buffered);
        if let Former::Other { unflushed: lost } = former {
            self.follow(&mut unflushed, lost)?;
        }
        if unflushed.lost() {
            tracing::error!(
                device = self.export.name(),
                "a former server has lost writes that no flush covers: every flush of the guest fails until it is restarted"
            );
        }
        unflushed.claim(server);
        // Of a guest that was reset: the front end has other memory for it, and the device what it had.
        if self.unflushed.any() {
            unflushed.written();
        }
        (self.inflight, self.unflushed) = (Some((memory, size)), Arc::new(unflushed));
        Ok(())
    }

    /// Takes a front end over from a server that has come to its end.
    pub(super) fn follow(&self, unflushed: &mut Unflushed, lost: bool) -> Result<(), Error> {
        let device = self.export.name();
        if self.config.in_memory && !self.config.accept_empty {
            return Err(refused(format!(
                "{device} is in memory, and this front end goes on with what it had in a former server or before a reset: restart the \
                 guest, or give --vhost-user-accept-empty"
            )));
        }
        if lost && !self.config.in_memory {
            unflushed.lose();
        }
        Ok(())
    }
}
