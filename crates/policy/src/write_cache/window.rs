//! The window of writes that bypass a cache: bytes in flight and not flushed yet, for which a flush would have to wait.
//!
//! Writers are admitted first come, first served, as far as the window has room. A single write always is.

use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes in the window, and who waits for room in it. Callers pass its size, and the time.
#[derive(Clone, Debug, Default)]
pub struct Window {
    in_flight: u64,
    /// Bytes that have ended.
    ended: u64,
    /// Bytes of these that flushes have covered.
    flushed: u64,
    /// When the last write ended.
    ended_at: Option<Duration>,
    /// Tickets of writers that wait, in the order of arrival, and the bytes that each asks for.
    line: BTreeMap<u64, u64>,
    next_ticket: u64,
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

    /// Admits a write of `bytes` to a window of `size` bytes if there is room and nobody came before. Otherwise its `ticket` says
    /// that it waits in line, until [`Window::leave_line`].
    pub fn enter(&mut self, ticket: &mut Option<u64>, bytes: u64, size: u64) -> bool {
        assert!(bytes > 0, "a write has bytes");
        let first = self.line.keys().next().copied();
        let admitted = (first.is_none() || first == *ticket) && self.has_room(bytes, size);
        if admitted {
            self.in_flight += bytes;
            return true;
        }
        let place = *ticket.get_or_insert_with(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        self.line.insert(place, bytes);
        false
    }

    /// A writer was admitted, or wants something else by now; whether the next in line fits in a window of `size` bytes.
    pub fn leave_line(&mut self, ticket: u64, size: u64) -> bool {
        self.line.remove(&ticket).expect("it stands in line");
        self.line.values().next().is_some_and(|&bytes| self.has_room(bytes, size))
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
        assert!(window.enter(&mut None, 10, 100));
        assert!(window.has_room(90, 100) && !window.has_room(91, 100));
        window.end(MS(400), 10);
        assert!(!window.has_room(91, 100), "what has ended is not flushed");
        let covers = window.begin_flush();
        assert!(window.enter(&mut None, 10, 100));
        window.end(MS(400), 10);
        window.end_flush(covers);
        assert_eq!(window.unflushed(), 10, "what ended meanwhile");
        window.end_flush(window.begin_flush());
        assert!(window.has_room(1000, 100), "one write always");
    }

    #[test]
    fn who_comes_first_is_admitted_first() {
        let mut window = Window::default();
        let (mut large, mut small) = (None, None);
        assert!(window.enter(&mut None, 10, 100));
        assert!(
            !window.enter(&mut large, 100, 100) && !window.enter(&mut small, 10, 100),
            "large came first"
        );
        assert!(!window.enter(&mut small, 10, 100), "and still does");
        window.end(MS(0), 10);
        assert!(!window.enter(&mut large, 100, 100), "what has ended is not flushed");
        window.end_flush(window.begin_flush());
        assert!(window.enter(&mut large, 90, 100));
        assert!(window.leave_line(large.unwrap(), 100), "there is room for the small one too");
        assert!(window.enter(&mut small, 10, 100));
        assert!(!window.leave_line(small.unwrap(), 100), "nobody is left");
    }

    #[test]
    fn others_rest_after_a_write() {
        let mut window = Window::default();
        assert_eq!(window.rest(MS(10), MS(3000)), MS(0));
        assert!(window.enter(&mut None, 512, 1));
        window.end(MS(1000), 512);
        assert_eq!(window.rest(MS(1500), MS(3000)), MS(2500));
        assert_eq!(window.rest(MS(4000), MS(3000)), MS(0));
    }

    proptest! {
        /// Whatever happens, nobody passes another in line, the window is exceeded by single writes only, and with a flush after
        /// each end everybody is admitted at last.
        #[test]
        fn everybody_is_admitted_in_order(sizes in prop::collection::vec(1u64..150, 1..40)) {
            let (mut window, mut waiting, mut running) = (Window::default(), std::collections::VecDeque::new(), Vec::new());
            for (nth, &bytes) in sizes.iter().enumerate() {
                let mut ticket = None;
                match window.enter(&mut ticket, bytes, 100) {
                    true => { prop_assert!(waiting.is_empty()); running.push(bytes) }
                    false => waiting.push_back((ticket, bytes)),
                }
                prop_assert!(running.len() == 1 || running.iter().sum::<u64>() <= 100);
                if nth % 3 == 2 && let Some(bytes) = running.pop() {
                    window.end(MS(0), bytes);
                }
            }
            while !waiting.is_empty() || !running.is_empty() {
                running.drain(..).for_each(|bytes| window.end(MS(0), bytes));
                window.end_flush(window.begin_flush());
                while let Some((mut ticket, bytes)) = waiting.front().copied() {
                    if !window.enter(&mut ticket, bytes, 100) { break }
                    waiting.pop_front();
                    running.push(bytes);
                    let next_fits = window.leave_line(ticket.unwrap(), 100);
                    prop_assert!(!next_fits || !waiting.is_empty());
                }
                prop_assert!(waiting.is_empty() || !running.is_empty(), "nobody is admitted to an empty window");
            }
            prop_assert_eq!((window.in_flight, window.unflushed(), window.line.len()), (0, 0, 0));
        }
    }
}
