//! Emptying the cache, in bounded time: nothing new enters, then nothing that is there changes.

use std::sync::Arc;

use spillway_core::{Error, Kind, Place, mutant};

use super::cache::{Core, Drain, Opened};

/// Laps of the sweep in which clients may still write to cached blocks; afterwards they wait until a block has left.
const OPEN_LAPS: u64 = 2;

impl Opened {
    /// Whether cached blocks must not be written any more, so that they get fewer.
    pub(super) fn is_closed(&self) -> bool {
        let laps = self.index.sweep.laps;
        matches!(self.drain, Drain::Running { lap, .. } if laps >= lap + OPEN_LAPS)
    }

    /// A drain has copied everything, or failed; false if it was asked for again meanwhile.
    fn end_drain(&mut self, result: Result<(), Kind>) -> bool {
        let Drain::Running { stays_clean, again, .. } = &mut self.drain else { return true };
        let again = std::mem::take(again) && !mutant::on("write_cache: end a drain that was asked for again");
        if result.is_ok() && again {
            return false;
        }
        self.drain = match result {
            Err(kind) => Drain::Failed(kind),
            Ok(()) if *stays_clean => Drain::Complete,
            Ok(()) => Drain::Off,
        };
        true
    }

    /// A line for people and for `spillway drain`.
    pub(super) fn drain_text(&self) -> String {
        match &self.drain {
            Drain::Off => "off".into(),
            Drain::Running { total, .. } => format!("running {} {total}", self.index.used()),
            Drain::Complete => "complete".into(),
            Drain::Failed(kind) => format!("failed {}", kind.errno_name()),
        }
    }
}

impl Core {
    /// Starts to empty the cache; with `stays_clean` nothing new enters afterwards.
    pub(super) fn drain(self: &Arc<Self>, stays_clean: bool) -> Result<(), Error> {
        self.failure
            .check()
            .map_err(|kind| Error::new(kind, "the cache has failed: restart its server, then drain it"))?;
        if stays_clean {
            self.settings.cleaner.set(1)?;
        }
        let begins = self.with(|opened| {
            if let Drain::Running { stays_clean: asked, again, .. } = &mut opened.drain {
                *asked |= stays_clean;
                *again = true;
                return false;
            }
            let (total, lap) = (opened.index.used(), opened.index.sweep.laps);
            opened.drain = Drain::Running { total, lap, stays_clean, again: false };
            true
        });
        if begins {
            let core = self.clone();
            self.env.spawn(Place::Background, Box::new(move || Box::pin(async move { core.empty().await })));
        }
        Ok(())
    }

    /// The cache is used again: a drain that is under way ends without a promise, and one that has ended keeps it no more.
    pub(super) fn forget_drain(&self) {
        self.look(|opened| match &mut opened.drain {
            Drain::Running { stays_clean, .. } => *stays_clean = false,
            drain => *drain = Drain::Off,
        });
    }

    /// Waits for the end of a drain.
    pub(super) async fn drained(&self) -> Result<(), Error> {
        loop {
            let seen = self.changes.current();
            match self.with(|opened| opened.drain.clone()) {
                Drain::Running { .. } => self.changes.reached(seen + 1).await,
                Drain::Failed(kind) => {
                    return Err(Error::new(kind, "the cache could not be copied to the origin"));
                }
                Drain::Off | Drain::Complete => return Ok(()),
            }
        }
    }

    async fn empty(self: Arc<Self>) {
        loop {
            let result = self.copy_everything().await;
            let ended = self.with(|opened| opened.end_drain(result));
            if ended {
                return self.wake();
            }
        }
    }

    async fn copy_everything(self: &Arc<Self>) -> Result<(), Kind> {
        self.flush().await?;
        loop {
            let seen = self.changes.current();
            let empty = self.with(|opened| opened.index.is_empty());
            self.failure.check()?;
            if empty {
                return self.settle_arounds().await;
            }
            self.copy();
            self.changed_since(seen).await?;
        }
    }
}
