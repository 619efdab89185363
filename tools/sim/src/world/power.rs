//! A machine in a world: its tasks end with its power, and those of others go on.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use spillway_core::Env;
use spillway_core::env::{LocalFuture, Place, Task};
use spillway_core::sync::{AtomicBool, AtomicUsize, Changes, Ordering};
use spillway_sim::world::World;

/// A machine as long as it has power: no task outlives that.
pub(crate) struct Power {
    world: Arc<World>,
    off: AtomicBool,
    /// Tasks that have not ended.
    tasks: AtomicUsize,
    changed: Changes,
}

impl Power {
    pub(crate) fn on(world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            off: AtomicBool::new(false),
            tasks: AtomicUsize::new(0),
            changed: Changes::default(),
        })
    }

    pub(crate) fn switch_off(&self) {
        self.off.store(true, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// Whether no task is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.tasks.load(Ordering::SeqCst) == 0
    }

    /// Waits until no task is left.
    pub(crate) async fn is_off(&self) {
        self.changed.until(|| self.is_idle().then_some(())).await;
    }

    fn begin(self: &Arc<Self>) -> Arc<Self> {
        self.tasks.fetch_add(1, Ordering::SeqCst);
        self.clone()
    }

    /// Carries out a task that has begun.
    async fn run(self: Arc<Self>, mut task: LocalFuture<()>) {
        {
            let mut off = pin!(self.changed.until(|| self.off.load(Ordering::SeqCst).then_some(())));
            std::future::poll_fn(|context| match off.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => task.as_mut().poll(context),
            })
            .await;
        }
        drop(task);
        self.tasks.fetch_sub(1, Ordering::SeqCst);
        self.changed.wake_all();
    }
}

/// The same, as what runs on it sees it.
pub(crate) struct Powered(pub(crate) Arc<Power>);

impl Env for Powered {
    fn now(&self) -> Duration {
        self.0.world.now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        self.0.world.sleep(duration)
    }

    fn spawn(&self, place: Place, task: Task) {
        let power = self.0.begin();
        self.0.world.spawn(place, Box::new(move || Box::pin(power.run(task()))));
    }

    fn spawn_here(&self, task: LocalFuture<()>) {
        self.0.world.spawn_here(Box::pin(self.0.begin().run(task)));
    }

    fn idle_workers(&self) -> usize {
        self.0.world.idle_workers()
    }

    fn random(&self) -> u64 {
        self.0.world.random()
    }
}
