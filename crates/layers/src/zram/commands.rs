//! The commands that take long, `compact` and `reset`: done in slices on a compute thread, to their end, whether anybody waits for it or
//! not.

use std::future::Future;
use std::sync::Arc;

use spillway_core::sync::{Mutex, Ordering, WaitList};
use spillway_core::{Answer, Budget, Error, Kind, Place};
use spillway_policy::compaction::Step;

use super::config::Config;
use super::device::{Core, Zram};
use super::streams::Choice;

/// Moves objects together and returns the memory.
pub(super) fn compact(zram: &Zram) -> Answer<Result<(), Error>> {
    if zram.core.size() == 0 {
        return Answer::Done(Err(Error::invalid("there is nothing to compact: set disksize first")));
    }
    run(&zram.core, |core| async move {
        core.make_pass(Step::Pack, true).await;
        Ok(())
    })
}

/// Drops everything. The caller makes sure that no client is connected.
pub(super) fn reset(zram: &Zram) -> Answer<Result<(), Error>> {
    run(&zram.core, |core| async move { core.reset().await })
}

/// Runs `command` on a compute thread.
fn run<F>(
    core: &Arc<Core>,
    command: impl FnOnce(Arc<Core>) -> F + Send + 'static,
) -> Answer<Result<(), Error>>
where
    F: Future<Output = Result<(), Error>> + 'static,
{
    let ended = Arc::new((Mutex::new(None), WaitList::default()));
    let (own, told) = (core.clone(), ended.clone());
    let task = move || async move {
        let outcome = command(own).await;
        *told.0.lock() = Some(outcome);
        told.1.wake_all();
    };
    core.env.spawn(Place::Compute, Box::new(move || Box::pin(task())));
    Answer::pending(async move { ended.1.until(|| ended.0.lock().take()).await })
}

impl Core {
    /// [`Kind::Busy`] while another reset runs. Dropped before its end, it leaves a device that stays without a size.
    pub(super) async fn reset(&self) -> Result<(), Error> {
        self.begin_reset()?;
        self.free_all().await;
        let mut resetting = self.resetting.lock();
        self.table.resize(0).expect("a table without slots takes nothing");
        self.pages.cool();
        self.streams.set_limit(Config::default_streams());
        self.counters.clear();
        self.budget.set_limit(Budget::UNLIMITED);
        self.budget.reset_peak();
        *resetting = false;
        // Last: what the device held is room for it.
        self.choose(Choice::default())
    }

    fn begin_reset(&self) -> Result<(), Error> {
        let mut resetting = self.resetting.lock();
        if *resetting {
            return Err(Error::new(Kind::Busy, "the device is being reset already"));
        }
        *resetting = true;
        self.size.store(0, Ordering::Release);
        Ok(())
    }
}
