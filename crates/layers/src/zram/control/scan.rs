//! Which pages a command means: the words of `writeback` and `idle`, as the kernel reads them.

use std::ops::Range;

use spillway_core::{Error, Kind};

use crate::zram::page::PAGE;
use crate::zram::slots::mark::Mark;

/// Which of the pages that lie in memory are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageFilter {
    All,
    /// Not accessed since they were marked.
    Idle,
    /// Stored raw.
    Huge,
    HugeIdle,
    /// No algorithm has made them smaller.
    Incompressible,
}

impl PageFilter {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "idle" => PageFilter::Idle,
            "huge" => PageFilter::Huge,
            "huge_idle" => PageFilter::HugeIdle,
            "incompressible" => PageFilter::Incompressible,
            _ => return None,
        })
    }

    /// Whether an object of `len` bytes, whose slot has this mark, is meant. What is deferred was written after the command had
    /// begun.
    pub(crate) fn mean(self, mark: Mark, len: usize) -> bool {
        let huge = len == PAGE;
        match self {
            _ if mark.is_deferred() => false,
            PageFilter::All => true,
            PageFilter::Idle => mark.is_idle(),
            PageFilter::Huge => huge,
            PageFilter::HugeIdle => huge && mark.is_idle(),
            PageFilter::Incompressible => mark.is_incompressible(),
        }
    }
}

/// Pages to look for, and the slots to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotScan {
    pub(crate) pages: PageFilter,
    pub(crate) slots: Range<u64>,
}

/// What was written to `writeback` says, of a device with `slots`. A mode alone, or after `type=`, ends it, and means the last range
/// before it or else the whole device; each `page_index=` and `page_indexes=` before it is a scan of its own.
///
/// [`Kind::Invalid`] for what is not understood, [`Kind::Range`] for slots that are not there.
pub(crate) fn scans(text: &str, slots: u64) -> Result<Vec<SlotScan>, Error> {
    let (mut scans, mut range) = (Vec::new(), 0..slots);
    for word in text.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or(("type", word));
        match key {
            "type" => {
                let pages = PageFilter::named(value).ok_or_else(|| unknown(word))?;
                scans.push(SlotScan { pages, slots: range });
                return Ok(scans);
            }
            "page_index" => {
                let index = number(value)?;
                range = within(index, index, slots)?;
            }
            "page_indexes" => {
                let (low, high) = value.split_once('-').ok_or_else(|| {
                    Error::invalid(format!("page_indexes={value} is no range: write page_indexes=LOW-HIGH"))
                })?;
                range = within(number(low)?, number(high)?, slots)?;
            }
            // The kernel passes over what a later one of its kind may know.
            _ => continue,
        }
        scans.push(SlotScan { pages: PageFilter::All, slots: range.clone() });
    }
    Ok(scans)
}

fn within(low: u64, high: u64, slots: u64) -> Result<Range<u64>, Error> {
    if low <= high && high < slots {
        return Ok(low..high + 1);
    }
    let last = slots.saturating_sub(1);
    Err(Error::new(Kind::Range, format!("pages {low} to {high} are not there: the device has 0 to {last}")))
}

fn number(text: &str) -> Result<u64, Error> {
    text.parse().map_err(|_| Error::invalid(format!("{text:?} is no number of a page")))
}

fn unknown(word: &str) -> Error {
    Error::invalid(format!(
        "{word:?} is not understood: write huge, idle, huge_idle, incompressible, page_index=N or page_indexes=LOW-HIGH"
    ))
}

/// What was written to `idle` says: the least age of pages that are idle, in seconds; 0 for all of them. A page was not accessed for so many
/// seconds once its age, which is rounded to either side, is more than that.
pub(crate) fn idle_age(text: &str) -> Result<u32, Error> {
    let text = text.trim();
    let age = if text == "all" { Some(0) } else { of_any_base(text).map(|age| age.saturating_add(1)) };
    age.ok_or_else(|| Error::invalid(format!("{text:?} is not allowed: write all, or an age in seconds")))
}

/// A number as the kernel reads one of any base: `0x` or `0` before its digits say which.
fn of_any_base(text: &str) -> Option<u32> {
    let (radix, digits) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &text[2..]),
        [b'0', _, ..] => (8, &text[1..]),
        _ => (10, text),
    };
    u32::from_str_radix(digits, radix).ok().filter(|_| radix == 10 || !digits.starts_with('+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Kind {
        scans(text, 100).unwrap_err().kind
    }

    fn scan(pages: PageFilter, slots: Range<u64>) -> SlotScan {
        SlotScan { pages, slots }
    }

    #[test]
    fn modes_end_the_words_and_ranges_add_up() {
        assert_eq!(scans("idle", 100), Ok(vec![scan(PageFilter::Idle, 0..100)]));
        assert_eq!(scans(" type=huge_idle nonsense\n", 100), Ok(vec![scan(PageFilter::HugeIdle, 0..100)]));
        assert_eq!(
            scans("page_index=3 page_indexes=10-19 huge page_index=1", 100),
            Ok(vec![
                scan(PageFilter::All, 3..4),
                scan(PageFilter::All, 10..20),
                scan(PageFilter::Huge, 10..20)
            ])
        );
        assert_eq!(scans("later=1 incompressible", 9), Ok(vec![scan(PageFilter::Incompressible, 0..9)]));
        assert_eq!(scans("", 100), Ok(vec![]), "nothing is asked for");
    }

    #[test]
    fn what_is_wrong_has_the_kernels_errno() {
        for text in ["old", "type=", "page_index=x", "page_indexes=5", "page_index=-1", "page_indexes=1-2-3"]
        {
            assert_eq!(kind(text), Kind::Invalid, "{text}");
        }
        for text in ["page_index=100", "page_indexes=5-4", "page_indexes=0-100"] {
            assert_eq!(kind(text), Kind::Range, "{text}");
        }
    }

    #[test]
    fn all_pages_are_idle_or_those_of_an_age() {
        let ages = ["all", "3600\n", "0", "0x10", "010", "4294967295"].map(|text| idle_age(text).unwrap());
        assert_eq!(ages, [0, 3601, 1, 17, 9, u32::MAX]);
        for text in ["", "al", "-1", "1.5", "4294967296", "0x", "08", "0+1"] {
            assert_eq!(idle_age(text).unwrap_err().kind, Kind::Invalid, "{text}");
        }
    }
}
