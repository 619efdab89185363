//! The device, and how it makes each request a call of its storage. See [the module](super).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use spillway_core::buffer::{Reserve, Workspace, ZEROES_LEN};
use spillway_core::sync::{AtomicBool, AtomicU64, Ordering, RangeSet};
use spillway_core::{
    Answer, BlockDevice, Budget, ByteRange, Env, Error, Extent, FallocateMode, Geometry, IoBuf, Kind,
    LocalFuture, Op, Reply, Request, Storage, Submission, mutant,
};

use super::latency::MeanLatencies;
use super::syncs::Syncs;

/// Bytes of the buffer for memory that is not aligned well enough; longer requests go through it in pieces.
pub(super) const BOUNCE_LEN: usize = 256 << 10;

/// Dropped requests of a file from which on no other begins, so that a client that comes again and again does not leave more and
/// more behind. More come only from what had begun before.
pub(super) const LEFT_MAX: usize = 1024;

/// What a dropped request is reckoned to take besides its buffers: its futures and its task.
const LEFT_BYTES: u64 = 2 << 10;

/// A file or block device.
pub struct File {
    pub(super) core: Arc<Core>,
}

/// What requests that were dropped keep alive.
pub(super) struct Core {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) env: Arc<dyn Env>,
    /// As it was opened.
    pub(super) geometry: Geometry,
    /// Bytes in use.
    pub(super) size: AtomicU64,
    memory_alignment: usize,
    bounce: Workspace,
    direct: bool,
    /// Cleared when the system turns out not to know the call.
    discards: AtomicBool,
    punches: AtomicBool,
    zeroes: AtomicBool,
    syncs: Syncs,
    /// Of dropped requests that had begun.
    detached: RangeSet,
    pub(super) latencies: MeanLatencies,
}

impl File {
    /// The device over a `storage` that takes memory of any alignment.
    pub fn new(storage: Arc<dyn Storage>, env: Arc<dyn Env>) -> Self {
        assert_eq!(storage.memory_alignment(), 1, "a storage that asks for more needs a budget");
        Self::charged(storage, env, &Budget::new(0)).expect("no memory is charged")
    }

    /// The device over an opened `storage`. Charges `budget` for a buffer of 256 KiB where the storage asks for aligned
    /// memory; [`Kind::NoSpace`] where there is no room for it.
    pub fn charged(
        storage: Arc<dyn Storage>,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
    ) -> Result<Self, Error> {
        let geometry = storage.geometry();
        let alignment = storage.memory_alignment();
        assert!(alignment.is_power_of_two(), "memory aligned to {alignment}");
        let bounce_len = if alignment > 1 { BOUNCE_LEN } else { 0 };
        let core = Core {
            geometry,
            size: AtomicU64::new(geometry.size),
            memory_alignment: alignment,
            bounce: Workspace::new("a buffer for a file", budget, bounce_len)?,
            direct: storage.direct(),
            discards: AtomicBool::new(geometry.discards),
            punches: AtomicBool::new(true),
            zeroes: AtomicBool::new(true),
            syncs: Syncs::new(&storage),
            detached: RangeSet::new(LEFT_MAX),
            latencies: MeanLatencies::default(),
            storage,
            env,
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// See [`Storage::fence`].
    pub(crate) fn fence(&self) -> Option<Arc<AtomicBool>> {
        self.core.storage.fence()
    }
}

impl BlockDevice for File {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.size(), ..self.core.geometry }
    }

    fn size(&self) -> u64 {
        self.core.size.load(Ordering::Acquire)
    }

    fn submit(&self, request: Request) -> Submission {
        let range = request.range;
        let core = self.core.clone();
        let work = Box::pin(async move {
            let (op, began) = (request.op, core.env.now());
            let reply = core.carry_out(request).await;
            core.latencies.note(op, core.env.now() - began);
            reply
        });
        Answer::Pending(Box::pin(InFlight::new(&self.core, range, LEFT_BYTES, work)))
    }

    /// Orders itself behind nothing: no bytes are read or written.
    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        match self.core.storage.extents(range, count_max) {
            Answer::Done(result) => Answer::Done(result),
            Answer::Pending(work) => {
                // A list that grows is there twice.
                let list = 2 * count_max as u64 * size_of::<Extent>() as u64;
                let in_flight = InFlight::new(&self.core, ByteRange::new(0, 0), LEFT_BYTES + list, work);
                Answer::Pending(Box::pin(in_flight))
            }
        }
    }
}

