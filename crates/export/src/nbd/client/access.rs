//! Calls of a storage as requests to a server.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use spillway_core::buffer::Shared;
use spillway_core::storage::Moved;
use spillway_core::sync::{AtomicBool, GroupFlush, Ordering};
use spillway_core::{ByteRange, Charge, Extent, FallocateMode, Geometry, IoBuf, Kind, Workspace, mutant};

use super::call::{Answered, Body, JournalEffect};
use super::journal::Content;
use super::link::Link;
use super::negotiation::Described;
use super::payload::Payload;
use crate::nbd::wire::{cmd, cmd_flag, flag};

/// Longest request in bytes, where the server takes as much: longer ones are cut.
pub(super) const REQUEST_LEN_MAX: usize = 4 << 20;

/// Most bytes of a zeroing or discard in one request.
const RANGE_LEN_MAX: u64 = 1 << 30;

/// Part of the journal that one write may take.
const JOURNAL_SHARE: usize = 8;

/// What calls keep alive.
pub(super) struct Access {
    pub(super) link: Arc<Link>,
    pub(super) described: Described,
    pub(super) geometry: Geometry,
    pub(super) journal: Workspace,
    /// Of buffers of the connections.
    pub(super) _charge: Charge,
    pub(super) flushes: GroupFlush,
    /// A flush that frees room is under way.
    pub(super) freeing: AtomicBool,
}

impl Access {
    /// Whether acknowledged changes may be lost without a flush.
    fn is_cached(&self) -> bool {
        !self.geometry.write_through
    }

    /// Bytes of the `len` from `at` on that one request may carry, at most `most`. Where it is less, it ends between blocks as the server likes
    /// them best.
    fn cut(&self, at: u64, len: usize, most: usize) -> usize {
        let (block, unit) = (self.geometry.block_size.bytes() as usize, u64::from(self.geometry.optimal_io));
        let most = most.min(self.described.payload_len_max as usize).min(REQUEST_LEN_MAX) / block * block;
        if len <= most {
            return len;
        }
        let end = (at + most as u64) / unit * unit;
        if end > at { (end - at) as usize } else { most }
    }

    pub(super) async fn read(self: Arc<Self>, at: u64, buf: IoBuf, done: usize) -> Moved {
        let len = self.cut(at, buf.len() - done, REQUEST_LEN_MAX);
        let body = Body::Read { buf, start: done };
        let answered =
            self.link.call(cmd::READ, 0, ByteRange::new(at, len as u64), body, JournalEffect::Nothing).await;
        let Body::Read { buf, .. } = answered.body else {
            unreachable!("an answer has the body of its call")
        };
        (answered.result.map(|()| len), buf)
    }

    pub(super) async fn write(self: Arc<Self>, at: u64, buf: IoBuf, done: usize, durable: bool) -> Moved {
        // A server without room is not asked for FUA: of a flush that it refuses, and of no write, follows that something may be lost.
        let at_once = durable && self.described.has(flag::SEND_FUA) && !self.link.is_full();
        if self.is_cached() && !at_once {
            let (result, len) = self.write_journaled(at, &buf[done..]).await;
            let result = if durable && result.is_ok() { self.sync().await } else { result };
            return (result.map(|()| len), buf);
        }
        self.write_durably(at, buf, done).await
    }

    /// Writes the first bytes, which are kept until a flush covers them; returns how many.
    async fn write_journaled(self: &Arc<Self>, at: u64, bytes: &[u8]) -> (Result<(), Kind>, usize) {
        let len = self.cut(at, bytes.len(), self.journal.bytes() / JOURNAL_SHARE);
        let range = ByteRange::new(at, len as u64);
        let _change = self.link.begin_change(range).await;
        let mut copy = match self.room(len).await {
            Ok(copy) => copy,
            Err(kind) => return (Err(kind), len),
        };
        copy.copy_from_slice(&bytes[..len]);
        let payload = Payload { bytes: Arc::new(Shared::new(copy, IoBuf::empty())), start: 0 };
        let effect = JournalEffect::Unflushed(Content::Bytes(payload.clone()));
        let answered = self.link.call(cmd::WRITE, 0, range, Body::Write(payload), effect).await;
        (self.changed(range, &answered).await, len)
    }

