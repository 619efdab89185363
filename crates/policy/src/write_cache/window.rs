//! The window of writes that bypass a cache: bytes in flight and not flushed yet, for which a flush would have to wait.
//!
//! Writes are admitted as far as the window has room. A single one always is.

use std::time::Duration;

/// Bytes in the window. Callers pass its size, and the time.
#[derive(Clone, Debug, Default)]
pub struct Window {
    in_flight: u64,
    /// Bytes that have ended.
    ended: u64,
    /// Bytes of these that flushes have covered.
    flushed: u64,
    /// When the last write ended.
    ended_at: Option<Duration>,
}

impl Window {
    /// Bytes that have ended and are not flushed.
    pub fn unflushed(&self) -> u64 {
        self.ended - self.flushed
    }

    fn has_room(&self, bytes: u64, size: u64) -> bool {
        let taken = self.in_flight + self.unflushed();
        taken == 0 || taken.saturating_add(bytes) <= size
    }

    /// Admits a write of `bytes` to a window of `size` bytes if there is room.
    pub fn admit(&mut self, bytes: u64, size: u64) -> bool {
        assert!(bytes > 0, "a write has bytes");
        let admitted = self.has_room(bytes, size);
        self.in_flight += if admitted { bytes } else { 0 };
        admitted
    }

    /// A write that was admitted takes so many bytes less.
    pub fn narrow(&mut self, bytes: u64) {
        assert!(bytes <= self.in_flight, "{bytes} bytes less than {}", self.in_flight);
        self.in_flight -= bytes;
    }

    /// A write of so many bytes has ended.
    pub fn end(&mut self, now: Duration, bytes: u64) {
        self.narrow(bytes);
        self.ended += bytes;
        self.ended_at = Some(now);
    }

    /// A flush begins: bytes that it covers, for [`Window::end_flush`].
    pub fn begin_flush(&self) -> u64 {
        self.ended
    }

    /// A flush that covers `covers` bytes has succeeded.
    pub fn end_flush(&mut self, covers: u64) {
        assert!(covers <= self.ended, "a flush covers {covers} bytes of {}", self.ended);
        self.flushed = self.flushed.max(covers);
    }

    /// Time that is left of `pause` after the last write: others are to leave the device alone for so long.
    pub fn rest(&self, now: Duration, pause: Duration) -> Duration {
        self.ended_at.map_or(Duration::ZERO, |at| (at + pause).saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn one_write_is_always_admitted_others_as_far_as_there_is_room() {
        let mut window = Window::default();
        assert!(window.has_room(1 << 30, 100), "one write always");
        assert!(window.admit(10, 100));
        assert!(window.has_room(90, 100) && !window.has_room(91, 100));
        window.end(MS(400), 10);
        assert!(!window.has_room(91, 100), "what has ended is not flushed");
        let covers = window.begin_flush();
        assert!(window.admit(10, 100));
        window.end(MS(400), 10);
        window.end_flush(covers);
        assert_eq!(window.unflushed(), 10, "what ended meanwhile");
        window.end_flush(window.begin_flush());
        assert!(window.has_room(1000, 100), "one write always");
    }

    #[test]
    fn others_rest_after_a_write() {
        let mut window = Window::default();
        assert_eq!(window.rest(MS(10), MS(3000)), MS(0));
        assert!(window.admit(512, 1));
        window.end(MS(1000), 512);
        assert_eq!(window.rest(MS(1500), MS(3000)), MS(2500));
        assert_eq!(window.rest(MS(4000), MS(3000)), MS(0));
    }

    proptest! {
        /// Whatever happens, the window is exceeded by single writes only, and with a flush after each end all are admitted at last.
        #[test]
        fn everybody_is_admitted(sizes in prop::collection::vec(1u64..150, 1..40)) {
            let (mut window, mut running) = (Window::default(), Vec::new());
            for (nth, &bytes) in sizes.iter().enumerate() {
                if nth % 3 == 2 && let Some(bytes) = running.pop() {
                    window.end(MS(0), bytes);
                }
                while !window.admit(bytes, 100) {
                    let ended = running.pop();
                    prop_assert!(ended.is_some() || window.unflushed() > 0, "nobody is admitted to an empty window");
                    ended.into_iter().for_each(|bytes| window.end(MS(0), bytes));
                    window.end_flush(window.begin_flush());
                }
                running.push(bytes);
                prop_assert!(running.len() == 1 || running.iter().sum::<u64>() + window.unflushed() <= 100);
            }
            running.drain(..).for_each(|bytes| window.end(MS(0), bytes));
            window.end_flush(window.begin_flush());
            prop_assert_eq!((window.in_flight, window.unflushed()), (0, 0));
        }
    }
}