/// A request from its submission to its answer.
struct InFlight<T: 'static> {
    core: Arc<Core>,
    range: ByteRange,
    /// Charged from its drop to its end, if it has begun: its client is no longer there to be charged.
    bytes: u64,
    /// Present while dropped requests are in the way.
    waiting: Option<LocalFuture<()>>,
    begun: bool,
    /// Absent once answered.
    work: Option<LocalFuture<T>>,
}

impl<T> InFlight<T> {
    fn new(core: &Arc<Core>, range: ByteRange, bytes: u64, work: LocalFuture<T>) -> Self {
        Self { core: core.clone(), range, bytes, waiting: None, begun: false, work: Some(work) }
    }

    fn poll_begin(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.waiting.is_none() && self.core.detached.is_empty() {
            return Poll::Ready(());
        }
        let all = mutant::on("file: wait for all that dropped requests left in flight");
        let range = if all { ByteRange::new(0, u64::MAX) } else { self.range };
        let detached = self.core.detached.clone();
        let clear = async move { detached.clear_of(range).await };
        let wait = self.waiting.get_or_insert_with(|| Box::pin(clear));
        ready!(wait.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(())
    }
}

impl<T> Future for InFlight<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if !self.begun {
            ready!(self.poll_begin(context));
            self.begun = true;
        }
        let work = self.work.as_mut().expect("not polled after its answer");
        let reply = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(reply)
    }
}

impl<T: 'static> Drop for InFlight<T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        if !self.begun {
            return;
        }
        assert!(self.bytes >= LEFT_BYTES, "{} bytes for a request, its futures and its task", self.bytes);
        let held = (!mutant::on("file: forget what a dropped request left in flight"))
            .then(|| (self.core.detached.hold(self.range), Reserve::force(self.bytes)));
        self.core.env.spawn_here(Box::pin(async move {
            work.await;
            drop(held);
        }));
    }
}

impl Core {
    async fn carry_out(&self, request: Request) -> Reply {
        let Request { op, range, flags, buf } = request;
        assert!(!op.carries_buffer() || buf.len() as u64 == range.len, "a buffer for {range:?}");
        match op {
            Op::Read => self.read(range.offset, buf).await,
            Op::Write => self.write(range.offset, buf, flags.fua).await,
            Op::WriteZeroes => {
                let result = match flags.free {
                    true => self.write_free_zeroes(range).await,
                    false => self.write_zeroes(range, flags.no_hole).await,
                };
                Reply { result: self.durable_if(flags.fua, result).await, buf }
            }
            Op::Discard => {
                let result = self.discard(range).await;
                Reply { result: self.durable_if(flags.fua, result).await, buf }
            }
            Op::Flush => Reply { result: self.flush().await, buf },
        }
    }

    fn fits(&self, buf: &IoBuf) -> bool {
        (buf.as_ptr() as usize).is_multiple_of(self.memory_alignment)
    }

    async fn read(&self, offset: u64, mut buf: IoBuf) -> Reply {
        if self.fits(&buf) {
            let (result, buf) = self.read_all(offset, buf).await;
            return Reply { result, buf };
        }
        let result = self.read_by_pieces(offset, &mut buf).await;
        Reply { result, buf }
    }

    async fn read_by_pieces(&self, offset: u64, buf: &mut IoBuf) -> Result<(), Kind> {
        for (at, piece) in (offset..).step_by(BOUNCE_LEN).zip(buf.chunks_mut(BOUNCE_LEN)) {
            let bounce = self.bounce.take(piece.len()).await;
            assert!(self.fits(&bounce), "a buffer of a file's own is aligned");
            let (result, bounce) = self.read_all(at, bounce).await;
            result?;
            piece.copy_from_slice(&bounce);
        }
        Ok(())
    }

    async fn write(&self, offset: u64, buf: IoBuf, fua: bool) -> Reply {
        let durable = fua && !mutant::on("file: ack FUA without durability");
        if self.fits(&buf) {
            let (result, buf) = self.write_as(offset, buf, durable).await;
            return Reply { result, buf };
        }
        let result = self.write_by_pieces(offset, &buf, durable).await;
        Reply { result, buf }
    }

    async fn write_by_pieces(&self, offset: u64, buf: &IoBuf, durable: bool) -> Result<(), Kind> {
        for (at, piece) in (offset..).step_by(BOUNCE_LEN).zip(buf.chunks(BOUNCE_LEN)) {
            let mut bounce = self.bounce.take(piece.len()).await;
            assert!(self.fits(&bounce), "a buffer of a file's own is aligned");
            bounce.copy_from_slice(piece);
            self.write_as(at, bounce, durable).await.0?;
        }
        Ok(())
    }