    /// Writes with FUA, or to a server that keeps nothing back.
    async fn write_durably(self: &Arc<Self>, at: u64, buf: IoBuf, done: usize) -> Moved {
        let len = self.cut(at, buf.len() - done, REQUEST_LEN_MAX);
        let range = ByteRange::new(at, len as u64);
        let _change = self.link.begin_change(range).await;
        let cached = self.is_cached();
        if cached && let Err(kind) = self.room(0).await {
            return (Err(kind), buf);
        }
        let flags = if cached && !mutant::on("nbd client: send no FUA") { cmd_flag::FUA } else { 0 };
        let bytes = Arc::new(Shared::new(buf, IoBuf::empty()));
        let body = Body::Write(Payload { bytes: bytes.clone(), start: done });
        let answered = self.link.call(cmd::WRITE, flags, range, body, JournalEffect::Durable).await;
        if let (true, Err(kind), true) = (flags != 0, answered.result, answered.told) {
            self.link.lose(kind, "the server could not make a write durable");
        }
        let result = self.changed(range, &answered).await;
        let whole = Arc::into_inner(bytes).expect("an answered request has given its payload back");
        (result.map(|()| len), whole.into_whole())
    }

    /// What follows a change that was answered. After a failure nobody knows which content there is: so that it stays one, what was there
    /// before is made durable instead of being sent again later.
    async fn changed(self: &Arc<Self>, range: ByteRange, answered: &Answered) -> Result<(), Kind> {
        match answered.result {
            Ok(()) => self.free_ahead(),
            Err(_) if !answered.told => {}
            Err(_) => {
                let _ = self.flush_unknown(range).await;
            }
        }
        answered.result
    }

    /// Room in the journal for a change with so many bytes of its own, after everybody who asked before, for which it may have to flush. Where
    /// changes have it all that are under way, a flush frees nothing, and the server would get one after the other: it waits for the answer to
    /// one of them then.
    async fn room(&self, len: usize) -> Result<IoBuf, Kind> {
        let link = &self.link;
        while link.journal.lock().is_full() {
            self.flush().await?;
        }
        let mut room = pin!(self.journal.take(len));
        loop {
            let may_flush = || (!link.journal.lock().is_empty()).then_some(());
            let mut flushable = pin!(link.answers.until(may_flush));
            let taken = poll_fn(|context| match room.as_mut().poll(context) {
                Poll::Ready(buf) => Poll::Ready(Some(buf)),
                Poll::Pending => flushable.as_mut().poll(context).map(|()| None),
            });
            match taken.await {
                Some(buf) => return Ok(buf),
                None => self.flush().await?,
            }
        }
    }

    /// Flushes once half of the journal is in use, so that writers hardly ever wait for room in it.
    fn free_ahead(self: &Arc<Self>) {
        let is_half_full =
            self.journal.lent() * 2 >= self.journal.bytes() || self.link.journal.lock().is_half_full();
        if is_half_full && mutant::on("nbd client: make room without a flush") {
            let mut journal = self.link.journal.lock();
            let all = journal.seal();
            let dropped = journal.forget(all);
            drop(journal);
            drop(dropped);
            return;
        }
        if !is_half_full || self.freeing.swap(true, Ordering::AcqRel) {
            return;
        }
        let freeing = Freeing(self.clone());
        self.link.env.spawn_here(Box::pin(async move {
            let _ = freeing.0.flush().await;
        }));
    }

    /// A flush that the server refuses is told to all that are asked for from then on. One that it was not asked for leaves everything in the
    /// journal.
    async fn flush(&self) -> Result<(), Kind> {
        let flush = async {
            let mut number = self.link.journal.lock().seal();
            let range = ByteRange::new(0, 0);
            let answered = self.link.call(cmd::FLUSH, 0, range, Body::Nothing, JournalEffect::Nothing).await;
            if mutant::on("nbd client: a flush covers what is acknowledged beside it") {
                number = self.link.journal.lock().seal();
            }
            if let (Err(kind), true) = (answered.result, answered.told) {
                self.link.lose(kind, "the server could not flush");
            }
            answered.result?;
            let covered = self.link.journal.lock().forget(number);
            drop(covered);
            Ok(())
        };
        self.flushes.through(flush).await
    }

