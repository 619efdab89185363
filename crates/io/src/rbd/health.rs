//! Whether a cluster answers and its pool has room, as people see it: said once when it no longer does, and once when it does again.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::health::{ROOM_AFTER, ServerHealth, ServerState};
use spillway_core::storage::ConnectionStatus;
use spillway_core::sync::{AtomicBool, Mutex, Ordering};

/// How long changes fail at once after a call was given up.
pub(super) const PAUSE: Duration = Duration::from_secs(5);

/// Why a client writes nothing any more that has lost the lock.
const TAKEN_OVER: &str = "another client has taken the image over";

/// How the cluster of one image is.
pub(super) struct Health {
    image: String,
    server: ServerHealth,
    now: Mutex<Now>,
    /// Shared with each [`LongCall`].
    long: Arc<()>,
    /// Set once it is [`ServerState::Fenced`].
    pub(super) fence: Arc<AtomicBool>,
}

/// A call that has taken too long, until it is over.
pub(super) struct LongCall {
    _counted: Arc<()>,
}

struct Now {
    /// When a call was last given up, unless the cluster has answered since.
    given_up: Option<Duration>,
    /// Until then each change is tried.
    patient_until: Duration,
    /// The cluster did not know the lock when it was asked last.
    doubted: bool,
}

/// Why nothing is written any more once the library has said that, if so.
pub(super) fn why_fenced(errno: i32, read_only: bool) -> Option<&'static str> {
    match errno {
        // A client that takes the lock over locks this one out of the cluster, or makes it lose the lock at least.
        libc::ESHUTDOWN if !read_only => Some(TAKEN_OVER),
        libc::EROFS if !read_only => Some("another client has taken the image over, or a mirror writes it"),
        // Its header is gone: what lies in no object reads as zeroes, and what is written makes objects that belong to nobody. Or a pool is
        // gone, of data or of the parent of a clone: none that is made later is that one.
        libc::ENOENT => Some("the image, its snapshot or a pool with its data was removed"),
        _ => None,
    }
}

impl Health {
    pub(super) fn new(image: String, since: Duration) -> Self {
        let server = ServerHealth::new(ServerState::Up, since);
        let now = Mutex::new(Now { given_up: None, patient_until: since, doubted: false });
        Self { image, server, now, long: Arc::default(), fence: Arc::default() }
    }

    /// A call was answered that had begun at `begun`. Where the cluster did not answer, only one that had begun before, or that asked for
    /// what no client knows by itself: what lies in no object is known. It answers again once nothing waits that has taken too long, as a part of
    /// it may be down. Who asked has heard that the lock is there.
    pub(super) fn answered(&self, begun: Duration, asked: bool, at: Duration) {
        let is_known_again = asked && std::mem::take(&mut self.now.lock().doubted);
        if is_known_again {
            tracing::info!("{}: the cluster knows the lock again", self.image);
        }
        let (state, since) = self.server.state();
        let counts = state != ServerState::Up && (asked || begun <= since);
        if !counts {
            return;
        }
        self.now.lock().given_up = None;
        let is_whole = Arc::strong_count(&self.long) == 1;
        if is_whole && let Some(lasted) = self.server.enter(ServerState::Up, at) {
            tracing::warn!("{}: the cluster answers again after {:.1} s", self.image, lasted.as_secs_f64());
        }
    }

    fn long_call(&self) -> LongCall {
        LongCall { _counted: self.long.clone() }
    }

    /// A call takes long, until the result is dropped.
    pub(super) fn silent(&self, at: Duration) -> LongCall {
        let call = self.long_call();
        if self.server.enter(ServerState::Silent, at).is_some() {
            tracing::warn!("{}: the cluster does not answer; requests wait", self.image);
        }
        call
    }

    /// A call has taken too long, and goes on until the result is dropped.
    pub(super) fn failing(&self, at: Duration) -> LongCall {
        let call = self.long_call();
        self.now.lock().given_up = Some(at);
        if self.server.enter(ServerState::Failing, at).is_some() {
            tracing::error!("{}: no answer within the origin's timeout: requests fail", self.image);
        }
        call
    }

    /// Nothing is written any more, for that reason.
    pub(super) fn fenced(&self, why: &str, at: Duration) {
        self.fence.store(true, Ordering::Release);
        if self.server.enter(ServerState::Fenced, at).is_some() {
            tracing::error!(
                "{}: fenced: {why}; nothing is written any more, and requests fail. A write cache keeps its dirty \
                 blocks on its device",
                self.image
            );
        }
    }

    /// The cluster does not know the lock of this client. That is so for a moment where librbd renews the lock under another name, because
    /// the cluster had forgotten its watch of the header; or for good. The second answer in a row tells.
    pub(super) fn denied(&self, at: Duration) {
        let is_first = {
            let mut now = self.now.lock();
            now.doubted = !now.doubted;
            now.doubted
        };
        if is_first {
            tracing::info!("{}: the cluster does not know the lock; it is asked again", self.image);
        } else {
            self.fenced(TAKEN_OVER, at);
        }
    }

