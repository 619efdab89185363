//! How fast the two ends of a conversation are, and who is late.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use spillway_core::random::Random;
use spillway_core::work::{self, Turn};
use spillway_core::{Env, LocalFuture};

use crate::world::World;

/// How fast both ends are.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Units of work of a turn of the server.
    pub turn: u32,
    /// The longest that one of them is late.
    pub delay: Duration,
}

/// The chance of a conversation. Clones are handles to the same.
#[derive(Clone)]
pub(crate) struct Chance(Rc<RefCell<Random>>);

impl Chance {
    /// That of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(Random(seed))))
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.0.borrow_mut().below(bound)
    }
}

/// The turns and the delays of one end.
pub(crate) struct Tempo {
    world: Arc<World>,
    chance: Chance,
    pace: Pace,
    /// Its thread has other things to do.
    late: Option<LocalFuture<()>>,
}

impl Tempo {
    pub(crate) fn new(world: &Arc<World>, chance: &Chance, pace: Pace) -> Self {
        Self { world: world.clone(), chance: chance.clone(), pace, late: None }
    }

    fn delay(&self) -> LocalFuture<()> {
        let nanos = self.chance.below(self.pace.delay.as_nanos() as u64 + 1);
        self.world.sleep(Duration::from_nanos(nanos))
    }

    /// Begins a turn of a task, unless that is late, one time in eight. It is woken then.
    pub(crate) fn turn(&mut self, context: &mut Context<'_>) -> Option<Turn> {
        if self.late.is_none() && self.chance.below(8) == 0 {
            self.late = Some(self.delay());
        }
        self.late.take_if(|late| late.as_mut().poll(context).is_ready());
        self.late.is_none().then(|| work::turn(self.pace.turn))
    }

    /// Waits, one time in four.
    pub(crate) async fn be_late(&self) {
        if self.chance.below(4) == 0 {
            self.delay().await;
        }
    }
}
