//! Recompression: pages in memory are compressed again, with a secondary codec that takes longer and makes them smaller.
//!
//! ```text
//!   pick, and copy out under the slot's lock -> decompress -> compress -> the slot holds the new object, unless it was written
//!                                                                         meanwhile; the old one is freed
//! ```
//!
//! A page that gets no smaller stays as it is; if not even the strongest codec has helped, it is marked as incompressible, until it is
//! written. Readers do not matter. Reference: zram, recompression.

use std::ops::Range;
use std::sync::Arc;

use spillway_core::{Error, Kind, WorkKind, mutant};
use spillway_policy::size_classes::COMPRESSED_BYTES_MAX;

use crate::zram::codec::CodecIndex;
use crate::zram::codec::encoder::Encoder;
use crate::zram::control::algorithms::pair;
use crate::zram::control::scan::PageFilter;
use crate::zram::device::{Core, Count};
use crate::zram::page::PAGE;
use crate::zram::pool::cell::{Scratch, SlotIndex};
use crate::zram::slots::mark::{Mark, Slot};
use crate::zram::slots::picked::{PickOutcome, PublishIf};
use crate::zram::work::{self, Slice};

/// Bytes by which objects differ of which one is as good as the other.
const BUCKET_BYTES: usize = 64;
const BUCKETS: usize = PAGE / BUCKET_BYTES + 1;

/// Which pages are compressed again, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecompressOrder {
    pages: PageFilter,
    /// Seconds since the last access, at least.
    age: u32,
    /// Bytes of an object that is worth it, at least; what is made of it has fewer.
    threshold: usize,
    target: CodecIndex,
    /// Attempts.
    pages_max: u64,
    /// An attempt counts as an access.
    clears_idle: bool,
}

impl RecompressOrder {
    /// What was written to `recompress` says. [`Kind::Invalid`] for what is not understood, and for a codec that is not in use.
    pub(crate) fn parse(core: &Core, text: &str) -> Result<Self, Error> {
        let (mut algo, mut priority) = (None, None);
        let mut order = Self {
            pages: PageFilter::All,
            age: 0,
            threshold: 0,
            target: CodecIndex(1),
            pages_max: u64::MAX,
            clears_idle: true,
        };
        for word in text.split_whitespace() {
            match pair(word)? {
                ("type", value) => order.pages = pages(value)?,
                ("max_pages", value) => order.pages_max = number(word, value)?,
                ("threshold", value) => order.threshold = threshold(word, value)?,
                ("algo", value) => algo = Some(value),
                ("priority", value) => priority = Some(value),
                // The kernel passes over what a later one of its kind may know.
                _ => {}
            }
        }
        (order.target, _) = core.target(algo, priority, 1)?;
        Ok(order)
    }

    /// All pages that were not accessed for `age` seconds, with the strongest codec; `None` without one.
    pub(crate) fn aged(core: &Core, age: u32) -> Option<Self> {
        let (target, _) = core.codecs.secondaries().pop()?;
        Some(Self {
            pages: PageFilter::All,
            age,
            threshold: 0,
            target,
            pages_max: u64::MAX,
            clears_idle: false,
        })
    }

    /// Whether its codec is in use. A reset, of which the device may have a size again by now, takes it away.
    fn can_be_carried_out(&self, core: &Core) -> bool {
        let blind = mutant::on("zram: recompress with a codec that a reset took away");
        blind || core.codecs.secondary(self.target).is_some()
    }

    /// Whether an object with this mark, which was read before `now`, is meant.
    fn means(&self, mark: Mark, now: u32) -> bool {
        let fits = mark.is_stored() && !mark.is_incompressible() && mark.codec() < self.target;
        let len = mark.len();
        fits && len >= self.threshold && mark.age(now) >= self.age && self.pages.mean(mark, len)
    }

    /// Longest result that is of use for an object of `len` bytes.
    fn len_max(&self, len: usize) -> usize {
        let below = if self.threshold == 0 { len } else { len.min(self.threshold) };
        (below - 1).min(COMPRESSED_BYTES_MAX)
    }
}

fn pages(value: &str) -> Result<PageFilter, Error> {
    let named = PageFilter::named(value).filter(|pages| *pages != PageFilter::Incompressible);
    named.ok_or_else(|| {
        Error::invalid(format!("type={value} is not understood: write idle, huge or huge_idle"))
    })
}

fn number(word: &str, value: &str) -> Result<u64, Error> {
    value.parse().map_err(|_| Error::invalid(format!("{word:?} has no number")))
}

fn threshold(word: &str, value: &str) -> Result<usize, Error> {
    match number(word, value)? as usize {
        bytes if bytes <= COMPRESSED_BYTES_MAX => Ok(bytes),
        _ => Err(Error::invalid(format!(
            "{word} is not allowed: what has more than {COMPRESSED_BYTES_MAX} bytes is stored raw"
        ))),
    }
}

/// Recompresses what `order` names, the largest objects first where not all may be tried. One run at a time.
///
/// [`Kind::NoSpace`] where there is no room for an object that would be smaller, [`Kind::ShuttingDown`] where the device ends.
pub(crate) async fn run(core: Arc<Core>, order: RecompressOrder) -> Result<(), Error> {
    let _turn = core.recompressor.turn.hold().await;
    if core.size() == 0 || !order.can_be_carried_out(&core) {
        return Ok(());
    }
    let laps = match order.pages_max {
        0 => return Ok(()),
        u64::MAX => vec![ANY_LEN],
        pages_max => largest_first(&core, &order, pages_max).await.map_err(why)?,
    };
    let (mut run, lap_bytes) = (RecompressRun::new(&core, order), core.size());
    let work = core.works().begin(WorkKind::Recompress, Some(lap_bytes * laps.len() as u64));
    for (lap, lens) in (0..).zip(laps) {
        run.lens = lens;
        let take = |slots: Range<u64>, slice: &mut Slice| {
            work.reach(lap * lap_bytes + slots.start * PAGE as u64);
            run.take_some(slots, slice)
        };
        core.walk(|| core.go_on(), take).await.map_err(why)?;
    }
    Ok(())
}