    /// With O_DIRECT a durable write answers for itself; without, its failure may have been told to another call.
    async fn write_as(&self, offset: u64, buf: IoBuf, durable: bool) -> (Result<(), Kind>, IoBuf) {
        if !durable {
            return self.write_all(offset, buf, false).await;
        }
        let call = self.syncs.begin();
        let (result, buf) = self.write_all(offset, buf, true).await;
        call.end(if mutant::on("file: forget that a durable write failed") { Ok(()) } else { result });
        if self.direct || result.is_err() {
            return (result, buf);
        }
        self.syncs.earlier_ended().await;
        (self.syncs.verdict(), buf)
    }

    /// Reads the whole buffer, continuing where the system stops short.
    async fn read_all(&self, offset: u64, mut buf: IoBuf) -> (Result<(), Kind>, IoBuf) {
        let mut done = 0;
        while done < buf.len() {
            let (result, back) = self.storage.read(offset + done as u64, buf, done).await;
            buf = back;
            match result {
                // The end of a file that was cut after it was opened.
                Ok(0) => return (Err(Kind::Io), buf),
                Ok(_) if mutant::on("file: stop at a short read") => break,
                Ok(count) => done = advanced(done, count, &buf),
                Err(kind) => return (Err(kind), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Writes the whole buffer, continuing where the system stops short.
    async fn write_all(&self, offset: u64, mut buf: IoBuf, durable: bool) -> (Result<(), Kind>, IoBuf) {
        let mut done = 0;
        while done < buf.len() {
            let (result, back) = self.storage.write(offset + done as u64, buf, done, durable).await;
            buf = back;
            match result {
                Ok(0) => return (Err(Kind::Io), buf),
                Ok(_) if mutant::on("file: stop at a short write") => break,
                Ok(count) if done + count < buf.len() && mutant::on("file: fail at a short write") => {
                    return (Err(Kind::Io), buf);
                }
                Ok(count) => done = advanced(done, count, &buf),
                Err(kind) => return (Err(kind), buf),
            }
        }
        (Ok(()), buf)
    }

    async fn durable_if(&self, fua: bool, result: Result<(), Kind>) -> Result<(), Kind> {
        let fua = fua && !mutant::on("file: ack zeroes with FUA before a flush");
        if fua && result.is_ok() { self.flush().await } else { result }
    }

    async fn flush(&self) -> Result<(), Kind> {
        if self.geometry.read_only || mutant::on("file: skip a flush") {
            return Ok(());
        }
        self.syncs.flush(self.storage.sync()).await
    }

    /// Frees room where the system can; never writes zeroes for it.
    async fn discard(&self, range: ByteRange) -> Result<(), Kind> {
        let knew = self.discards.load(Ordering::Relaxed);
        let done = self.fallocate(&self.discards, range, FallocateMode::Discard).await?;
        if knew && !done {
            tracing::warn!("the device does not know discards after all: from now on they do nothing");
        }
        Ok(())
    }

    async fn write_zeroes(&self, range: ByteRange, no_hole: bool) -> Result<(), Kind> {
        if !no_hole && self.fallocate(&self.punches, range, FallocateMode::Punch).await? {
            return Ok(());
        }
        if self.fallocate(&self.zeroes, range, FallocateMode::Zero).await? {
            return Ok(());
        }
        self.write_zero_bytes(range).await
    }

    /// Zeroes that take no room; [`Kind::NotSupported`] where they would.
    async fn write_free_zeroes(&self, range: ByteRange) -> Result<(), Kind> {
        self.storage.zero(range, FallocateMode::Free).await
    }

    /// Makes a call of the system; false where it does not know the call, which is then not tried again.
    async fn fallocate(
        &self,
        known: &AtomicBool,
        range: ByteRange,
        mode: FallocateMode,
    ) -> Result<bool, Kind> {
        if !known.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match self.storage.zero(range, mode).await {
            Err(Kind::NotSupported) => {
                known.store(false, Ordering::Relaxed);
                Ok(mutant::on("file: take an unknown call for done"))
            }
            result => result.map(|()| true),
        }
    }

    async fn write_zero_bytes(&self, range: ByteRange) -> Result<(), Kind> {
        let mut done = 0;
        while done < range.len {
            let len = (range.len - done).min(ZEROES_LEN as u64);
            self.write_all(range.offset + done, IoBuf::zeroes(len as usize), false).await.0?;
            done += len;
        }
        Ok(())
    }
}

/// How much of a buffer is done once the system has moved so many bytes more.
fn advanced(done: usize, count: usize, buf: &IoBuf) -> usize {
    assert!(count <= buf.len() - done, "{count} bytes where {} were asked for", buf.len() - done);
    done + count
}
