//! Looks that are made some time after they were asked for, by a task that runs only while there is something to look at.

use std::sync::{Arc, Weak};
use std::time::Duration;

use spillway_core::sync::Work;
use spillway_core::{Env, Place, mutant, task};

/// Longest sleep of a timer: a setting that changes meanwhile is seen after that.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A timer of `T`, which owns it: looks a while after it was started, and again for as long as a look says so.
///
/// Publish what is to be looked at, then start the timer. It ends before its look and begins again where that has found something: so
/// whatever was published before a start is seen by a look that follows, also where the start finds the timer about to end.
pub(crate) struct Timer<T>(Arc<State<T>>);

struct State<T> {
    owner: Weak<T>,
    env: Arc<dyn Env>,
    work: Work,
    after: Box<dyn Fn(&T) -> Duration + Send + Sync>,
    look: fn(&Arc<T>) -> bool,
}

impl<T: Send + Sync + 'static> Timer<T> {
    /// Looks by `look` so long `after` it was started, or has looked before; `look` says whether it has to look again.
    pub(crate) fn new(
        owner: Weak<T>,
        env: Arc<dyn Env>,
        after: impl Fn(&T) -> Duration + Send + Sync + 'static,
        look: fn(&Arc<T>) -> bool,
    ) -> Self {
        Self(Arc::new(State { owner, env, work: Work::default(), after: Box::new(after), look }))
    }

    /// Has it look, if it does not run. A fence and a load where it runs.
    pub(crate) fn start(&self) {
        if self.0.work.queue() {
            let (state, set) = (self.0.clone(), self.0.env.now());
            self.0.env.spawn(Place::Background, task(move || state.run(set)));
        }
    }
}

impl<T> State<T> {
    async fn run(self: Arc<Self>, mut set: Duration) {
        while let Some(left) = self.left(set) {
            self.env.sleep(left.min(SLEEP_MAX)).await;
            if self.left(set).is_some_and(|left| left.is_zero()) {
                if !self.look_again() {
                    return;
                }
                set = self.env.now();
            }
        }
    }

    /// Time until the look of a timer that was `set` then; none where its owner is gone.
    fn left(&self, set: Duration) -> Option<Duration> {
        let due = set + (self.after)(&*self.owner.upgrade()?);
        Some(due.saturating_sub(self.env.now()))
    }

    /// Ends, and looks; whether it has begun again, for another look.
    fn look_again(&self) -> bool {
        let Some(owner) = self.owner.upgrade() else { return false };
        let early = mutant::on("timer: look before it ends").then(|| (self.look)(&owner));
        self.work.end();
        early.unwrap_or_else(|| (self.look)(&owner)) && self.work.queue()
    }
}
