//! What a layer may have of the outside world: time, chance, tasks and memory.
//!
//! The real ones live in the `io` crate, the simulated ones in `sim`; a layer cannot tell which it has.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::ptr::NonNull;
use std::task::Poll;
use std::time::Duration;

use crate::error::Kind;
use crate::sync::Words;

/// A boxed future that stays on its thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Work to be started on another thread: the closure travels, the future it makes stays there.
pub type Task = Box<dyn FnOnce() -> LocalFuture<()> + Send>;

/// Has the future that `begin` makes there run to its end.
pub fn task<F: Future<Output = ()> + 'static>(begin: impl FnOnce() -> F + Send + 'static) -> Task {
    Box::new(move || Box::pin(begin()))
}

/// Where a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a background thread: writing back, commits, cleaning, which wait for devices most of the time. It may use the processor for
    /// long as long as it yields by `sleep(Duration::ZERO)` between slices of about 100 us.
    Background,
    /// On a compute thread: compaction, scans, codecs of background work, batches on their way to a spill file. It yields by
    /// [`Env::give_way`] between slices of about 100 us.
    Compute,
    /// On any worker other than the caller's: a share of a large request that is waited for.
    Assist,
}

/// Time, chance and tasks.
pub trait Env: Send + Sync {
    /// Time since a fixed moment in the past; never goes back. Reads a clock: not for every request.
    fn now(&self) -> Duration;

    /// Like [`Env::now`], at most 100 ms old; costs one load.
    fn coarse_now(&self) -> Duration {
        self.now()
    }

    /// Completes after `duration`; at once, but after other tasks had their turn, for zero. Create and poll it on the
    /// thread of a running task.
    fn sleep(&self, duration: Duration) -> LocalFuture<()>;

    /// Ends a slice of [`Place::Compute`]: other tasks of the thread have their turn. While no worker is idle, the thread leaves nine
    /// tenths of its time to them; unless it is `hurried`, because a request waits for what it does.
    fn give_way(&self, hurried: bool) -> LocalFuture<()> {
        let _ = hurried;
        self.sleep(Duration::ZERO)
    }

    /// Runs a task to its end.
    fn spawn(&self, place: Place, task: Task);

    /// Runs a future of the calling thread to its end, on this thread; what an answer that is dropped must still finish.
    /// Dropped where the thread runs no tasks.
    fn spawn_here(&self, task: LocalFuture<()>);

    /// Workers that had nothing to do when last looked at: a hint for spreading work.
    fn idle_workers(&self) -> usize {
        0
    }

    /// 64 random bits, not for secrets.
    fn random(&self) -> u64;

    /// The number of the calling thread among those that run tasks, from 0 on: a hint for keeping work on one thread.
    fn thread_number(&self) -> usize {
        0
    }
}

/// What comes of `work` within `patience`; `None` where it takes longer, and it is dropped.
pub async fn within<T>(env: &dyn Env, patience: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut late) = (pin!(work), env.sleep(patience));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => late.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// A source of large, page-aligned memory.
pub trait Regions: Send + Sync {
    /// `bytes` of zeroed memory that costs nothing until touched; [`Kind::OutOfMemory`] where refused.
    fn map(&self, bytes: usize) -> Result<Box<dyn Region>, Kind>;

    /// The same for one owner, who gives nothing of it back before its end: in huge pages, where the system has them.
    fn map_slab(&self, bytes: usize) -> Result<Box<dyn Slab>, Kind>;

    /// So many words of zero that threads share and that cost nothing until touched, a multiple of [`WORDS_A_PAGE`];
    /// [`Kind::OutOfMemory`] where refused.
    ///
    /// [`WORDS_A_PAGE`]: crate::sync::WORDS_A_PAGE
    fn map_words(&self, count: usize) -> Result<Box<dyn Words>, Kind>;
}

/// Memory of one owner, obtained from [`Regions`]; unmapped on drop.
pub trait Slab: Send + Sync {
    /// All of it.
    fn bytes(&self) -> &[u8];

    /// The same, to be changed.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// A piece of memory obtained from [`Regions`]; unmapped on drop.
pub trait Region: Send + Sync {
    /// First byte, aligned to 4096. Valid for [`Region::len`] bytes as long as the region lives.
    fn base(&self) -> NonNull<u8>;

    /// Bytes.
    fn len(&self) -> usize;

    /// Whether the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives the memory of whole pages back to the system; they read as zero when touched again. `offset` and `len` are
    /// multiples of 4096. The caller holds no reference into them.
    fn release(&self, offset: usize, len: usize);
}
