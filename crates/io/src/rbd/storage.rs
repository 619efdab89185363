//! The calls of a [`Storage`] on an image. See [the module](super).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use spillway_core::env::within;
use spillway_core::storage::{ConnectionStatus, Moved};
use spillway_core::sync::{AtomicBool, AtomicU64, Changes, GroupFlush, Mutex, Ordering, RangeSet, Semaphore};
use spillway_core::{
    Answer, BlockSize, Budget, ByteRange, Env, Error, Extent, FallocateMode, Geometry, IoBuf, Job, Kind,
    LocalFuture, OpenStorage, Place, SECTOR, Storage, Workspace, Writers, task,
};

use super::cluster::RbdOptions;
use super::health::{Health, PAUSE};
use super::image::OpenImage;
use crate::file::identity_of;
use crate::mutant;
use crate::runtime::blocking::{Blocking, call_on_blocking_thread};
use crate::runtime::driver::kind_of;

/// Calls that nobody waits for any more, from which on no other begins.
const LATE_MAX: usize = 1024;

/// Objects are as large as that at most; larger ones are better for no request.
const OBJECT_BYTES_MAX: u64 = 32 << 20;

/// Opens the image that `options` name, and says what is worth knowing about it. Errors say what is missing, who has the lock, or that the
/// cluster does not answer.
pub async fn open_rbd(
    options: RbdOptions,
    env: Arc<dyn Env>,
    budget: &Arc<Budget>,
) -> Result<OpenStorage, Error> {
    let (name, timeout, of) = (options.name.to_string(), options.timeout, env.clone());
    let memory = CallMemory { bytes: options.room_bytes, budget: budget.clone(), room: OnceLock::new() };
    if timeout.is_some() {
        memory.charge()?;
    }
    let opening = call_on_blocking_thread(move || Image::open(&options, memory, of));
    let image = match timeout {
        None => opening.await?,
        Some(timeout) => within(&*env, timeout, opening).await.unwrap_or_else(|| {
            Err(Error::new(
                Kind::NoDevice,
                format!("{name}: the cluster does not answer within --origin-timeout"),
            ))
        })?,
    };
    let mut notes = Vec::new();
    if !image.geometry.read_only && !image.locked {
        notes.push(format!(
            "{name}: without the feature exclusive-lock nothing keeps others from writing to it"
        ));
    }
    let image = Arc::new(image);
    let kept = image.clone();
    image.env.spawn(Place::Background, task(move || kept.keep()));
    Ok(OpenStorage { storage: Arc::new(Rbd(image)), notes })
}

/// An open image, as a storage.
struct Rbd(Arc<Image>);

/// One that was never used blocks until it is closed.
impl Drop for Rbd {
    fn drop(&mut self) {
        drop(self.0.open.lock().take());
        self.0.closing.wake_all();
    }
}

pub(super) struct Image {
    pub(super) name: String,
    /// Absent once it is closed.
    pub(super) open: Mutex<Option<Arc<OpenImage>>>,
    /// Answered once it is closed, which the last call that uses it does.
    pub(super) end: Mutex<Option<Job<()>>>,
    pub(super) geometry: Geometry,
    pub(super) locked: bool,
    pub(super) size: AtomicU64,
    /// Changes of the header that the size is after.
    pub(super) seen: AtomicU64,
    pub(super) looking: GroupFlush,
    /// Held by the call that reads or writes the header.
    pub(super) header: Semaphore,
    /// How long calls wait for the cluster.
    timeout: Mutex<Option<Duration>>,
    memory: CallMemory,
    /// Held by the call that asks what is stored.
    pub(super) listing: Semaphore,
    /// Ranges of changes that nobody waits for any more, and that the cluster may still do.
    pub(super) late: RangeSet,
    /// The image says that this one has written to it last.
    pub(super) signed: AtomicBool,
    pub(super) signing: GroupFlush,
    pub(super) health: Health,
    /// It is closed.
    pub(super) closing: Changes,
    pub(super) env: Arc<dyn Env>,
    /// For calls that block, of this image alone: a cluster that is silent has them for as long as it is.
    pub(super) threads: Blocking,
}

/// Memory of calls where they may be given up: the caller has its own back then, and the call goes on.
struct CallMemory {
    bytes: usize,
    budget: Arc<Budget>,
    /// There from the first timeout on.
    room: OnceLock<Workspace>,
}

impl CallMemory {
    fn charge(&self) -> Result<(), Error> {
        let room = Workspace::new("requests to a cluster", &self.budget, self.bytes)?;
        // Another timeout may have been first.
        let _ = self.room.set(room);
        Ok(())
    }
}

/// Calls that block which one image may have at once: about its header, its extents and its lock.
const THREADS: usize = 3;