    pub(super) async fn sync(&self) -> Result<(), Kind> {
        if self.is_cached() {
            self.flush().await?;
        }
        self.link.failure.check()
    }

    pub(super) async fn zero(self: Arc<Self>, range: ByteRange, mode: FallocateMode) -> Result<(), Kind> {
        let (needed, flags) = match mode {
            FallocateMode::Discard => (flag::SEND_TRIM, 0),
            FallocateMode::Punch => (flag::SEND_WRITE_ZEROES, 0),
            FallocateMode::Free => (flag::SEND_FAST_ZERO, cmd_flag::FAST_ZERO),
            FallocateMode::Zero => (flag::SEND_WRITE_ZEROES, cmd_flag::NO_HOLE),
        };
        if !self.described.has(needed) {
            return Err(Kind::NotSupported);
        }
        let mut done = 0;
        while done < range.len {
            let len = (range.len - done).min(RANGE_LEN_MAX);
            let piece = ByteRange::new(range.offset + done, len);
            let result = match mode {
                FallocateMode::Discard => self.discard_piece(piece).await,
                _ => self.zero_piece(piece, flags).await,
            };
            match result {
                // Part of it is changed already: this is no longer a call that is not known.
                Err(Kind::NotSupported) if done > 0 && mode != FallocateMode::Free => return Err(Kind::Io),
                result => result?,
            }
            done += len;
        }
        Ok(())
    }

    /// A discard leaves what was there or something else, and nobody knows which: it is flushed at once, so that it stays that.
    async fn discard_piece(self: &Arc<Self>, range: ByteRange) -> Result<(), Kind> {
        let _change = self.link.begin_change(range).await;
        let answered = self.link.call(cmd::TRIM, 0, range, Body::Nothing, JournalEffect::Nothing).await;
        match answered.result {
            Ok(()) if mutant::on("nbd client: leave a discard unflushed") => Ok(()),
            Ok(()) => self.flush_unknown(range).await,
            Err(Kind::NotSupported) => Err(Kind::NotSupported),
            Err(_) => self.changed(range, &answered).await,
        }
    }

    /// Flushes once nobody knows what `range` holds, so that it stays what it is. Where the server refuses that, nothing is written there again.
    async fn flush_unknown(&self, range: ByteRange) -> Result<(), Kind> {
        if !self.is_cached() {
            return Ok(());
        }
        let result = self.flush().await;
        if result.is_err() && self.link.failure.check().is_err() {
            let dropped = self.link.journal.lock().record(range, None);
            drop(dropped);
        }
        result
    }

    async fn zero_piece(self: &Arc<Self>, range: ByteRange, flags: u16) -> Result<(), Kind> {
        let _change = self.link.begin_change(range).await;
        let effect = match self.is_cached() {
            true => JournalEffect::Unflushed(Content::Zeroes { _charge: Arc::new(self.room(1).await?) }),
            false => JournalEffect::Durable,
        };
        let answered = self.link.call(cmd::WRITE_ZEROES, flags, range, Body::Nothing, effect).await;
        match answered.result {
            Err(Kind::NotSupported) => Err(Kind::NotSupported),
            _ => self.changed(range, &answered).await,
        }
    }

    pub(super) async fn extents(
        self: Arc<Self>,
        range: ByteRange,
        count_max: usize,
    ) -> Result<Vec<Extent>, Kind> {
        let asked = ByteRange::new(range.offset, range.len.min(RANGE_LEN_MAX));
        let body = Body::Status { extents: Vec::new(), count_max };
        let answered = self.link.call(cmd::BLOCK_STATUS, 0, asked, body, JournalEffect::Nothing).await;
        let Body::Status { extents, .. } = answered.body else {
            unreachable!("an answer has the body of its call")
        };
        answered.result?;
        let mut whole = Vec::new();
        Extent::append_in_blocks(&extents, range, self.geometry.block_size.bytes(), &mut whole);
        whole.truncate(count_max);
        Ok(whole)
    }
}

/// A flush that frees room; over when dropped.
struct Freeing(Arc<Access>);

impl Drop for Freeing {
    fn drop(&mut self) {
        let before = self.0.freeing.swap(false, Ordering::Release);
        assert!(before, "a flush that frees room ends and has not begun");
    }
}
