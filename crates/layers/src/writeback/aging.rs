//! Ages of dirty data: a timer looks at them now and then, and has the engine write back what is too old.

use std::sync::{Arc, Weak};
use std::time::Duration;

use spillway_core::Env;
use spillway_core::sync::Mutex;
use spillway_policy::ages::Ages;

use super::{Source, Timer, Writeback};

/// Ages are looked at this often in their limit, and data is too old from 15 of 16 parts of it on, as in the kernel.
const PARTS: u32 = 16;

/// Longest time between two looks.
const EVERY_MAX: Duration = Duration::from_secs(1);

/// The ages of the dirty data of `T`, which owns them.
pub(crate) struct Aging<T> {
    env: Arc<dyn Env>,
    max: fn(&T) -> Option<u64>,
    pub(crate) ages: Mutex<Ages>,
    /// To be started once data is dirty that becomes too old.
    pub(crate) timer: Timer<T>,
}

impl<T: Source> Aging<T> {
    /// Everything below `number` becomes dirty now. `max` is the limit in milliseconds, if there is one. `look` calls [`Aging::expire`],
    /// and says whether data is dirty that becomes too old.
    pub(crate) fn new(
        owner: Weak<T>,
        env: Arc<dyn Env>,
        number: u64,
        max: fn(&T) -> Option<u64>,
        look: fn(&Arc<T>) -> bool,
    ) -> Self {
        let ages = Mutex::new(Ages::new(env.coarse_now(), number));
        let every = move |owner: &T| {
            let max = Duration::from_millis(max(owner).unwrap_or_default());
            (max / PARTS).clamp(Duration::from_millis(1), EVERY_MAX)
        };
        Self { timer: Timer::new(owner, env.clone(), every, look), env, max, ages }
    }

    /// Has the engine of `owner` write back what is too old; whether there is a limit.
    pub(crate) fn expire(&self, owner: &T, engine: &Writeback<T>) -> bool {
        let Some(max) = (self.max)(owner).map(Duration::from_millis) else { return false };
        let time = self.env.coarse_now().checked_sub(max * (PARTS - 1) / PARTS);
        if time.is_some_and(|time| self.ages.lock().expire_until(time)) {
            engine.kick();
        }
        true
    }
}
