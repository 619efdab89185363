//! What is read ahead: sequential and strided streams among the reads of a device, several at once, and how far ahead of each.
//!
//! A stream is proven by reads that repeat a step: three that follow each other, or four at equal distances, upwards or downwards. Its
//! window doubles each time the reader comes to what was read ahead last, and starts over where some of that left memory unread.
//! Reads that belong to no stream, such as random ones, cause nothing.
//!
//! Only reads that miss have to be reported, and those that come to the begin of a window: that begin is marked by the caller.
//!
//! Few windows are under way at once ([`ReadaheadLimits::windows`]). One that finds no place is not opened: its stream stays as it was and
//! is due, and those that are due come next when a window has ended, the one that waits longest first. So no more waits than there are
//! streams that are followed, however many readers come and go. Before a piece of a window is read, ask whether it is still
//! [wanted](Readahead::wants).
//!
//! The kernel's counterpart, `mm/readahead.c`, follows one sequential stream for each open file.

use std::collections::VecDeque;
use std::ops::Range;

/// Streams that are followed.
pub const STREAMS: usize = 8;

/// Windows that are of use at once, at most: a stream has the one that its reader comes to, and the next.
pub const WINDOWS_MAX: usize = 2 * STREAMS;

/// Reads of no stream that are remembered, of which a new one may be made.
const RECENT: usize = 16;

/// Length of the first window, in reads.
const FIRST_WINDOW: u64 = 4;

/// Longest step of a strided stream, in bytes: above it steps are equal by chance more often than by intent.
const STEP_MAX: i64 = 1 << 30;

/// What may be read ahead, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct ReadaheadLimits {
    /// Size of the device.
    pub size: u64,
    /// Largest window; 0 switches it off.
    pub window_max: u64,
    /// Unit of memory. Windows end at multiples of it where they can, and a piece of a strided stream takes at least one.
    pub unit: u64,
    /// Windows that may be under way at once, 1 to [`WINDOWS_MAX`].
    pub windows: usize,
}

/// What is to be read: `count` pieces of `len` bytes, each begins `step` bytes behind the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Where the first piece begins: what the caller marks.
    pub first: u64,
    /// Bytes of a piece.
    pub len: u64,
    /// From the begin of a piece to that of the next.
    pub step: i64,
    /// Pieces.
    pub count: u64,
    /// The stream that it is for.
    stream: u64,
}

impl Ahead {
    /// The pieces, in the order in which they will be wanted.
    pub fn pieces(self) -> impl Iterator<Item = Range<u64>> {
        let at = move |nth: u64| self.first.wrapping_add_signed(self.step * nth as i64);
        (0..self.count).map(move |nth| at(nth)..at(nth) + self.len)
    }
}

/// The form of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// Each read begins where the last one ended.
    Sequential,
    /// Reads of `len` bytes begin `step` bytes apart.
    Strided { step: i64, len: u64 },
}

/// A reader. Positions are those of bytes, below 2^63.
#[derive(Clone, Debug)]
struct Stream {
    /// Which it is: of all that there ever were, no other has the same.
    number: u64,
    pattern: Pattern,
    /// Where the last read that is known of began.
    last: i64,
    /// Where the next read is expected.
    next: i64,
    /// Where the first read is expected for which nothing was read ahead.
    ahead: i64,
    /// Length of the window that was read ahead last, as a distance from `next` to `ahead`.
    window: i64,
    /// The same in bytes of memory.
    bytes: u64,
    /// When it was last seen.
    tick: u64,
    /// It waits for its next window.
    due: Option<Due>,
}

/// A stream's next window may be opened.
#[derive(Clone, Copy, Debug)]
struct Due {
    /// When it first could have been.
    since: u64,
    /// Length of the last read.
    len: u64,
}

impl Stream {
    fn new(number: u64, pattern: Pattern, read: &Range<u64>) -> Self {
        let next = match pattern {
            Pattern::Sequential => read.end as i64,
            Pattern::Strided { step, .. } => read.start as i64 + step,
        };
        let last = read.start as i64;
        Self { number, pattern, last, next, ahead: next, window: 0, bytes: 0, tick: 0, due: None }
    }

    /// From one expected read to the next; a sequential one may begin at any byte.
    fn step(&self) -> i64 {
        match self.pattern {
            Pattern::Sequential => 1,
            Pattern::Strided { step, .. } => step,
        }
    }

