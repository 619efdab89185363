//! What is asked of an image, and how it is waited for.

use std::ffi::c_int;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::env::within;
use spillway_core::storage::Moved;
use spillway_core::sync::{Ordering, Semaphore};
use spillway_core::{ByteRange, Error, Extent, FallocateMode, IoBuf, Kind, LocalFuture, SECTOR, Workspace};

use super::completion::Completion;
use super::health::{LongCall, why_fenced};
use super::image::OpenImage;
use super::library::{RawCompletion, ZEROES_ALLOCATED};
use super::storage::Image;
use crate::mutant;

/// After this a call has taken long.
const LONG: Duration = Duration::from_secs(5);

/// How long librbd has to renew a lock that the cluster does not know.
const RENEWAL: Duration = Duration::from_secs(2);

/// How long an image may take to be closed, whatever the timeout is: that is of calls, and a lock that is left keeps others out.
const CLOSING: Duration = Duration::from_secs(10);

/// Most bytes of one zeroing or discard.
const RANGE_LEN_MAX: u64 = 1 << 30;

/// Part of the memory for calls that may be given up which one call may take.
const CALL_SHARE: usize = 8;

impl Image {
    /// What comes of `work` within the timeout.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, Kind> {
        self.within_timeout(true, work, || {}).await.ok_or(Kind::Unreachable)
    }

    /// What the cluster answers to `work`, within the timeout where it `may_end` before that: then the call that goes on. What is said of the
    /// cluster is known afterwards.
    pub(super) async fn answer<T>(
        &self,
        may_end: bool,
        work: impl Future<Output = T>,
    ) -> Result<T, LongCall> {
        let (begun, mut long) = (self.env.now(), None);
        let takes_long = || long = Some(self.health.silent(self.env.now()));
        let ended = self.within_timeout(may_end, work, takes_long).await;
        let Some(answer) = ended else {
            return Err(self.health.failing(self.env.now()));
        };
        drop(long);
        self.health.answered(begun, false, self.env.now());
        Ok(answer)
    }

    /// What comes of `work`; `None` once it has taken the timeout, where it `may_end` so. The timeout is looked at every [`LONG`], as it may
    /// change meanwhile. When `work` has taken [`LONG`], `long` is called.
    async fn within_timeout<T>(
        &self,
        may_end: bool,
        work: impl Future<Output = T>,
        long: impl FnOnce(),
    ) -> Option<T> {
        let (mut work, mut long, begun) = (pin!(work), Some(long), self.env.now());
        let left = || {
            let timeout = self.timeout().filter(|_| may_end)?;
            Some((begun + timeout).saturating_sub(self.env.now()))
        };
        loop {
            let until_look = left().map_or(LONG, |left| left.min(LONG));
            let ended = within(&*self.env, until_look, work.as_mut()).await;
            if ended.is_some() || left() == Some(Duration::ZERO) {
                return ended;
            }
            if let Some(long) = long.take() {
                long();
            }
        }
    }

    fn kind_of(&self, errno: i32) -> Kind {
        if let Some(why) = why_fenced(errno, self.geometry.read_only) {
            self.health.fenced(why, self.env.now());
            return Kind::Io;
        }
        match errno {
            libc::ENOSPC | libc::EDQUOT => {
                self.health.refused(self.env.now());
                Kind::Exhausted
            }
            // What was cut off.
            libc::EINVAL | libc::ESHUTDOWN => Kind::Io,
            errno => Kind::of_errno(errno),
        }
    }

    /// What precedes a change of `range`: the image has it and says who has made it, and no change is under way there that was given up.
    async fn ready(self: &Arc<Self>, range: ByteRange) -> Result<(), Kind> {
        if self.health.refuses(self.env.coarse_now()) {
            return Err(Kind::Unreachable);
        }
        self.contains(range).await?;
        if !self.signed.load(Ordering::Acquire) && !mutant::on("rbd: change without a signature") {
            self.signing.through(self.sign()).await?;
            self.signed.store(true, Ordering::Release);
        }
        if self.late.is_empty() || mutant::on("rbd: begin beside a change that was given up") {
            return Ok(());
        }
        self.in_time(self.late.clear_of(range)).await
    }

    /// What lies behind the end of an image that became shorter the library leaves out, and says nothing.
    async fn contains(self: &Arc<Self>, range: ByteRange) -> Result<(), Kind> {
        if mutant::on("rbd: take what lies behind the end for done") {
            return Ok(());
        }
        if self.is_changed()? {
            self.clone().look().await?;
        }
        if range.offset + range.len > self.size.load(Ordering::Acquire) { Err(Kind::Io) } else { Ok(()) }
    }

    async fn sign(self: &Arc<Self>) -> Result<(), Kind> {
        let writers = self.geometry.writers.ok_or(Kind::ReadOnly)?;
        self.ask_alone(|image| &image.header, move |image| image.set_writer(writers.own)).await
    }

    /// What a call that blocks says, one of its kind at a time: it has a thread until the cluster answers, whether anybody waits for it or
    /// not.
    async fn ask_alone<T: Send + 'static>(
        self: &Arc<Self>,
        kind: fn(&Self) -> &Semaphore,
        call: impl FnOnce(&OpenImage) -> Result<T, i32> + Send + 'static,
    ) -> Result<T, Kind> {
        let call = self.call_alone(kind, call).await?;
        let answer = self.answer(true, call).await.map_err(|_| Kind::Unreachable)?;
        answer.map_err(|errno| self.kind_of(errno))
    }

    /// The call, once it is the only one of its kind.
    async fn call_alone<T: Send + 'static>(
        self: &Arc<Self>,
        kind: fn(&Self) -> &Semaphore,
        call: impl FnOnce(&OpenImage) -> Result<T, i32> + Send + 'static,
    ) -> Result<impl Future<Output = Result<T, i32>>, Kind> {
        self.in_time(kind(self).take(1)).await?;
        let (asks, image) = (Asks(self.clone(), kind), self.present()?);
        Ok(self.threads.call(move || {
            let _asks = asks;
            call(&image)
        }))
    }

    /// Begins a call and waits for it. One that is not answered in time fails, where the memory is its `own`, and goes on with that; nothing
    /// that overlaps `changed` begins before it is over.
    async fn call(
        self: &Arc<Self>,
        (buf, own): (IoBuf, bool),
        changed: Option<ByteRange>,
        begin: impl FnOnce(&OpenImage, RawCompletion) -> c_int,
    ) -> Moved {
        let image = match self.present() {
            Ok(image) => image,
            Err(kind) => return (Err(kind), buf),
        };
        let begun = self.env.now();
        let mut call = Completion::begin(image.library, buf, |completion| begin(&image, completion));
        drop(image);
        let long = match self.answer(own, &mut call).await {
            Ok((result, buf)) => {
                let result = result.map_err(|errno| self.kind_of(errno));
                return match (result, changed) {
                    (Ok(count), Some(range)) => (self.contains(range).await.map(|()| count), buf),
                    (result, _) => (result, buf),
                };
            }
            Err(long) => long,
        };
        let (held, image) = (changed.map(|range| self.late.hold(range)), self.clone());
        call.give_up(move || {
            drop(long);
            image.health.answered(begun, false, image.env.now());
            drop(held);
        });
        (Err(Kind::Unreachable), IoBuf::empty())
    }

    /// Memory for a call of so many bytes that may be given up, or for fewer.
    async fn own(&self, room: &Workspace, len: usize) -> Result<IoBuf, Kind> {
        let most = room.bytes() / CALL_SHARE / SECTOR as usize * SECTOR as usize;
        assert!(most > 0, "{} bytes for calls", room.bytes());
        self.in_time(room.take(len.min(most))).await
    }

    pub(super) async fn read(self: Arc<Self>, at: u64, mut buf: IoBuf, done: usize) -> Moved {
        let Some(room) = self.room() else {
            return self.read_into(at, (buf, false), done).await;
        };
        let own = match self.own(room, buf.len() - done).await {
            Ok(own) => own,
            Err(kind) => return (Err(kind), buf),
        };
        let (result, own) = self.read_into(at, (own, true), 0).await;
        if let Ok(count) = result {
            buf[done..done + count].copy_from_slice(&own[..count]);
        }
        (result, buf)
    }

    async fn read_into(self: &Arc<Self>, at: u64, (mut buf, own): (IoBuf, bool), done: usize) -> Moved {
        assert!(done < buf.len(), "a read of no bytes");
        let (memory, len) = (buf[done..].as_mut_ptr(), buf.len() - done);
        self.call((buf, own), None, |image, completion| {
            // SAFETY: the image is open, and the call has the memory until it has ended.
            unsafe { (image.library.rbd_aio_read)(image.image, at, len, memory.cast(), completion) }
        })
        .await
    }

    pub(super) async fn write(self: Arc<Self>, at: u64, buf: IoBuf, done: usize, durable: bool) -> Moved {
        let (result, buf) = self.write_plainly(at, buf, done).await;
        if !durable || result.is_err() {
            return (result, buf);
        }
        let flushed = self.flush().await;
        (flushed.and(result), buf)
    }

    async fn write_plainly(self: &Arc<Self>, at: u64, buf: IoBuf, done: usize) -> Moved {
        let Some(room) = self.room() else {
            return self.write_from(at, (buf, false), done).await;
        };
        let mut own = match self.own(room, buf.len() - done).await {
            Ok(own) => own,
            Err(kind) => return (Err(kind), buf),
        };
        let len = own.len();
        own.copy_from_slice(&buf[done..done + len]);
        let (result, _own) = self.write_from(at, (own, true), 0).await;
        (result, buf)
    }

    async fn write_from(self: &Arc<Self>, at: u64, (buf, own): (IoBuf, bool), done: usize) -> Moved {
        assert!(done < buf.len(), "a write of no bytes");
        let (memory, len) = (buf[done..].as_ptr(), buf.len() - done);
        let range = ByteRange::new(at, len as u64);
        if let Err(kind) = self.ready(range).await {
            return (Err(kind), buf);
        }
        let written = self.call((buf, own), Some(range), |image, completion| {
            // SAFETY: the image is open, and the call has the memory until it has ended.
            unsafe { (image.library.rbd_aio_write)(image.image, at, len, memory.cast(), completion) }
        });
        let (result, buf) = written.await;
        (result.map(|_| len), buf)
    }

    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), Kind> {
        let flushed = self.call((IoBuf::empty(), true), None, |image, completion| {
            // SAFETY: the image is open.
            unsafe { (image.library.rbd_aio_flush)(image.image, completion) }
        });
        flushed.await.0.map(drop)
    }

    pub(super) async fn zero(self: Arc<Self>, range: ByteRange, mode: FallocateMode) -> Result<(), Kind> {
        let mut done = 0;
        while done < range.len {
            let len = (range.len - done).min(RANGE_LEN_MAX);
            self.zero_piece(ByteRange::new(range.offset + done, len), mode).await?;
            done += len;
        }
        Ok(())
    }

    async fn zero_piece(self: &Arc<Self>, range: ByteRange, mode: FallocateMode) -> Result<(), Kind> {
        self.ready(range).await?;
        let ByteRange { offset, len } = range;
        let zeroed = self.call((IoBuf::empty(), true), Some(range), |image, completion| {
            let flags = if mode == FallocateMode::Zero { ZEROES_ALLOCATED } else { 0 };
            let (library, image) = (image.library, image.image);
            // SAFETY: the image is open.
            unsafe {
                match mode {
                    FallocateMode::Discard => (library.rbd_aio_discard)(image, offset, len, completion),
                    _ => (library.rbd_aio_write_zeroes)(image, offset, len as usize, completion, flags, 0),
                }
            }
        });
        zeroed.await.0.map(drop)
    }

    pub(super) async fn extents(
        self: Arc<Self>,
        range: ByteRange,
        count_max: usize,
    ) -> Result<Vec<Extent>, Kind> {
        self.ask_alone(|image| &image.listing, move |image| image.extents(range, count_max)).await
    }

    /// Requests wait while the library does this, so that it tells nothing of the cluster how long it takes.
    pub(super) async fn lengthen(self: Arc<Self>, bytes: u64) -> Result<(), Kind> {
        let call = self.call_alone(|image| &image.header, move |image| image.lengthen(bytes)).await?;
        call.await.map_err(|errno| match errno {
            // It is larger by now, or the library has no room for as many objects.
            libc::EINVAL => Kind::Invalid,
            errno => self.kind_of(errno),
        })?;
        self.size.fetch_max(bytes, Ordering::AcqRel);
        self.look().await
    }

    pub(super) async fn look(self: Arc<Self>) -> Result<(), Kind> {
        self.looking.through(self.look_now()).await
    }

    async fn look_now(self: &Arc<Self>) -> Result<(), Kind> {
        let look = |image: &OpenImage| {
            let changes = image.changes.load(Ordering::Acquire);
            image.sizes().map(|(bytes, _)| (changes, bytes))
        };
        let (changes, bytes) = self.ask_alone(|image| &image.header, look).await?;
        let size = bytes / SECTOR * SECTOR;
        let before = self.size.swap(size, Ordering::AcqRel);
        if before != size {
            tracing::warn!("{}: the image has {size} bytes now, and had {before}", self.name);
        }
        self.seen.store(changes, Ordering::Release);
        Ok(())
    }

    /// Whether the header has changed since the size was asked for.
    fn is_changed(&self) -> Result<bool, Kind> {
        Ok(self.present()?.changes.load(Ordering::Acquire) != self.seen.load(Ordering::Acquire))
    }

    /// Looks now and then whether the cluster answers, the lock is there and the size what it was, until the image is closed.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut asked = None;
        loop {
            let closed = self.closing.until(|| self.open.lock().is_none().then_some(()));
            let pause = if self.health.is_doubted() { RENEWAL } else { LONG };
            if within(&*self.env, pause, closed).await.is_some() {
                return;
            }
            self.ask(&mut asked).await;
            if self.is_changed() == Ok(true) && !self.health.is_doubted() {
                let _ = within(&*self.env, LONG, self.clone().look()).await;
            }
        }
    }

    /// Asks what only the cluster knows. What it has not answered is not asked again, as it has a thread until it is.
    async fn ask(self: &Arc<Self>, asked: &mut Option<LocalFuture<Result<bool, i32>>>) {
        let Ok(image) = self.present() else { return };
        let begun = self.env.now();
        let (of, writers) = (self.clone(), self.geometry.writers);
        let answer = asked.get_or_insert_with(|| {
            Box::pin(async move { of.threads.call(move || image.has_lock(writers)).await })
        });
        match self.answer(true, answer).await {
            Ok(Ok(false)) => self.health.denied(self.env.now()),
            Ok(Err(errno)) => _ = self.kind_of(errno),
            Ok(Ok(true)) => self.health.answered(begun, true, self.env.now()),
            Err(_) => return self.health.look_for_room(self.env.now()),
        }
        *asked = None;
        self.health.look_for_room(self.env.now());
    }

    pub(super) async fn close(self: Arc<Self>) -> Result<(), Error> {
        let (open, ended) = (self.open.lock().take(), self.end.lock().take());
        self.closing.wake_all();
        let closing = async {
            self.threads.call(move || drop(open)).await;
            // A call that is under way has it until then.
            if let Some(ended) = ended {
                let _ = ended.await;
            }
        };
        within(&*self.env, CLOSING, closing).await.ok_or_else(|| {
            let why = "the cluster does not answer: the image is left, and its lock is free once the cluster notices";
            Error::new(Kind::Unreachable, format!("{}: {why}", self.name))
        })
    }
}

/// Asks by a call of that kind, until it is dropped.
struct Asks(Arc<Image>, fn(&Image) -> &Semaphore);

impl Drop for Asks {
    fn drop(&mut self) {
        self.1(&self.0).give(1);
    }
}