fn why(kind: Kind) -> Error {
    Error::new(
        kind,
        match kind {
            Kind::NoSpace | Kind::OutOfMemory => "there is no memory for what would be smaller",
            Kind::ShuttingDown => "the device ends",
            _ => "an object could not be decompressed",
        },
    )
}

/// Bytes that objects have in the first lap, and in a second, which tries none again: so that those tried in both are the `pages_max`
/// largest, but for less than a bucket.
async fn largest_first(
    core: &Core,
    order: &RecompressOrder,
    pages_max: u64,
) -> Result<Vec<Range<usize>>, Kind> {
    let mut pages = [0u64; BUCKETS];
    let count = |slots: Range<u64>, slice: &mut Slice| {
        let count =
            |_, mark: Mark| pages[mark.len() / BUCKET_BYTES] += u64::from(order.means(mark, core.seconds()));
        slice.count(core.table.marks(slots.clone(), count));
        Ok(slots.end)
    };
    core.walk(|| core.go_on(), count).await?;
    let mut sum = 0;
    let bucket = (0..BUCKETS).rev().find(|bucket| {
        sum += pages[*bucket];
        sum >= pages_max
    });
    let laps = |bucket: usize| {
        let (least, below) = (bucket * BUCKET_BYTES, (bucket + 1) * BUCKET_BYTES);
        vec![below..ANY_LEN.end, least..below]
    };
    Ok(bucket.map_or(vec![ANY_LEN], laps))
}

/// That of every object.
const ANY_LEN: Range<usize> = 0..usize::MAX;

/// A run on its way through the slots. The caller has the turn.
pub(crate) struct RecompressRun<'a> {
    core: &'a Core,
    order: RecompressOrder,
    encoder: Encoder,
    /// Nothing stronger than the codec of this run is in use.
    is_strongest: bool,
    /// Attempts left.
    left: u64,
    /// Bytes that objects have.
    lens: Range<usize>,
    page: Box<[u8; PAGE]>,
}

/// What was prepared for packing goes back.
impl Drop for RecompressRun<'_> {
    fn drop(&mut self) {
        self.core.pool.end_packing(&self.core.pages);
    }
}

impl<'a> RecompressRun<'a> {
    pub(crate) fn new(core: &'a Core, order: RecompressOrder) -> Self {
        let encoder = core.codecs.encoder(order.target).expect("the codec of an order is in use");
        let is_strongest = core.codecs.secondaries().last().is_some_and(|(last, _)| *last == order.target);
        let left = order.pages_max;
        Self { core, order, encoder, is_strongest, left, lens: ANY_LEN, page: Box::new([0; PAGE]) }
    }

    /// Tries what is meant in `slots`, which lie in one page, until the slice is over; returns the slot to go on with, behind all of them
    /// once no attempt is left. With an error the slot at which it arose.
    pub(crate) fn take_some(&mut self, slots: Range<u64>, slice: &mut Slice) -> Result<u64, (u64, Kind)> {
        if self.left == 0 {
            return Ok(u64::MAX);
        }
        let mut found = Vec::new();
        let units = self.core.table.marks(slots.clone(), |index, mark| {
            if self.means(mark) {
                found.push(index);
            }
        });
        slice.count(units);
        for index in found {
            let at = u64::from(index.0);
            if slice.is_over() || self.left == 0 {
                return Ok(at);
            }
            self.attempt(index, slice).map_err(|kind| (at, kind))?;
        }
        Ok(slots.end)
    }

    fn means(&self, mark: Mark) -> bool {
        // The time is asked for after the mark is known: no access is later.
        self.lens.contains(&mark.len()) && self.order.means(mark, self.core.seconds())
    }

    /// Compresses the object of a slot again, if it still is what is meant.
    fn attempt(&mut self, index: SlotIndex, slice: &mut Slice) -> Result<(), Kind> {
        let core = self.core;
        slice.count(work::SLOT);
        let mut scratch = Scratch::new();
        let Some((pick, bytes)) = core.pick(index, |mark, _| self.means(mark), &mut scratch) else {
            return Ok(());
        };
        assert!(self.left > 0, "no page is tried beyond max_pages");
        let keeps_codec = mutant::on("zram: keep the codec of what was recompressed");
        let codec = if keeps_codec { pick.codec() } else { self.encoder.codec() };
        let len = bytes.len();
        slice.count(work::COPY + core.decode(pick.codec(), bytes, &mut self.page[..])?);
        slice.count(self.encoder.units_a_page());
        let accessed = |mark: Mark| if self.order.clears_idle { mark.with_idle(false) } else { mark };
        let made = self.encoder.compress(&self.page[..], self.order.len_max(len));
        let Some(smaller) = made.filter(|made| core.pool.is_smaller(made.len(), len)) else {
            self.left -= 1;
            let helpless = self.is_strongest;
            pick.stay(|mark| if helpless { accessed(mark).with_incompressible() } else { accessed(mark) });
            return Ok(());
        };
        assert!(smaller.len() < len, "{} bytes for {len}", smaller.len());
        let cell = core.place_compressed(index, smaller)?;
        self.left -= 1;
        if pick.publish(Slot::Stored(cell, codec), PublishIf::Always, accessed) == PickOutcome::InPlace {
            core.count(Count::Recompressed, 1);
        }
        Ok(())
    }
}
