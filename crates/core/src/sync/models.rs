//! How a model of threads is run: in many orders, which are the same in every run, and with a deliberate defect to see that it bites.

use std::process::Command;
use std::sync::Arc;
use std::task::Poll;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use crate::mutant;

/// The seed of [`finds`], and of models that nobody names one for.
const SEED: u64 = 1;

/// Names another seed.
const SEED_NAME: &str = "SPILLWAY_SEED";

/// Bytes of the stack of a thread or task of a model.
const STACK_BYTES: usize = 256 << 10;

/// Depth of defects that the order by priorities is to find: one less than the times at which a thread loses its own.
const DEPTH: usize = 4;

/// Names the mutant that a model run by [`finds`] has.
const MUTANT: &str = "SPILLWAY_MUTANT";

/// Runs `model` in so many orders. In half of them chance chooses the next thread at each step, which finds what needs threads to
/// alternate; in the other half it chooses priorities, which finds what needs one to stand still for long.
pub fn every_order(orders: usize, model: impl Fn() + Send + Sync + 'static) {
    let seed = match std::env::var(MUTANT) {
        Ok(name) => {
            mutant::choose(name.leak());
            SEED
        }
        Err(_) => named_seed(),
    };
    let mut config = Config::default();
    config.stack_size = STACK_BYTES;
    let model = Arc::new(model);
    let chosen = model.clone();
    Runner::new(RandomScheduler::new_from_seed(seed, orders / 2), config.clone()).run(move || chosen());
    Runner::new(PctScheduler::new_from_seed(seed, DEPTH, orders / 2), config).run(move || model());
}

/// The seed that was asked for; a model that fails is run again by the name of its test with the same one.
fn named_seed() -> u64 {
    let named = std::env::var(SEED_NAME);
    named.map_or(SEED, |seed| seed.parse().unwrap_or_else(|_| panic!("{SEED_NAME}: not a seed ({seed})")))
}

/// A test of this program passes, and fails once `mutant` is on. In a process of its own: a deadlock cannot be unwound.
pub fn finds<T: Fn()>(mutant: &str, _: T) {
    let (_, test) = std::any::type_name::<T>().split_once("::").expect("a test lies in a crate");
    let program = std::env::current_exe().expect("a test has a program");
    let run = |mutant: &str| Command::new(&program).args([test, "--exact"]).env(MUTANT, mutant).output();
    let ran = |mutant| run(mutant).expect("the program runs again");
    let sound = ran("");
    assert!(sound.status.success(), "{test} fails by itself");
    assert!(String::from_utf8_lossy(&sound.stdout).contains("1 passed"), "there is no test {test}");
    assert!(!ran(mutant).status.success(), "{mutant:?} was not noticed");
}

/// Polls twice at most.
pub async fn leave_early<T>(wait: impl Future<Output = T>) {
    let (mut wait, mut looks) = (std::pin::pin!(wait), 0);
    std::future::poll_fn(|context| {
        looks += 1;
        context.waker().wake_by_ref();
        match wait.as_mut().poll(context) {
            Poll::Pending if looks < 2 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await
}