    /// Whether a read at `start` goes on with this stream: reads in between were hits that nobody reported.
    fn expects(&self, start: i64) -> bool {
        let (way, step) = (start - self.next, self.step());
        way % step == 0 && (0..=(self.ahead - self.next) / step).contains(&(way / step))
    }

    /// The reader has come to `read`.
    fn advance(&mut self, read: &Range<u64>) {
        self.last = read.start as i64;
        self.next = match self.pattern {
            Pattern::Sequential => read.end as i64,
            Pattern::Strided { step, .. } => self.last + step,
        };
        let behind = (self.ahead - self.next) / self.step() < 0;
        self.ahead = if behind { self.next } else { self.ahead };
    }

    /// The next window, if the reader has come to the last one.
    fn open_window(&mut self, len: u64, limits: &ReadaheadLimits) -> Option<Ahead> {
        if (self.ahead - self.next).abs() > self.window {
            return None;
        }
        let bytes = match self.bytes {
            0 => FIRST_WINDOW * len.next_multiple_of(limits.unit),
            bytes => 2 * bytes,
        };
        let bytes = bytes.min(limits.window_max);
        let ahead = match self.pattern {
            Pattern::Sequential => following(self.ahead as u64, bytes, limits)?,
            Pattern::Strided { step, len } => spread(self.ahead, step, len, bytes, limits)?,
        };
        let ahead = Ahead { stream: self.number, ..ahead };
        let reach = match self.pattern {
            Pattern::Sequential => ahead.len as i64,
            Pattern::Strided { step, .. } => step * ahead.count as i64,
        };
        (self.ahead, self.window, self.bytes) = (self.ahead + reach, reach.abs(), bytes);
        Some(ahead)
    }

    /// Whether `at` was read ahead for it and not read so far.
    fn has_ahead(&self, at: i64) -> bool {
        let (low, high) = (self.next.min(self.ahead), self.next.max(self.ahead));
        (low..high).contains(&at)
    }

    /// Whether some of `piece` was read ahead for it and not passed by its reader.
    fn wants(&self, piece: &Range<u64>) -> bool {
        let (start, end) = (piece.start as i64, piece.end as i64);
        match self.pattern {
            Pattern::Strided { step, len } if step < 0 => {
                start > self.ahead && start < self.next + len as i64
            }
            _ => end > self.next && start < self.ahead,
        }
    }
}

/// A window of `bytes` from `first` on.
fn following(first: u64, bytes: u64, limits: &ReadaheadLimits) -> Option<Ahead> {
    let end = limits.size.min(first + bytes);
    let whole = end / limits.unit * limits.unit;
    let end = if whole > first && end < limits.size { whole } else { end };
    let len = end.checked_sub(first).filter(|len| *len > 0)?;
    Some(Ahead { first, len, step: 0, count: 1, stream: 0 })
}

/// A window of pieces that take `bytes` of memory together.
fn spread(first: i64, step: i64, len: u64, bytes: u64, limits: &ReadaheadLimits) -> Option<Ahead> {
    let last = limits.size.checked_sub(len)? as i64;
    let room = if step > 0 { last - first } else { first };
    let fits = |first: &i64| (0..=last).contains(first) && room >= 0;
    let first = Some(first).filter(fits)?;
    let count = (bytes / len.next_multiple_of(limits.unit)).min(room as u64 / step.unsigned_abs() + 1);
    (count > 0).then_some(Ahead { first: first as u64, len, step, count, stream: 0 })
}

/// The streams of a device.
#[derive(Clone, Debug, Default)]
pub struct Readahead {
    streams: Vec<Stream>,
    /// Reads that were part of no stream.
    recent: VecDeque<Range<u64>>,
    /// Reads that were reported.
    tick: u64,
    /// Windows that were opened and have not ended.
    under_way: usize,
}

impl Readahead {
    /// A read has missed, or come to the begin of a window: [`Readahead::open`] tells what is to be read ahead now.
    pub fn read(&mut self, read: Range<u64>, limits: &ReadaheadLimits) {
        let (len, tick) = (read.end - read.start, self.tick);
        if let Some(stream) = self.follow(&read, limits) {
            stream.due = Some(Due { since: stream.due.map_or(tick, |due| due.since), len });
        }
    }