impl Image {
    fn open(options: &RbdOptions, memory: CallMemory, env: Arc<dyn Env>) -> Result<Self, Error> {
        let mut open = OpenImage::open(options)?;
        let name = options.name.to_string();
        let failed = |errno| {
            let kind = Kind::of_errno(errno);
            Error::new(kind, format!("{name}: its header cannot be read ({})", kind.errno_name()))
        };
        let (bytes, object_bytes) = open.sizes().map_err(failed)?;
        let last = open.writer().map_err(failed)?;
        let size = bytes / SECTOR * SECTOR;
        if size == 0 {
            return Err(Error::invalid(format!(
                "{name}: the image has {bytes} bytes, less than a block of {SECTOR}"
            )));
        }
        let geometry = Geometry {
            size,
            block_size: BlockSize::SECTOR,
            optimal_io: object_bytes.clamp(SECTOR, OBJECT_BYTES_MAX) as u32,
            read_only: options.read_only,
            volatile: false,
            write_through: false,
            discards: true,
            fast_zeroes: true,
            rotational: false,
            identity: identity_of(&open.identity(options)?),
            writers: (!options.read_only).then_some(Writers { last, own: (env.random() as u32).max(1) }),
        };
        let threads = Blocking::default();
        threads.start(THREADS).map_err(|error| {
            Error::new(kind_of(&error), format!("{name}: its threads could not be started: {error}"))
        })?;
        let (end, report) = Job::new();
        open._end = Some(report);
        Ok(Self {
            locked: open.locked,
            open: Mutex::new(Some(Arc::new(open))),
            end: Mutex::new(Some(end)),
            threads,
            ..Self::closed(name, geometry, (options.timeout, memory), env)
        })
    }

    /// An image that is not open, with the timeout of its calls and their memory.
    fn closed(
        name: String,
        geometry: Geometry,
        (timeout, memory): (Option<Duration>, CallMemory),
        env: Arc<dyn Env>,
    ) -> Self {
        Self {
            locked: false,
            open: Mutex::default(),
            end: Mutex::default(),
            listing: Semaphore::new(1),
            geometry,
            size: AtomicU64::new(geometry.size),
            seen: AtomicU64::new(0),
            looking: GroupFlush::default(),
            header: Semaphore::new(1),
            timeout: Mutex::new(timeout),
            memory,
            late: RangeSet::new(LATE_MAX),
            signed: AtomicBool::new(false),
            signing: GroupFlush::default(),
            health: Health::new(name.clone(), env.now()),
            closing: Changes::default(),
            name,
            env,
            threads: Blocking::default(),
        }
    }

    /// One of a cluster that there is not.
    #[cfg(test)]
    pub(super) fn for_tests(env: Arc<dyn Env>, timeout: Option<Duration>) -> Self {
        let memory = CallMemory { bytes: 0, budget: Budget::new(Budget::UNLIMITED), room: OnceLock::new() };
        Self::closed("rbd:a/b".to_owned(), Geometry::in_memory(1 << 20), (timeout, memory), env)
    }

    /// How long calls wait for the cluster.
    pub(super) fn timeout(&self) -> Option<Duration> {
        *self.timeout.lock()
    }

    /// Memory of calls, where they may be given up.
    pub(super) fn room(&self) -> Option<&Workspace> {
        self.memory.room.get()
    }

    /// See [`Storage::set_timeout`]. Calls that wait already have the memory of their callers, unless there was a timeout before: they cannot
    /// be given up.
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let now = self.env.now();
        if timeout.is_some() && self.room().is_none() {
            if !self.health.connection(now).answers() {
                let words = if self.health.is_fenced() {
                    "the image is fenced, and its requests fail: restart the server to open it again"
                } else {
                    "requests wait for the cluster in memory of their clients and cannot be given up: set a timeout while it answers, \
                     or start with --origin-timeout"
                };
                return Err(Error::new(Kind::Busy, format!("{}: {words}", self.name)));
            }
            self.memory.charge()?;
        }
        *self.timeout.lock() = timeout;
        self.health.wait_until(now + timeout.unwrap_or(PAUSE));
        Ok(())
    }

    /// The image, unless it is closed or another client has taken it over.
    pub(super) fn present(&self) -> Result<Arc<OpenImage>, Kind> {
        if self.health.is_fenced() && !mutant::on("rbd: serve a fenced image") {
            return Err(Kind::Io);
        }
        self.open.lock().clone().ok_or(Kind::Io)
    }
}

impl Storage for Rbd {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.0.size.load(Ordering::Acquire), ..self.0.geometry }
    }

    fn look(&self) -> LocalFuture<Result<(), Kind>> {
        Box::pin(self.0.clone().look())
    }

    fn lengthen(&self, bytes: u64) -> Answer<Result<(), Kind>> {
        Answer::pending(self.0.clone().lengthen(bytes))
    }

    fn connection(&self) -> ConnectionStatus {
        self.0.health.connection(self.0.env.coarse_now())
    }

    fn wait_anew(&self) {
        if let Some(timeout) = self.0.timeout() {
            self.0.health.wait_until(self.0.env.now() + timeout);
        }
    }

    fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.0.set_timeout(timeout)
    }

    fn fence(&self) -> Option<Arc<AtomicBool>> {
        Some(self.0.health.fence.clone())
    }

    /// What was acknowledged is at the cluster: no failure of a later call loses it.
    fn losses(&self) -> Option<Result<(), Kind>> {
        Some(Ok(()))
    }

    fn read(&self, at: u64, buf: IoBuf, done: usize) -> LocalFuture<Moved> {
        Box::pin(self.0.clone().read(at, buf, done))
    }

    fn write(&self, at: u64, buf: IoBuf, done: usize, durable: bool) -> LocalFuture<Moved> {
        Box::pin(self.0.clone().write(at, buf, done, durable))
    }

    fn sync(&self) -> LocalFuture<Result<(), Kind>> {
        let image = self.0.clone();
        Box::pin(async move { image.flush().await })
    }

    fn zero(&self, range: ByteRange, mode: FallocateMode) -> LocalFuture<Result<(), Kind>> {
        Box::pin(self.0.clone().zero(range, mode))
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        Answer::pending(self.0.clone().extents(range, count_max))
    }

    fn close(&self) -> LocalFuture<Result<(), Error>> {
        Box::pin(self.0.clone().close())
    }
}
