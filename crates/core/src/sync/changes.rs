//! Changes that tasks wait for.

use super::watermark::Watermark;
use crate::mutant;

/// Changes of something that tasks look at: a task that finds nothing looks again after each change, once.
///
/// Who changes it calls [`Changes::wake_all`] afterwards. The changes are counted, and the count is read before each look, here and
/// nowhere else: so a change that a look misses is followed by another.
#[derive(Default)]
pub struct Changes(Watermark);

impl Changes {
    /// Something has changed.
    pub fn wake_all(&self) {
        self.0.step();
    }

    /// Waits for what `look` gives.
    pub async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // In this order: a change that the look misses is counted after this number.
            let mut seen = self.0.current();
            if let Some(found) = look() {
                return found;
            }
            if mutant::on("changes: read the number after the look") {
                seen = self.0.current();
            }
            self.0.reached(seen + 1).await;
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::models::{every_order, finds};
    use crate::sync::{AtomicU64, Ordering};
    use shuttle::future::block_on;
    use shuttle::thread;
    use std::sync::Arc;

    #[test]
    fn who_waits_for_what_comes_with_a_change_finds_it() {
        every_order(2000, || {
            let shared = Arc::new((Changes::default(), AtomicU64::new(0)));
            let changes = [(); 2].map(|()| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.fetch_add(1, Ordering::SeqCst);
                    shared.0.wake_all();
                })
            });
            let both = || (shared.1.load(Ordering::SeqCst) == 2).then_some("both");
            assert_eq!(block_on(shared.0.until(both)), "both");
            changes.into_iter().for_each(|thread| thread.join().expect("a change is made"));
        });
    }

    #[test]
    fn the_checker_finds_a_number_that_is_read_after_the_look() {
        finds("changes: read the number after the look", who_waits_for_what_comes_with_a_change_finds_it);
    }
}
