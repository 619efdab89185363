//! The USB stick: one request after another, a time for each byte, and one more for each request that does not go on where the last ended.

use std::collections::VecDeque;
use std::ops::Range;

use spillway_core::random::Random;

use super::time::SECOND;

/// Requests that wait or are carried out, from which on write-back waits.
const QUEUE: usize = 128;

/// How fast it is.
#[derive(Clone, Copy)]
pub(super) struct Speed {
    pub(super) bytes_per_second: f64,
    /// Nanoseconds for a request elsewhere.
    pub(super) seek: u64,
}

/// Pages on their way, which follow each other on the stick.
pub(super) struct Request {
    /// Where they lie, in pages.
    pub(super) at: Range<u64>,
    /// The pages of memory that are clean once it has ended.
    pub(super) pages: Vec<u32>,
}

pub(super) struct Stick {
    speed: Speed,
    queue: VecDeque<Request>,
    /// Where the last request ended.
    head: u64,
    /// When the first of the queue ends.
    pub(super) ends: Option<u64>,
    pub(super) seeks: u64,
    random: Random,
}

impl Stick {
    pub(super) fn new(speed: Speed, random: Random) -> Self {
        Self { speed, queue: VecDeque::new(), head: 0, ends: None, seeks: 0, random }
    }

    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn submit(&mut self, now: u64, request: Request) {
        assert!(!request.at.is_empty(), "a request has pages");
        self.queue.push_back(request);
        if self.ends.is_none() {
            self.begin(now);
        }
    }

    /// The first request has ended.
    pub(super) fn end(&mut self, now: u64) -> Request {
        let request = self.queue.pop_front().expect("one is carried out");
        self.head = request.at.end;
        self.ends = None;
        if !self.queue.is_empty() {
            self.begin(now);
        }
        request
    }

    fn begin(&mut self, now: u64) {
        let range = self.queue[0].at.clone();
        let bytes = (range.end - range.start) as f64 * 4096.0;
        let mut time = (bytes * SECOND as f64 / self.speed.bytes_per_second) as u64;
        if range.start != self.head {
            self.seeks += 1;
            // No two seeks of a stick take the same time: from 3/4 to 5/4.
            time += self.speed.seek * (768 + self.random.below(513)) / 1024;
        }
        self.ends = Some(now + time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried_out(requests: &[(u64, u64)]) -> (u64, u64) {
        let speed = Speed { bytes_per_second: 4096.0, seek: 1000 * SECOND };
        let mut stick = Stick::new(speed, Random(1));
        for (at, pages) in requests {
            stick.submit(0, Request { at: *at..at + pages, pages: Vec::new() });
        }
        let mut now = 0;
        while let Some(ends) = stick.ends {
            now = ends;
            stick.end(now);
        }
        assert!(stick.is_idle());
        (now / SECOND, stick.seeks)
    }

    #[test]
    fn what_follows_costs_its_bytes_and_what_does_not_a_seek() {
        assert_eq!(carried_out(&[(0, 2), (2, 3)]), (5, 0));
        let (time, seeks) = carried_out(&[(0, 1), (10, 1), (1, 1)]);
        assert_eq!(seeks, 2);
        assert!((1503..=2503).contains(&time), "{time} s");
    }
}
