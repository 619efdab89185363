//! A host's view of the image: what `io::rbd` is for the layers of a host.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::env::within;
use spillway_core::storage::{ConnectionStatus, Moved};
use spillway_core::sync::{
    AtomicBool, AtomicUsize, Changes, GroupFlush, HeldRange, Mutex, Ordering, RangeSet,
};
use spillway_core::{
    Answer, BlockSize, ByteRange, Error, Extent, FallocateMode, Geometry, IoBuf, Kind, LocalFuture, SECTOR,
    Storage, Writers, mutant,
};

use super::link::Link;
use super::{Image, LockedOut, State};

/// What tells the image from others.
const IDENTITY: NonZeroU64 = NonZeroU64::new(0x69_6d61_6765).expect("it is not 0");

/// Changes that nobody waits for any more, from which on no other begins.
const LATE_MAX: usize = 16;

/// An image that a host has open, with the lock.
pub struct Client(Arc<Shared>);

struct Shared {
    image: Arc<Image>,
    link: Arc<Link>,
    number: u64,
    geometry: Geometry,
    signed: AtomicBool,
    signing: GroupFlush,
    fence: Arc<AtomicBool>,
    closed: AtomicBool,
    /// Requests that have not ended, at the cluster or on their way.
    under_way: AtomicUsize,
    changed: Changes,
    /// What changes that nobody waits for any more may still do.
    late: RangeSet,
}

impl Client {
    /// Opens the image over `link`, and takes the lock. `take_over`: from the client that has it. `is_alive`: that client is not gone.
    /// [`Kind::Busy`] names the one that has it.
    pub async fn open(
        image: &Arc<Image>,
        link: &Arc<Link>,
        take_over: bool,
        is_alive: bool,
    ) -> Result<Self, Error> {
        let number = {
            let mut state = image.state.lock();
            state.clients += 1;
            state.clients
        };
        let early = image.ask(link, number, 0, |state, _| state.writer).await;
        let lock =
            image.ask(link, number, 0, move |state, _| state.take_lock(number, take_over, is_alive)).await;
        let taken = lock.expect("the cluster answers").expect("a new client is not locked out")?;
        let last = match mutant::on("image: ask who has written before it is locked") {
            true => early.expect("the cluster answers").expect("a new client is not locked out"),
            false => taken,
        };
        let own = (image.env.random() as u32).max(1);
        let bytes = image.state.lock().content.len() as u64;
        let geometry = Geometry {
            block_size: BlockSize::SECTOR,
            optimal_io: 4096,
            volatile: false,
            identity: Some(IDENTITY),
            writers: Some(Writers { last, own }),
            ..Geometry::in_memory(bytes)
        };
        Ok(Self(Arc::new(Shared {
            image: image.clone(),
            link: link.clone(),
            number,
            geometry,
            signed: AtomicBool::new(false),
            signing: GroupFlush::default(),
            fence: Arc::default(),
            closed: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            changed: Changes::default(),
            late: RangeSet::new(LATE_MAX),
        })))
    }

    /// Which client of the image it is.
    pub fn number(&self) -> u64 {
        self.0.number
    }
}

/// Counts a request until it has ended.
struct UnderWay(Arc<Shared>);