    /// A window that is to be read now; none where none is due, or as many are under way as may be. It is under way until
    /// [`Readahead::ended`] is called for it.
    pub fn open(&mut self, limits: &ReadaheadLimits) -> Option<Ahead> {
        while self.under_way < limits.windows {
            let due = self.streams.iter_mut().filter_map(|stream| stream.due.map(|due| (due, stream)));
            let (due, stream) = due.min_by_key(|(due, _)| due.since)?;
            stream.due = None;
            let window = stream.open_window(due.len, limits);
            if window.is_some() {
                self.under_way += 1;
                return window;
            }
        }
        None
    }

    /// A window was read, or given up.
    pub fn ended(&mut self) {
        assert!(self.under_way > 0, "a window that ends was opened");
        self.under_way -= 1;
    }

    /// Windows that are under way.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether some of `piece`, which is of `window`, is still to be read: its stream is followed, and its reader has not passed it.
    pub fn wants(&self, window: &Ahead, piece: &Range<u64>) -> bool {
        self.streams.iter().any(|stream| stream.number == window.stream && stream.wants(piece))
    }

    /// Up to where what goes on with this access is expected, a sequential stream's two windows at most; its own end where it is of none.
    /// Only accesses that come to the end of what was said before have to be reported. Nothing is under way for that.
    pub fn until(&mut self, access: Range<u64>, limits: &ReadaheadLimits) -> u64 {
        let (end, len) = (access.end, access.end - access.start);
        if let Some(stream) = self.follow(&access, limits) {
            stream.open_window(len, limits);
        }
        let goes_on = |stream: &&Stream| stream.pattern == Pattern::Sequential && stream.next == end as i64;
        self.streams.iter().find(goes_on).map_or(end, |stream| stream.ahead as u64)
    }

    /// The stream that goes on with `read`, or that it proves.
    fn follow(&mut self, read: &Range<u64>, limits: &ReadaheadLimits) -> Option<&mut Stream> {
        assert!(read.start < read.end && read.end <= limits.size, "{read:?} of {}", limits.size);
        if limits.window_max == 0 {
            return None;
        }
        self.tick += 1;
        let start = read.start as i64;
        if self.streams.iter().any(|stream| stream.last == start) {
            return None;
        }
        let index = match self.streams.iter().position(|stream| stream.expects(start)) {
            Some(index) => {
                self.streams[index].advance(read);
                index
            }
            None => self.prove(read)?,
        };
        let stream = &mut self.streams[index];
        stream.tick = self.tick;
        Some(stream)
    }

    /// Where this read makes a stream of those before it: its index.
    fn prove(&mut self, read: &Range<u64>) -> Option<usize> {
        let found = self.pattern(read);
        self.recent.truncate(RECENT - 1);
        self.recent.push_front(read.clone());
        let stream = Stream::new(self.tick, found?, read);
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
            return Some(self.streams.len() - 1);
        }
        let idle = (0..STREAMS).min_by_key(|index| self.streams[*index].tick)?;
        self.streams[idle] = stream;
        Some(idle)
    }

    /// The pattern that ends with this read.
    fn pattern(&self, read: &Range<u64>) -> Option<Pattern> {
        let ending = |at: u64| self.recent.iter().find(|before| before.end == at);
        if ending(read.start).is_some_and(|before| ending(before.start).is_some()) {
            return Some(Pattern::Sequential);
        }
        let len = read.end - read.start;
        let begins = |at: i64| {
            self.recent.iter().any(|before| before.start as i64 == at && before.end - before.start == len)
        };
        let start = read.start as i64;
        let steps = self.recent.iter().map(|before| start - before.start as i64);
        let mut steps = steps.filter(|step| *step != 0 && step.abs() <= STEP_MAX);
        let step = steps.find(|step| (1..=3).all(|nth| begins(start - nth * step)))?;
        Some(Pattern::Strided { step, len })
    }

    /// What was read ahead at `at` has left memory unread: the window of its stream starts over.
    pub fn wasted(&mut self, at: u64) {
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.has_ahead(at as i64)) {
            (stream.window, stream.bytes) = (0, 0);
        }
    }

    /// What was to be read ahead at `at` cannot be: its stream ends, until other reads prove it.
    pub fn failed(&mut self, at: u64) {
        self.streams.retain(|stream| !stream.has_ahead(at as i64));
        self.recent.clear();
    }
}

#[cfg(test)]
mod tests;
