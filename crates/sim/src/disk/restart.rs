//! A disk that loses its power and gets it back, while everything else goes on.

use super::Disk;

impl Disk {
    /// Its machine loses its power and gets it back, while everything else goes on; its length stays. All futures of calls are gone by
    /// now.
    pub fn restart(&self) {
        let state = &mut *self.state.lock();
        if !state.cut {
            state.cache.keep_length(u64::MAX);
            state.cache.lose_power(&mut state.random);
            (state.unreported, state.ignored) = (false, None);
        }
    }

    /// Whether its plan has it fail.
    pub fn may_fail(&self) -> bool {
        self.state.lock().plan.fails()
    }

    /// Whether a sync has failed: what it was to cover no later one does.
    pub fn has_forgotten(&self) -> bool {
        self.state.lock().forgot
    }
}
