//! What a layer has decided by itself lately, and why: a bounded record, for people.
//!
//! A decision that is made again and again by one rule counts in one entry, until it was not made for [`PAUSE`], and for [`LASTS`] at most. Its
//! figures are put into words once in [`WORDS_EVERY`], so that to note one costs a lock that nobody else wants, which is a leaf.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::Mutex;
use spillway_core::{Column, Env, Spec, Type, Unit, Value};

/// Entries kept, the latest.
const KEPT: usize = 32;

/// An entry that nothing was added to for so long is over.
const PAUSE: Duration = Duration::from_secs(5);

/// An entry is over after so long.
const LASTS: Duration = Duration::from_secs(60);

/// Time between two wordings of figures.
const WORDS_EVERY: Duration = Duration::from_secs(1);

const COLUMNS: &[Column] = &[
    Column::new("age", Unit::Seconds),
    Column::new("lasted", Unit::Seconds),
    Column::new("times", Unit::None),
    Column::new("bytes", Unit::Bytes),
    Column::new("waited", Unit::Milliseconds),
    Column::new("decision", Unit::None),
    Column::new("rule", Unit::None),
    Column::new("figures", Unit::None),
];

/// What was decided, and the rule that says so.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision(pub(crate) &'static str, pub(crate) &'static str);

/// A decision, or many of one kind.
struct Entry {
    decision: Decision,
    first: Duration,
    last: Duration,
    worded: Duration,
    times: u64,
    bytes: u64,
    waited: Duration,
    figures: String,
}

/// The record of one layer.
pub(crate) struct Decisions {
    env: Arc<dyn Env>,
    /// The latest last.
    entries: Mutex<VecDeque<Entry>>,
}

impl Decisions {
    /// Without entries.
    pub(crate) fn new(env: Arc<dyn Env>) -> Self {
        Self { env, entries: Mutex::default() }
    }

    /// What the attribute `decisions` is.
    pub(crate) const fn spec() -> Spec {
        Spec::fact(
            "decisions",
            Type::Rows(COLUMNS),
            "The latest decisions, oldest first, with their rules and the figures then: seconds since each was made last, for how many \
             seconds it was made again, how often, for how many bytes, and how long writers waited",
        )
    }

    /// Notes a decision about so many bytes.
    pub(crate) fn note(&self, decision: Decision, bytes: u64, figures: impl FnOnce() -> String) {
        self.note_wait(decision, bytes, Duration::ZERO, figures);
    }

    /// The same where writers wait for so long.
    pub(crate) fn note_wait(
        &self,
        decision: Decision,
        bytes: u64,
        waited: Duration,
        figures: impl FnOnce() -> String,
    ) {
        // Nothing waits for the record: to the checker of threads its lock and clock would only be more orders of the same.
        if cfg!(feature = "shuttle") {
            return;
        }
        if self.add(decision, bytes, waited, None) {
            return;
        }
        // Worded with nothing locked.
        let figures = figures();
        let added = self.add(decision, bytes, waited, Some(figures));
        assert!(added, "a decision with its figures is noted");
    }

    /// Adds to the entry of this decision, or another one; false where that needs its figures.
    fn add(&self, decision: Decision, bytes: u64, waited: Duration, figures: Option<String>) -> bool {
        let mut entries = self.entries.lock();
        // Read under the lock: another thread may have noted something at a later time than one that was read before.
        let now = self.env.coarse_now();
        let under_way = |entry: &&mut Entry| {
            entry.decision == decision && now < entry.last + PAUSE && now < entry.first + LASTS
        };
        let entry = entries.iter_mut().rev().find(under_way);
        match (entry, figures) {
            (Some(entry), figures) if figures.is_some() || now < entry.worded + WORDS_EVERY => {
                assert!(entry.times > 0, "an entry has been made");
                entry.last = entry.last.max(now);
                entry.times += 1;
                entry.bytes += bytes;
                entry.waited += waited;
                if let Some(figures) = figures {
                    (entry.figures, entry.worded) = (figures, now);
                }
                true
            }
            (_, None) => false,
            (_, Some(figures)) => {
                let surplus = (entries.len() + 1).saturating_sub(KEPT);
                entries.drain(..surplus);
                let (first, last, worded) = (now, now, now);
                entries.push_back(Entry { decision, first, last, worded, times: 1, bytes, waited, figures });
                assert!(entries.len() <= KEPT, "{} entries are kept", entries.len());
                true
            }
        }
    }