    /// Whether the lock is to be asked for again soon.
    pub(super) fn is_doubted(&self) -> bool {
        self.now.lock().doubted
    }

    /// The pool has no room for a change.
    pub(super) fn refused(&self, at: Duration) {
        if self.server.refused(at) {
            tracing::error!(
                "{}: the pool is full or has reached its quota: writes that need more room fail (ENOSPC). Raise the quota or make room; \
                 what is dirty in a cache is tried again until then",
                self.image
            );
        }
    }

    /// Looks whether the pool has not refused anything for long enough.
    pub(super) fn look_for_room(&self, at: Duration) {
        if self.server.regains_room(at) {
            tracing::warn!("{}: the pool has refused no write for {} s", self.image, ROOM_AFTER.as_secs());
        }
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.fence.load(Ordering::Acquire)
    }

    /// Each change is tried until then, whatever was given up before.
    pub(super) fn wait_until(&self, at: Duration) {
        self.now.lock().patient_until = at;
    }

    /// Whether a change fails without being tried: one call was given up a short while ago, and none was answered since. Who writes many
    /// blocks back one by one would wait for each.
    pub(super) fn refuses(&self, at: Duration) -> bool {
        let is_failing = self.server.state().0 == ServerState::Failing;
        let Now { given_up, patient_until, .. } = *self.now.lock();
        is_failing && given_up.is_some_and(|given_up| (patient_until..given_up + PAUSE).contains(&at))
    }

    pub(super) fn connection(&self, at: Duration) -> ConnectionStatus {
        self.server.connection(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fenced_stays_fenced_and_a_failing_cluster_is_up_only_once_it_answers() {
        let health = Health::new("rbd:a/b".to_owned(), Duration::ZERO);
        let at = Duration::from_secs;
        let shown = |now| (health.connection(at(now)).state, health.connection(at(now)).lasts.as_secs());
        assert_eq!(shown(7), ("up", 7));
        health.silent(at(10));
        health.failing(at(20));
        health.silent(at(25));
        assert_eq!(shown(30), ("failing", 10));
        assert!(health.refuses(at(24)) && !health.refuses(at(25)), "one is tried now and then");
        health.wait_until(at(24));
        assert!(!health.refuses(at(23)) && health.refuses(at(24)), "the last ones are tried for so long");
        health.answered(at(21), false, at(30));
        assert_eq!(shown(30).0, "failing", "the client may have known that");
        health.answered(at(15), false, at(31));
        assert_eq!((shown(32), health.connection(at(32)).lost), (("up", 1), 1));
        health.fenced(TAKEN_OVER, at(40));
        health.answered(at(41), true, at(41));
        health.silent(at(42));
        assert_eq!(shown(50), ("fenced", 10));
        assert!(health.is_fenced() && !health.refuses(at(41)));
    }

    #[test]
    fn an_image_that_was_removed_or_taken_over_is_used_no_more() {
        for read_only in [false, true] {
            let why = |errno| why_fenced(errno, read_only);
            let words = why(libc::ENOENT).expect("it is gone");
            assert!(["image", "snapshot", "pool", "was removed"].iter().all(|word| words.contains(word)));
            assert_eq!([libc::ESHUTDOWN, libc::EROFS].map(|errno| why(errno).is_some()), [!read_only; 2]);
            assert_eq!([libc::EINVAL, libc::ENOSPC, libc::EIO].map(why), [None; 3]);
        }
    }

    #[test]
    fn a_lock_that_is_denied_once_is_asked_for_again() {
        let health = Health::new("rbd:a/b".to_owned(), Duration::ZERO);
        let at = Duration::from_secs;
        for second in [1, 11] {
            health.denied(at(second));
            assert!(health.is_doubted() && !health.is_fenced(), "it may be renewed");
            health.answered(at(second), false, at(second + 1));
            assert!(health.is_doubted(), "another answer says nothing of the lock");
            health.answered(at(second), true, at(second + 2));
            assert!(!health.is_doubted() && !health.is_fenced(), "it was renewed");
        }
        health.denied(at(21));
        health.silent(at(22));
        health.denied(at(23));
        assert!(health.is_fenced() && !health.is_doubted(), "nothing is asked any more");
    }

    #[test]
    fn a_pool_is_full_until_it_has_refused_nothing_for_a_while() {
        let health = Health::new("rbd:a/b".to_owned(), Duration::ZERO);
        let at = Duration::from_secs;
        let shown = |now| (health.connection(at(now)).state, health.connection(at(now)).lasts.as_secs());
        health.refused(at(10));
        health.answered(at(11), true, at(11));
        assert_eq!(shown(12), ("full", 2));
        health.refused(at(20));
        health.look_for_room(at(34));
        assert_eq!(shown(34), ("full", 24));
        health.silent(at(34));
        assert_eq!(shown(34).0, "reconnecting");
        health.answered(at(30), true, at(35));
        health.look_for_room(at(35));
        assert_eq!((shown(36), health.connection(at(36)).lost), (("up", 1), 1));
    }
}
