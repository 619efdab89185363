//! Progress of long work: drains, recovery, recompression and the like, for metrics, lists, the page and bars.
//!
//! ```text
//!   a layer, a control client -> Works::begin, Works::drain -> LongWork, dropped at the end of the work
//!                                                              |
//!   metrics, lists, status of the service  <- Progress <- Registry::progress: amount done, rate, time left
//! ```
//!
//! All amounts are bytes. Work costs an atomic store per batch, or nothing where its amount follows from what its owner counts anyway. Clocks are
//! read and rates computed by readers only. A [`Works`] of no registry, as tests of layers have it, registers nothing.
//!
//! Locks: the list, then released, and the samples of one work; both are leaves.

mod speed;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::env::Env;
use crate::sync::{AtomicU64, Mutex, Ordering};
use speed::Speed;

/// What long work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// Everything dirty of a cache is written back.
    Drain,
    /// A device is copied to an image.
    Save,
    /// An image is copied to a device.
    Load,
    /// The metadata of a cache is read.
    Recover,
    /// The metadata of a new cache is written.
    Format,
    /// A spill file is read that keeps what its device stores.
    Restore,
    /// What a device stores is written to the spill file that keeps it.
    Keep,
    /// Pages are compressed again.
    Recompress,
    /// Pages are written to the spill file, as a command or an age says.
    WriteBack,
}

/// Names in metrics and JSON, and words for people.
const NAMES: [(WorkKind, &str, &str); 9] = [
    (WorkKind::Drain, "drain", "draining"),
    (WorkKind::Save, "save", "saving"),
    (WorkKind::Load, "load", "loading"),
    (WorkKind::Recover, "recover", "recovering"),
    (WorkKind::Format, "format", "formatting"),
    (WorkKind::Restore, "restore", "restoring"),
    (WorkKind::Keep, "keep", "keeping"),
    (WorkKind::Recompress, "recompress", "recompressing"),
    (WorkKind::WriteBack, "write_back", "writing back"),
];

impl WorkKind {
    fn names(self) -> (&'static str, &'static str) {
        let (_, name, words) = NAMES.iter().find(|(kind, ..)| *kind == self).expect("each kind is listed");
        (name, words)
    }

    /// Its name in metrics and JSON, such as `write_back`.
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// Its name for people, such as `writing back`.
    pub fn words(self) -> &'static str {
        self.names().1
    }

    /// The kind of this [`WorkKind::name`].
    pub fn of_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known, _)| *known == name).map(|(kind, ..)| *kind)
    }
}

/// How much of a work is done, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Done so far.
    pub done: u64,
    /// Done and left; absent where that is not known before the end.
    pub total: Option<u64>,
}

/// Progress of a work at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Name of the device.
    pub device: String,
    /// What is done to it.
    pub kind: WorkKind,
    /// How much is done.
    pub amount: Amount,
    /// Since the beginning.
    pub elapsed: Duration,
    /// Bytes a second of late; absent before it is meaningful, and while nothing is done.
    pub rate: Option<f64>,
}

impl Progress {
    /// Estimated time to the end; absent without a total or a rate.
    pub fn left(&self) -> Option<Duration> {
        let left = self.amount.total?.saturating_sub(self.amount.done);
        Duration::try_from_secs_f64(left as f64 / self.rate?).ok()
    }
}

type Measure = Box<dyn Fn() -> Amount + Send + Sync>;

/// A work that is under way.
struct Entry {
    device: Arc<str>,
    kind: WorkKind,
    begun: Duration,
    measure: Measure,
    speed: Mutex<Speed>,
}

impl Entry {
    fn progress(&self, env: &dyn Env) -> Progress {
        let mut speed = self.speed.lock();
        // Both are read under the lock: another reader's sample is never of a later time.
        let (amount, now) = ((self.measure)(), env.now());
        let rate = speed.look(now, amount.done);
        let elapsed = now.saturating_sub(self.begun);
        Progress { device: self.device.to_string(), kind: self.kind, amount, elapsed, rate }
    }
}

/// The long work of a server that is under way.
pub struct Registry {
    env: Arc<dyn Env>,
    /// In the order in which it began.
    entries: Mutex<Vec<Arc<Entry>>>,
}

impl Registry {
    /// Without work; times are by the clock of `env`.
    pub fn new(env: Arc<dyn Env>) -> Arc<Self> {
        Arc::new(Self { env, entries: Mutex::default() })
    }

    /// Where the work of the device of this name is registered.
    pub fn of(self: &Arc<Self>, device: &str) -> Works {
        Works(Some((self.clone(), device.into())))
    }

    /// All work that is under way, in the order in which it began.
    pub fn progress(&self) -> Vec<Progress> {
        let entries = self.entries.lock().clone();
        entries.iter().map(|entry| entry.progress(&*self.env)).collect()
    }
}

/// Where the long work of one device is registered; nowhere by default.
#[derive(Clone, Default)]
pub struct Works(Option<(Arc<Registry>, Arc<str>)>);

impl fmt::Debug for Works {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Works").field(&self.0.as_ref().map(|(_, device)| device)).finish()
    }
}

impl Works {
    /// The name of that device; empty where nothing is registered.
    pub fn device(&self) -> &str {
        self.0.as_ref().map_or("", |(_, device)| device)
    }

    /// Begins work whose owner reports what is done, of `total` bytes if that is known.
    pub fn begin(&self, kind: WorkKind, total: Option<u64>) -> Counted {
        let done = Arc::new(AtomicU64::new(0));
        let counted = done.clone();
        let measure = move || {
            let done = counted.load(Ordering::Relaxed);
            Amount { done, total: total.map(|total| total.max(done)) }
        };
        Counted { done, work: self.watch(kind, measure) }
    }

