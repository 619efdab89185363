//! A large read that a worker with nothing to do takes over, while its own goes on with the next request of its client.
//!
//! The other worker makes its slices, as far as all is in memory, and its own whatever is left. Who withdraws it takes it back, after the
//! slice that is under way.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::Mutex;
use spillway_core::{Job, Kind, Place, Request, mutant, work};

use crate::zram::codec::{CODECS, CodecIndex};
use crate::zram::device::Core;
use crate::zram::page::slots;
use crate::zram::spill::recall::Misses;
use crate::zram::work::Slice;

/// Shortest read in pages that is lent (64 KiB).
const PAGES_MIN: u64 = 16;

/// Units of a turn after which its worker is busy: it has answered another large read, or much else.
const BUSY: u64 = 100;

/// Whether lending a read of `pages` is a gain: it is large, its codec slow, its worker has done other work in this turn, and another is
/// idle. A client that waits for each read before it asks for the next one would wait for the other worker to wake; a fast codec is done
/// in the time that handing a request over takes.
pub(super) fn pays(core: &Core, pages: u64) -> bool {
    let slow = || CODECS[core.codecs.number(CodecIndex::PRIMARY)].at_once.is_none();
    pages >= PAGES_MIN && work::so_far() >= BUSY && slow() && core.env.idle_workers() > 0
}

/// The request and how many of its pages are read, between slices. Locked for as long as a slice takes.
struct Lent(Mutex<Option<(Request, usize)>>);

/// A request, what its last slice came to, and what it found missing.
pub(super) type Read = (Request, Result<usize, Kind>, Misses);

enum Step {
    Again,
    /// Nothing where the request was taken back.
    Over(Option<Read>),
}

impl Lent {
    fn slice(&self, core: &Core) -> Step {
        let mut lent = self.0.lock();
        let Some((mut request, done)) = lent.take() else { return Step::Over(None) };
        let ((first, count), mut misses) = (slots(request.range), Misses::default());
        assert!((done as u64) < count, "{done} of {count} pages of a lent read are there already");
        match core.load_some(first, done, &mut request.buf, &mut Slice::new(), &mut misses) {
            Ok(done) if (done as u64) < count && misses.is_empty() => {
                let skipped = usize::from(mutant::on("zram: skip a page between slices of a lent read"));
                *lent = Some((request, done + skipped));
                Step::Again
            }
            loaded => {
                if mutant::on("zram: answer a lent read without what is missing") {
                    misses = Misses::default();
                }
                assert!(loaded.is_err() || !misses.is_empty() || loaded == Ok(count as usize), "{loaded:?}");
                Step::Over(Some((request, loaded, misses)))
            }
        }
    }

    async fn slices(self: Arc<Self>, core: Arc<Core>) -> Option<Read> {
        loop {
            match self.slice(&core) {
                Step::Again => core.env.sleep(Duration::ZERO).await,
                Step::Over(read) => return read,
            }
        }
    }

    fn take_back(&self) -> Option<(Request, usize)> {
        self.0.lock().take()
    }
}

/// Takes the request back when its answer is dropped: nothing of a withdrawn one is at work after that.
struct Lender(Arc<Lent>);

impl Drop for Lender {
    fn drop(&mut self) {
        if !mutant::on("zram: a withdrawn read goes on") {
            drop(self.0.take_back());
        }
    }
}

/// Lends a request until no slice is left to make.
pub(super) async fn read(core: &Arc<Core>, request: Request) -> Read {
    assert!(request.buf.len() as u64 == request.range.len, "a read brings a buffer for its pages");
    let lender = Lender(Arc::new(Lent(Mutex::new(Some((request, 0))))));
    let (lent, there) = (lender.0.clone(), core.clone());
    let read = Job::spawn(&*core.env, Place::Assist, move || lent.slices(there)).await.flatten();
    let left = || lender.0.take_back().map(|(request, done)| (request, Ok(done), Misses::default()));
    read.or_else(left).expect("a request is read or left")
}
