//! A server without room for more data: said once when it refuses a write, and once when it has not done so for a while.

use std::time::Duration;

use crate::sync::Mutex;

/// How long a server refuses no write before it counts as full no longer. Longer than caches pause between two tries: no answer says that there is
/// room, because a write over an older one is never refused.
pub const ROOM_AFTER: Duration = Duration::from_secs(15);

/// Whether a server has room for what is written.
#[derive(Default)]
pub struct Shortage {
    /// Where it has none: since when, and when it last refused a write.
    refusals: Mutex<Option<(Duration, Duration)>>,
}

impl Shortage {
    /// A write was refused; true for the first one, which people are told of.
    pub fn refused(&self, at: Duration) -> bool {
        let mut refusals = self.refusals.lock();
        let since = refusals.map_or(at, |(since, _)| since);
        refusals.replace((since, at)).is_none()
    }

    /// Ends it once no write was refused for [`ROOM_AFTER`]; true where this call does, which people are told of.
    pub fn ends(&self, at: Duration) -> bool {
        self.refusals.lock().take_if(|&mut (_, last)| at >= last + ROOM_AFTER).is_some()
    }

    /// Since when there is no room.
    pub fn since(&self) -> Option<Duration> {
        self.refusals.lock().map(|(since, _)| since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_until_nothing_was_refused_for_a_while() {
        let at = Duration::from_secs;
        let shortage = Shortage::default();
        assert!(shortage.since().is_none() && !shortage.ends(at(100)));
        assert!(shortage.refused(at(100)) && !shortage.refused(at(110)));
        assert!(!shortage.ends(at(124)));
        assert_eq!(shortage.since(), Some(at(100)));
        assert!(shortage.ends(at(125)) && !shortage.ends(at(126)));
        assert!(shortage.since().is_none() && shortage.refused(at(130)));
    }
}
