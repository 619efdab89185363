//! Long work that is under way, as replies, bars and the status of a service show it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Deserialize, Serialize};
use spillway_core::size::human;
use spillway_core::{Progress, WorkKind};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Long work of a device. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkRow {
    /// Name of the device.
    pub device: String,
    /// `drain`, `save`, `load`, `recover`, `format`, `restore`, `keep`, `recompress` or `write_back`.
    pub kind: String,
    /// Bytes that are done.
    pub done: u64,
    /// Bytes that are done or left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Seconds since the beginning.
    pub elapsed_seconds: f64,
    /// Bytes done in a second of late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<f64>,
    /// Estimate of the seconds left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<f64>,
}

impl From<Progress> for WorkRow {
    fn from(progress: Progress) -> Self {
        let seconds_left = progress.left().map(|left| left.as_secs_f64());
        Self {
            device: progress.device,
            kind: progress.kind.name().to_owned(),
            done: progress.amount.done,
            total: progress.amount.total,
            elapsed_seconds: progress.elapsed.as_secs_f64(),
            bytes_per_second: progress.rate,
            seconds_left,
        }
    }
}

impl WorkRow {
    /// The part that is done, from 0 to 1.
    pub fn share(&self) -> Option<f64> {
        let total = self.total.filter(|&total| total > 0)?;
        Some(self.done.min(total) as f64 / total as f64)
    }

    /// What is done to which device, such as `draining ram0`.
    pub fn title(&self) -> String {
        let known = WorkKind::of_name(&self.kind).map(WorkKind::words);
        format!("{} {}", known.unwrap_or(&self.kind), self.device)
    }

    /// Its progress for people, such as `43 %, 12 s left`; what is done where that is all that is known.
    pub fn words(&self) -> String {
        let done = self.share().map(|share| format!("{} %", (100.0 * share) as u64));
        [done.unwrap_or_else(|| human(self.done))]
            .into_iter()
            .chain(self.left_words())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The same with the amounts, such as `43 % of 4G, 120M/s, 12 s left`.
    pub fn figures(&self) -> String {
        let done = self.share().zip(self.total);
        let done = done.map(|(share, total)| format!("{} % of {}", (100.0 * share) as u64, human(total)));
        let rate = self.bytes_per_second.map(|rate| format!("{}/s", human(rate as u64)));
        let first = [done.unwrap_or_else(|| human(self.done))];
        first.into_iter().chain(rate).chain(self.left_words()).collect::<Vec<_>>().join(", ")
    }

    fn add(&mut self, other: &Self) {
        // Clients report what they like.
        self.done = self.done.saturating_add(other.done);
        self.total = self.total.zip(other.total).map(|(one, other)| one.saturating_add(other));
        self.elapsed_seconds = self.elapsed_seconds.max(other.elapsed_seconds);
        let rates = self.bytes_per_second.into_iter().chain(other.bytes_per_second);
        self.bytes_per_second = rates.reduce(|one, other| one + other);
        self.seconds_left = self.seconds_left.into_iter().chain(other.seconds_left).reduce(f64::max);
    }

    fn left_words(&self) -> Option<String> {
        Some(format!("{} left", time(self.seconds_left?)))
    }
}

/// One row for each device and kind: of several that do the same, such as two saves, what they do together, and the longest time left.
pub(super) fn sums(rows: Vec<WorkRow>) -> Vec<WorkRow> {
    let mut sums: BTreeMap<(String, String), WorkRow> = BTreeMap::new();
    for row in rows {
        match sums.entry((row.device.clone(), row.kind.clone())) {
            Entry::Vacant(place) => _ = place.insert(row),
            Entry::Occupied(mut sum) => sum.get_mut().add(&row),
        }
    }
    sums.into_values().collect()
}

/// All that is under way, such as `draining ram0: 43 %, 12 s left`; `None` where nothing is.
pub fn in_words(rows: impl IntoIterator<Item = WorkRow>) -> Option<String> {
    let each = rows.into_iter().map(|row| format!("{}: {}", row.title(), row.words()));
    Some(each.collect::<Vec<_>>().join("; ")).filter(|words| !words.is_empty())
}

/// A time in one unit, or in two where the second matters.
fn time(seconds: f64) -> String {
    match seconds.ceil() as u64 {
        seconds if seconds < 2 * MINUTE => format!("{seconds} s"),
        seconds if seconds < 2 * HOUR => format!("{} min", seconds.div_ceil(MINUTE)),
        seconds if seconds < 2 * DAY => format!("{} h", seconds.div_ceil(HOUR)),
        seconds => format!("{} days", seconds.div_ceil(DAY)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: &str, done: u64, total: Option<u64>, rate: Option<f64>) -> WorkRow {
        let seconds_left = rate.zip(total).map(|(rate, total)| (total - done) as f64 / rate);
        let (device, kind) = ("ram0".to_owned(), kind.to_owned());
        WorkRow { device, kind, done, total, elapsed_seconds: 1.0, bytes_per_second: rate, seconds_left }
    }

    #[test]
    fn words_say_what_is_known() {
        let whole = row("drain", 430 << 20, Some(1000 << 20), Some((50 << 20) as f64));
        assert_eq!(whole.figures(), "43 % of 1000M, 50M/s, 12 s left");
        let untimed = row("write_back", 0, Some(10), None);
        let endless = row("load", 5 << 30, None, Some(2048.0));
        assert_eq!((untimed.figures().as_str(), endless.figures().as_str()), ("0 % of 10B", "5G, 2K/s"));
        assert_eq!(in_words([whole.clone()]).as_deref(), Some("draining ram0: 43 %, 12 s left"));
        assert_eq!(in_words([untimed, endless]).as_deref(), Some("writing back ram0: 0 %; loading ram0: 5G"));
        assert_eq!((in_words([]), row("later", 0, Some(0), None).words()), (None, "0B".into()));
        assert_eq!(row("later", 3, Some(3), None).title(), "later ram0", "a newer server's word");
    }

    #[test]
    fn works_that_do_the_same_are_one_sum() {
        let save = |done, rate| row("save", done, Some(100), Some(rate));
        let all = sums(vec![save(20, 8.0), row("drain", 1, Some(2), None), save(90, 2.0)]);
        let sum = WorkRow {
            done: 110,
            total: Some(200),
            bytes_per_second: Some(10.0),
            seconds_left: Some(10.0),
            ..save(0, 1.0)
        };
        assert_eq!(all, [row("drain", 1, Some(2), None), sum.clone()]);
        let most = sums(vec![WorkRow { done: u64::MAX, ..sum.clone() }, sum.clone()]);
        assert_eq!(most[0].done, u64::MAX, "a client may report anything");
        let unknown = sums(vec![sum, row("save", 5, None, None)]);
        assert_eq!((unknown[0].done, unknown[0].total), (115, None), "no total that is too small");
    }

    #[test]
    fn times_have_two_or_three_digits() {
        for (seconds, words) in [
            (0.0, "0 s"),
            (0.1, "1 s"),
            (119.0, "119 s"),
            (120.0, "2 min"),
            (7100.0, "119 min"),
            (7201.0, "3 h"),
            (172_000.0, "48 h"),
            (172_801.0, "3 days"),
        ] {
            assert_eq!(time(seconds), words);
        }
    }
}