impl UnderWay {
    fn begin(shared: &Arc<Shared>) -> Self {
        shared.under_way.fetch_add(1, Ordering::SeqCst);
        Self(shared.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.wake_all();
    }
}

impl Shared {
    /// What the cluster makes of a request. Nobody is asked once it was seen that another has the lock, nor once the image is closed.
    async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        bytes: u64,
        work: impl FnMut(&mut State, ByteRange) -> T + 'static,
    ) -> Result<T, Kind> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Kind::Io);
        }
        self.in_time(self.send(bytes, work)).await?
    }

    async fn send<T: Send + 'static>(
        self: &Arc<Self>,
        bytes: u64,
        mut work: impl FnMut(&mut State, ByteRange) -> T + 'static,
    ) -> Result<T, Kind> {
        if self.fence.load(Ordering::SeqCst) {
            return Err(Kind::Io);
        }
        let under_way = UnderWay::begin(self);
        let job = self.image.ask(&self.link, self.number, bytes, move |state, piece| {
            let _until_it_ends = &under_way;
            work(state, piece)
        });
        match job.await.expect("the cluster answers") {
            Ok(done) => Ok(done),
            Err(LockedOut) => {
                self.fence.store(true, Ordering::SeqCst);
                Err(Kind::Io)
            }
        }
    }

    /// What comes of `work` before the patience ends.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, Kind> {
        let begun = self.image.env.now();
        if mutant::on("image: wait for nothing any more once an answer was late")
            && self.image.has_failed_since(self.number, Kind::Unreachable, Duration::ZERO)
        {
            return Err(Kind::Unreachable);
        }
        let ended = match self.link.patience {
            Some(patience) => within(&*self.image.env, patience, work).await,
            None => Some(work.await),
        };
        self.image.note_wait(self.number, begun);
        ended.ok_or_else(|| {
            self.image.note_failure(self.number, Kind::Unreachable);
            Kind::Unreachable
        })
    }

    /// What precedes a change of `range`: nothing is under way there that was given up, and the image says who makes it.
    async fn ready(self: &Arc<Self>, range: ByteRange) -> Result<(), Kind> {
        if !self.late.is_empty() && !mutant::on("image: begin beside a change that was given up") {
            self.in_time(self.late.clear_of(range)).await?;
        }
        let unsigned = mutant::on("image: change it without a signature");
        if !unsigned && !self.signed.load(Ordering::SeqCst) {
            self.signing.through(self.sign()).await?;
            self.signed.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    async fn sign(self: &Arc<Self>) -> Result<(), Kind> {
        let (number, own) = (self.number, self.geometry.writers.expect("it has some").own);
        self.ask(0, move |state, _| {
            state.writer = own;
            state.signatures.push(number);
        })
        .await
    }

    async fn change(self: Arc<Self>, at: u64, bytes: Vec<u8>) -> Result<(), Kind> {
        let range = ByteRange::new(at, bytes.len() as u64);
        self.ready(range).await?;
        // Lasts as long as the change, of which the end is not told to anybody once it was given up.
        let late: Arc<Mutex<Option<HeldRange>>> = Arc::default();
        let (of_change, mut outcome) = (late.clone(), Ok(()));
        let changed = self.ask(range.len, move |state, piece| {
            let (_until_it_ends, from) = (&of_change, piece.offset as usize);
            let bytes = &bytes[from..from + piece.len as usize];
            outcome = outcome.and_then(|()| state.write(at + piece.offset, bytes));
            outcome
        });
        let changed = changed.await;
        if changed == Err(Kind::Unreachable) && Arc::strong_count(&late) > 1 {
            *late.lock() = Some(self.late.hold(range));
        }
        let changed = changed?;
        changed.inspect_err(|&kind| self.image.note_failure(self.number, kind))
    }

    async fn close(self: Arc<Self>) -> Result<(), Error> {
        self.closed.store(true, Ordering::SeqCst);
        self.changed.until(|| (self.under_way.load(Ordering::SeqCst) == 0).then_some(())).await;
        let number = self.number;
        let given_back = self.send(0, move |state, _| {
            if state.owner == Some(number) {
                state.owner = None;
            }
        });
        // One that has lost it has none to give back.
        let _ = given_back.await;
        Ok(())
    }
}

impl Storage for Client {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn connection(&self) -> ConnectionStatus {
        let fenced = self.0.fence.load(Ordering::SeqCst);
        ConnectionStatus {
            state: ConnectionStatus::STATES[if fenced { 4 } else { 1 }],
            ..ConnectionStatus::default()
        }
    }

    fn fence(&self) -> Option<Arc<AtomicBool>> {
        Some(self.0.fence.clone())
    }

    /// What was acknowledged is at the cluster.
    fn losses(&self) -> Option<Result<(), Kind>> {
        Some(Ok(()))
    }

    fn read(&self, at: u64, mut buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        let shared = self.0.clone();
        Box::pin(async move {
            let len = buf.len() - done;
            let read = shared.ask(0, move |state, _| state.content[at as usize..][..len].to_vec()).await;
            let read = read.map(|bytes| buf[done..].copy_from_slice(&bytes));
            (read.map(|()| len), buf)
        })
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, _durable: bool) -> LocalFuture<Moved> {
        let (shared, len) = (self.0.clone(), buf.len() - done);
        Box::pin(async move {
            let written = shared.change(at, buf[done..].to_vec()).await;
            (written.map(|()| len), buf)
        })
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        let shared = self.0.clone();
        Box::pin(async move { shared.ask(0, |_, _| ()).await })
    }

    fn zero(&self, range: ByteRange, _mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        Box::pin(self.0.clone().change(range.offset, vec![0; range.len as usize]))
    }

    /// Sectors that hold zeroes are holes.
    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let shared = self.0.clone();
        Answer::pending(async move {
            let list = shared.ask(0, move |state, _| {
                let mut list = Vec::new();
                let bytes = &state.content[range.offset as usize..][..range.len as usize];
                for sector in bytes.chunks(SECTOR as usize) {
                    let zero = sector.iter().all(|&byte| byte == 0);
                    Extent { zero, ..Extent::stored(sector.len() as u64) }.append_to(&mut list);
                }
                list.truncate(count_max);
                list
            });
            list.await
        })
    }

    fn close(&self) -> LocalFuture<Result<(), Error>> {
        Box::pin(self.0.clone().close())
    }
}