    /// Begins work that ends once nothing is left: `left` says how many bytes are. They may become more meanwhile, and so does the total then.
    pub fn drain(&self, kind: WorkKind, left: impl Fn() -> u64 + Send + Sync + 'static) -> LongWork {
        let most = AtomicU64::new(0);
        self.watch(kind, move || {
            let left = left();
            let total = most.fetch_max(left, Ordering::Relaxed).max(left);
            Amount { done: total - left, total: Some(total) }
        })
    }

    /// Begins work that is measured when it is looked at.
    pub fn watch(&self, kind: WorkKind, measure: impl Fn() -> Amount + Send + Sync + 'static) -> LongWork {
        let Some((registry, device)) = &self.0 else { return LongWork(None) };
        let begun = registry.env.now();
        let speed = Mutex::new(Speed::new(begun, measure().done));
        let entry =
            Arc::new(Entry { device: device.clone(), kind, begun, measure: Box::new(measure), speed });
        registry.entries.lock().push(entry.clone());
        LongWork(Some((registry.clone(), entry)))
    }

    /// The work of this device that is under way, in the order in which it began.
    pub fn progress(&self) -> Vec<Progress> {
        let Some((registry, device)) = &self.0 else { return Vec::new() };
        let entries = registry.entries.lock().clone();
        let own = entries.iter().filter(|entry| entry.device == *device);
        own.map(|entry| entry.progress(&*registry.env)).collect()
    }
}

/// Work that is under way until this is dropped.
#[must_use = "dropped, the work is over"]
pub struct LongWork(Option<(Arc<Registry>, Arc<Entry>)>);

impl Drop for LongWork {
    fn drop(&mut self) {
        let Some((registry, entry)) = self.0.take() else { return };
        let mut entries = registry.entries.lock();
        let before = entries.len();
        entries.retain(|other| !Arc::ptr_eq(other, &entry));
        assert_eq!(entries.len() + 1, before, "work that ends was registered once");
    }
}

/// The same, of work whose owner reports what is done.
#[must_use = "dropped, the work is over"]
pub struct Counted {
    done: Arc<AtomicU64>,
    work: LongWork,
}

impl Counted {
    /// Of all bytes `done` are.
    pub fn reach(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }

    /// Its progress; `None` where it is not registered.
    pub fn progress(&self) -> Option<Progress> {
        let (registry, entry) = self.work.0.as_ref()?;
        Some(entry.progress(&*registry.env))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_clock::Clock;

    fn registry() -> (Arc<Clock>, Arc<Registry>) {
        let clock = Arc::new(Clock::default());
        (clock.clone(), Registry::new(clock))
    }

    #[test]
    fn names_are_told_apart() {
        for (kind, name, words) in NAMES {
            assert_eq!((WorkKind::of_name(name), kind.name(), kind.words()), (Some(kind), name, words));
        }
        assert_eq!(WorkKind::of_name("drains"), None);
    }

    #[test]
    fn work_is_listed_until_it_is_dropped() {
        let (clock, registry) = registry();
        let (one, other) = (registry.of("one"), registry.of("other"));
        let save = one.begin(WorkKind::Save, Some(100));
        clock.pass(Duration::from_secs(2));
        let load = other.begin(WorkKind::Load, None);
        save.reach(60);
        load.reach(7);
        let shown = registry.progress();
        let amounts: Vec<_> =
            shown.iter().map(|one| (&one.device[..], one.kind, one.amount.done, one.amount.total)).collect();
        assert_eq!(amounts, [("one", WorkKind::Save, 60, Some(100)), ("other", WorkKind::Load, 7, None)]);
        assert_eq!(
            (shown[0].rate, shown[0].left()),
            (Some(30.0), Some(Duration::from_secs_f64(40.0 / 30.0)))
        );
        assert_eq!((shown[1].rate, shown[1].left(), shown[1].elapsed), (None, None, Duration::ZERO));
        assert_eq!((other.progress().len(), other.device(), Works::default().device()), (1, "other", ""));
        drop(save);
        assert_eq!((registry.progress().len(), one.progress()), (1, vec![]));
        drop(load);
        assert_eq!(registry.progress(), []);
    }

    #[test]
    fn work_beyond_its_total_has_nothing_left() {
        let (clock, registry) = registry();
        let work = registry.of("a").begin(WorkKind::Recompress, Some(10));
        work.reach(12);
        clock.pass(Duration::from_secs(2));
        let [shown] = &registry.progress()[..] else { panic!("one work") };
        assert_eq!((shown.amount.total, shown.left()), (Some(12), Some(Duration::ZERO)));
    }

    #[test]
    fn a_drain_counts_what_became_dirty_meanwhile() {
        let (clock, registry) = registry();
        let left = Arc::new(AtomicU64::new(100));
        let source = left.clone();
        let work = registry.of("a").drain(WorkKind::Drain, move || source.load(Ordering::Relaxed));
        for (now, done, total) in [(100, 0, 100), (40, 60, 100), (120, 0, 120), (30, 90, 120), (0, 120, 120)]
        {
            left.store(now, Ordering::Relaxed);
            clock.pass(Duration::from_secs(1));
            let [shown] = &registry.progress()[..] else { panic!("one work") };
            assert_eq!(shown.amount, Amount { done, total: Some(total) });
        }
        drop(work);
    }

    #[test]
    fn without_a_registry_nothing_is_measured() {
        let works = Works::default();
        let _work = works.drain(WorkKind::Drain, || unreachable!("there is no reader"));
        works.begin(WorkKind::Save, Some(1)).reach(1);
        assert_eq!(works.progress(), []);
    }
}
