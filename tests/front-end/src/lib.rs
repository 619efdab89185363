//! A vhost-user front end that Spillway did not write: the `virtio-driver` crate, with memory that it shares.
//!
//! Requests name ranges of that memory, so that nothing here is unsafe for who uses it.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memmap2::MmapMut;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioBlkQueue,
    VirtioBlkTransport, VirtioFeatureFlags,
};

/// What is asked of a device. Ranges are of the shared memory, places of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads to a range.
    Read(u64, Range<usize>),
    /// Writes a range.
    Write(u64, Range<usize>),
    /// Zeroes so many bytes, which may become a hole.
    WriteZeroes(u64, u64, bool),
    /// Discards so many bytes.
    Discard(u64, u64),
    /// Flushes.
    Flush,
}

/// Features of rings that a front end may do without.
#[derive(Clone, Copy, Debug, Default)]
pub struct Without {
    /// Each side says with a flag whether it wants to hear, and not from which entry on.
    pub event_index: bool,
}

/// A queue with its events.
pub struct Queue {
    queue: VirtioBlkQueue<'static, usize>,
    kick: Box<dyn QueueNotifier>,
    call: Arc<EventFd>,
}

/// A front end, connected to a device.
pub struct FrontEnd {
    queues: Vec<Queue>,
    transport: Box<VirtioBlkTransport>,
    memory: MmapMut,
    file: File,
    /// Watches the calls of all queues for new writes, so that none has to be read.
    calls: OwnedFd,
}

impl FrontEnd {
    /// Connects to the device at `socket`, with so many queues of so many entries, and shares `len` bytes.
    pub fn connect(
        socket: &Path,
        queues: usize,
        entries: u16,
        len: usize,
        without: Without,
    ) -> Result<Self, Error> {
        let mut features = VirtioFeatureFlags::VERSION_1;
        features.set(VirtioFeatureFlags::RING_EVENT_IDX, !without.event_index);
        let path = socket.to_str().ok_or(ErrorKind::InvalidInput)?;
        let wanted = features.bits() | VirtioBlkFeatureFlags::all().bits();
        let transport = VhostUser::new(path, wanted).map_err(|why| Error::other(format!("{why:?}")))?;
        let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
        let made = VirtioBlkQueue::setup_queues(&mut *transport, queues, entries)?;
        let file = File::from(memfd_create("front-end", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, len as u64)?;
        // SAFETY: the file is ours alone but for the device, which changes only what a request names; while one is under way nobody here
        // looks at its range. A test that cuts the file off does not look at the memory again.
        let mut memory = unsafe { MmapMut::map_mut(&file)? };
        transport.map_mem_region(memory.as_mut_ptr().addr(), len, file.as_raw_fd(), 0)?;
        let queue = |(index, mut queue): (usize, VirtioBlkQueue<'static, usize>)| {
            queue.set_used_notif_enabled(true);
            let (kick, call) = (transport.get_submission_notifier(index), transport.get_completion_fd(index));
            Queue { queue, kick, call }
        };
        let queues: Vec<Queue> = made.into_iter().enumerate().map(queue).collect();
        let calls = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for queue in &queues {
            let news = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&calls, &*queue.call, epoll::EventData::new_u64(0), news)?;
        }
        Ok(Self { queues, transport, memory, file, calls })
    }

    /// Bytes of the device.
    pub fn size(&self) -> Result<u64, Error> {
        let config: VirtioBlkConfig = self.transport.get_config()?;
        Ok(u64::from(config.capacity) * 512)
    }

    /// Whether the device says that it only reads.
    pub fn is_read_only(&self) -> bool {
        self.transport.get_features() & VirtioBlkFeatureFlags::RO.bits() != 0
    }

    /// The shared memory.
    pub fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Cuts the file of the shared memory off. The memory may not be looked at after that.
    pub fn cut_off(&self) -> Result<(), Error> {
        Ok(ftruncate(&self.file, 0)?)
    }

    /// Adds a request, which will be known as `context`, and kicks the device where it wants that.
    pub fn submit(&mut self, queue: usize, request: Request, context: usize) -> Result<(), Error> {
        self.add(queue, request, context)?;
        self.kick(queue)
    }

    /// Adds a request, which will be known as `context`. [`FrontEnd::kick`] tells the device of all that were
    /// added.
    pub fn add(&mut self, queue: usize, request: Request, context: usize) -> Result<(), Error> {
        let one = &mut self.queues[queue];
        match request {
            Request::Read(at, range) => one.queue.read(at, &mut self.memory[range], context)?,
            Request::Write(at, range) => one.queue.write(at, &self.memory[range], context)?,
            Request::WriteZeroes(at, len, unmap) => one.queue.write_zeroes(at, len, unmap, context)?,
            Request::Discard(at, len) => one.queue.discard(at, len, context)?,
            Request::Flush => one.queue.flush(context)?,
        }
        Ok(())
    }

    /// Kicks the device where it wants to hear of what was added since the last kick.
    pub fn kick(&mut self, queue: usize) -> Result<(), Error> {
        let queue = &mut self.queues[queue];
        if queue.queue.avail_notif_needed() { queue.kick.notify() } else { Ok(()) }
    }

    /// What has been answered: contexts, and 0 or a negative errno.
    pub fn answers(&mut self, queue: usize) -> Vec<(usize, i32)> {
        let mut answers = Vec::new();
        self.reap(queue, &mut answers);
        answers
    }

    /// Appends to `answers` what has been answered: contexts, and 0 or a negative errno.
    pub fn reap(&mut self, queue: usize, answers: &mut Vec<(usize, i32)>) {
        let queue = &mut self.queues[queue].queue;
        answers.extend(queue.completions().map(|completion| (completion.context, completion.ret)));
    }

    /// Sleeps until the device calls, on any queue. Returns at once where it has called since the last sleep,
    /// and sometimes without a call; `TimedOut` where none comes for so long. Not to be mixed with
    /// [`FrontEnd::wait`], which takes the calls away.
    pub fn sleep(&self, patience: Duration) -> Result<(), Error> {
        let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
        let mut news = [MaybeUninit::uninit(); 16];
        match epoll::wait(&self.calls, &mut news, Some(&limit)) {
            Ok(([], _)) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits until something was answered, by interrupts alone. `TimedOut` where none comes for so long.
    pub fn wait(&mut self, queue: usize, patience: Duration) -> Result<Vec<(usize, i32)>, Error> {
        loop {
            let answers = self.answers(queue);
            if !answers.is_empty() {
                return Ok(answers);
            }
            let call = self.queues[queue].call.clone();
            let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
            let descriptor = call.as_fd();
            if poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit))? == 0 {
                return Err(ErrorKind::TimedOut.into());
            }
            call.read()?;
        }
    }

    /// Carries out one request alone: 0 or a negative errno.
    pub fn ask(&mut self, queue: usize, request: Request, patience: Duration) -> Result<i32, Error> {
        self.submit(queue, request, 0)?;
        let answers = self.wait(queue, patience)?;
        assert_eq!(answers.len(), 1, "one request was under way");
        Ok(answers[0].1)
    }
}