    /// Of the latest entry in which this was decided: the time since then, its bytes, and its rule with the figures.
    pub(crate) fn latest(&self, decided: &'static str) -> Option<(Duration, u64, String)> {
        let entries = self.entries.lock();
        let entry = entries.iter().rev().find(|entry| entry.decision.0 == decided)?;
        let ago = self.env.coarse_now().saturating_sub(entry.last);
        Some((ago, entry.bytes, format!("{}: {}", entry.decision.1, entry.figures)))
    }

    /// The entries, as the attribute shows them.
    pub(crate) fn rows(&self) -> Value {
        let now = self.env.coarse_now();
        let row = |entry: &Entry| {
            assert!(entry.times > 0 && entry.first <= entry.last, "an entry counts what has made it");
            vec![
                Value::U64(now.saturating_sub(entry.last).as_secs()),
                Value::U64((entry.last - entry.first).as_secs()),
                Value::U64(entry.times),
                Value::U64(entry.bytes),
                Value::U64(entry.waited.as_millis() as u64),
                Value::Choice(entry.decision.0),
                Value::Choice(entry.decision.1),
                Value::Text(entry.figures.clone()),
            ]
        };
        Value::Rows(self.entries.lock().iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use spillway_core::Answer;
    use spillway_sim::world::World;

    use super::*;

    const SPILL: Decision = Decision("spill", "watermark");
    const FLUSH: Decision = Decision("flush", "age");

    fn rows(decisions: &Decisions) -> Vec<Vec<Value>> {
        let Value::Rows(rows) = decisions.rows() else { panic!("rows are shown") };
        rows
    }

    fn pass(world: &Arc<World>, time: Duration) {
        world.run(Answer::Pending(world.sleep(time)));
    }

    #[test]
    fn what_goes_on_is_one_entry_and_what_begins_anew_another() {
        let world = World::new(1);
        let decisions = Decisions::new(world.clone());
        let mut worded = 0;
        for tick in 0..100u64 {
            decisions.note_wait(SPILL, 10, Duration::from_millis(2), || {
                worded += 1;
                format!("tick {tick}")
            });
            pass(&world, Duration::from_millis(100));
        }
        let [row] = &rows(&decisions)[..] else { panic!("{:?}", rows(&decisions)) };
        assert_eq!(row[2..5], [Value::U64(100), Value::U64(1000), Value::U64(200)]);
        assert!((8..=11).contains(&worded), "figures are worded once in a second, {worded} times in ten");
        assert!(matches!(&row[7], Value::Text(figures) if figures.starts_with("tick 9")), "{row:?}");
        decisions.note(Decision("slow writers", "full"), 0, || "another decision".into());
        decisions.note(SPILL, 1, || "goes on beside it".into());
        assert_eq!(rows(&decisions).len(), 2);
        pass(&world, PAUSE + Duration::from_millis(200));
        decisions.note(SPILL, 1, || "anew".into());
        assert_eq!(rows(&decisions).len(), 3, "after a pause");
        decisions.note(Decision("spill", "age"), 1, || "by another rule".into());
        decisions.note(SPILL, 0, || unreachable!("it was worded this second"));
        assert_eq!(rows(&decisions).len(), 4, "by another rule, and then the first goes on");
        assert_eq!(decisions.latest("spill"), Some((Duration::ZERO, 1, "age: by another rule".to_owned())));
        assert_eq!(decisions.latest("refuse writes"), None);
    }

    #[test]
    fn what_goes_on_for_long_is_told_by_the_minute() {
        let world = World::new(1);
        let decisions = Decisions::new(world.clone());
        for _ in 0..180 {
            decisions.note(FLUSH, 1, || "always".into());
            pass(&world, Duration::from_secs(1));
        }
        let rows = rows(&decisions);
        assert!((3..=4).contains(&rows.len()), "{} entries of three minutes", rows.len());
        assert_eq!(rows.iter().map(|row| row[2].number().unwrap()).sum::<u64>(), 180);
    }

    #[test]
    fn only_the_latest_are_kept() {
        let world = World::new(1);
        let decisions = Decisions::new(world.clone());
        for entry in 0..100u64 {
            decisions.note(FLUSH, entry, || "now and then".into());
            pass(&world, PAUSE + Duration::from_secs(1));
        }
        let rows = rows(&decisions);
        assert_eq!(rows.len(), KEPT);
        assert_eq!(rows[KEPT - 1][3], Value::U64(99), "the latest is last");
    }
}
