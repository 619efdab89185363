//! How far a drain is.

use spillway_core::sync::{AtomicU64, Mutex, Ordering};
use spillway_core::{Kind, mutant};

/// Laps in which clients may still write to cached blocks; afterwards they wait until a block has left.
const OPEN_LAPS: u64 = 2;

/// No drain runs.
const NEVER: u64 = u64::MAX;

/// How far a drain is. Its lock is a leaf.
pub(crate) struct Drain {
    state: Mutex<DrainState>,
    /// The lap from which on cached blocks do not change; [`NEVER`] when none runs.
    closed_from: AtomicU64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DrainState {
    /// Nobody asked, or it was asked for once and is over.
    #[default]
    Off,
    Running {
        stays_clean: bool,
        /// Asked for again meanwhile: what was written before that has to be on the origin, too, and what could not be is tried again.
        again: bool,
    },
    /// The cache is empty and stays so.
    Complete,
    Failed(Kind),
}

impl Default for Drain {
    fn default() -> Self {
        Self { state: Mutex::default(), closed_from: AtomicU64::new(NEVER) }
    }
}

impl Drain {
    /// Whether one runs. One load.
    pub(crate) fn is_running(&self) -> bool {
        self.closed_from.load(Ordering::Acquire) != NEVER
    }

    /// Whether cached blocks must not be written any more after so many laps, so that they get fewer.
    pub(crate) fn is_closed(&self, laps: u64) -> bool {
        laps >= self.closed_from.load(Ordering::Acquire)
    }

    /// Begins after `laps`; false where one runs: it is asked for again.
    pub(crate) fn begin(&self, laps: u64, stays_clean: bool) -> bool {
        let mut state = self.state.lock();
        if let DrainState::Running { stays_clean: asked, again } = &mut *state {
            *asked |= stays_clean;
            *again = true;
            return false;
        }
        *state = DrainState::Running { stays_clean, again: false };
        let before = self.closed_from.swap(laps + OPEN_LAPS, Ordering::AcqRel);
        assert_eq!(before, NEVER, "one drain at a time");
        true
    }

    /// Everything is written back, or that has failed; false if it was asked for again meanwhile.
    pub(crate) fn end(&self, result: Result<(), Kind>) -> bool {
        let mut state = self.state.lock();
        let DrainState::Running { stays_clean, again } = &mut *state else {
            unreachable!("only its own task ends it")
        };
        let again = std::mem::take(again) && !mutant::on("write_cache: end a drain that was asked for again");
        if again {
            return false;
        }
        *state = match result {
            Err(kind) => DrainState::Failed(kind),
            Ok(()) if *stays_clean => DrainState::Complete,
            Ok(()) => DrainState::Off,
        };
        let before = self.closed_from.swap(NEVER, Ordering::AcqRel);
        assert_ne!(before, NEVER, "a drain that ends has begun");
        true
    }

    /// The cache is used again: a drain that runs ends without a promise, and one that has ended keeps it no more.
    pub(crate) fn forget(&self) {
        match &mut *self.state.lock() {
            DrainState::Running { stays_clean, .. } => *stays_clean = false,
            state => *state = DrainState::Off,
        }
    }

    pub(crate) fn state(&self) -> DrainState {
        self.state.lock().clone()
    }

    /// How far it is, in a word.
    pub(crate) fn word(&self) -> &'static str {
        match self.state() {
            DrainState::Running { .. } if mutant::on("write_cache: a drain is complete when it begins") => {
                "complete"
            }
            DrainState::Off => "off",
            DrainState::Running { .. } => "running",
            DrainState::Complete => "complete",
            DrainState::Failed(_) => "failed",
        }
    }
}
