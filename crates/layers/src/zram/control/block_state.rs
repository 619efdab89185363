//! `block_state`: a line for each page that a device holds, as the kernel's file of this name has them.
//!
//! ```text
//!   number of the page, time of the last access in seconds, flags; each in so many characters:
//!            304          146.000000 ..hi.n
//! ```
//!
//! | flag | |
//! | --- | --- |
//! | `s` | one repeated word |
//! | `w` | written back, or lost there |
//! | `h` | stored raw |
//! | `i` | idle |
//! | `r` | compressed by a secondary algorithm |
//! | `n` | incompressible |
//!
//! An excerpt is made of a few pages of slots, whose marks are read without a lock; so it is as old as its first line at most, and
//! the excerpts of a device that is in use need not fit each other. Reference: zram, statistics.

use std::fmt::Write;

use spillway_core::{Error, Excerpt, Value};

use crate::zram::codec::CodecIndex;
use crate::zram::device::Core;
use crate::zram::page::PAGE;
use crate::zram::pool::cell::SlotIndex;
use crate::zram::slots::mark::{Mark, SECONDS_MAX};
use crate::zram::slots::table::PAGE_SLOTS;
use crate::zram::work::Slice;

/// Bytes of a line, with its newline: as the widths below say.
const LINE_LEN: usize = 40;

/// Lines of an excerpt at most: 40 KiB.
const LINES_MAX: usize = 4 * PAGE_SLOTS as usize;

/// Units of work for a line.
const LINE: u32 = 2;

impl Core {
    /// The lines of pages from number `from` on, as many as a slice of work allows. [`spillway_core::Kind::Invalid`] without a size.
    pub(crate) fn block_state(&self, mut from: u64) -> Result<Excerpt, Error> {
        if self.size() == 0 {
            return Err(Error::invalid("there is nothing in it: set disksize first"));
        }
        let (mut text, mut slice) = (String::new(), Slice::new());
        while let Some(slots) = self.next_slots(from) {
            let lines = text.len() / LINE_LEN;
            if lines > 0 && (slice.is_over() || lines + PAGE_SLOTS as usize > LINES_MAX) {
                return Ok(excerpt(text, Some(slots.start)));
            }
            from = slots.end;
            let (now, before) = (self.env.coarse_now().as_secs(), text.len());
            let units = self.table.marks(slots, |index, mark| line(&mut text, index, mark, now));
            slice.spend(units + LINE * ((text.len() - before) / LINE_LEN) as u32);
        }
        Ok(excerpt(text, None))
    }
}

fn excerpt(mut text: String, next: Option<u64>) -> Excerpt {
    text.pop();
    Excerpt { value: Value::Text(text), next }
}

fn line(text: &mut String, index: SlotIndex, mark: Mark, now: u64) {
    let accessed = now.saturating_sub(mark.age((now & SECONDS_MAX) as u32).into());
    write!(text, "{:12} {accessed:12}.000000 ", index.0).expect("a string takes what is written");
    text.extend(flags(mark).map(|(flag, is_set)| if is_set { flag } else { '.' }));
    text.push('\n');
}

fn flags(mark: Mark) -> [(char, bool); 6] {
    let object = mark.is_stored() || mark.is_spilled();
    [
        ('s', mark.is_same()),
        ('w', mark.is_spilled() || mark.is_lost()),
        ('h', object && mark.len() == PAGE),
        ('i', mark.is_idle()),
        ('r', object && mark.codec() != CodecIndex::PRIMARY),
        ('n', mark.is_incompressible()),
    ]
}
