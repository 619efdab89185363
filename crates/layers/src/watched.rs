//! For tests: what a reader sees of long work while it is under way.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::progress::Amount;
use spillway_core::sync::Mutex;
use spillway_core::{Env, Place, Progress, Registry, WorkKind, task};
use spillway_sim::world::World;

/// Time between two looks.
const EVERY: Duration = Duration::from_micros(20);

/// A reader that looks again and again.
pub(crate) struct Watched {
    registry: Arc<Registry>,
    seen: Arc<Mutex<Vec<Progress>>>,
}

impl Watched {
    /// Looks from now on at all that is registered.
    pub(crate) fn new(world: &Arc<World>, registry: &Arc<Registry>) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (env, source, into) = (world.clone(), registry.clone(), seen.clone());
        let look = move || async move {
            loop {
                into.lock().extend(source.progress());
                env.sleep(EVERY).await;
            }
        };
        world.spawn(Place::Background, task(look));
        Self { registry: registry.clone(), seen }
    }

    /// Looks at the end of a work of this kind: it was seen on its way, in order, and is seen no more.
    #[track_caller]
    pub(crate) fn ended(&self, kind: WorkKind, total: u64) {
        assert_eq!(self.registry.progress(), [], "it has ended");
        let seen = std::mem::take(&mut *self.seen.lock());
        let own: Vec<Amount> = seen.iter().filter(|one| one.kind == kind).map(|one| one.amount).collect();
        assert!(own.iter().all(|amount| amount.total == Some(total)), "of {total}: {own:?}");
        assert!(own.is_sorted_by_key(|amount| amount.done), "{own:?}");
        let on_its_way = own.iter().filter(|amount| amount.done > 0 && amount.done < total).count();
        assert!(on_its_way > 0, "{kind:?} was not seen on its way: {own:?}");
    }
}
