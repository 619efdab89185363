//! What a look has found of a device, and how fast its counters have grown since the look before.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value as Json;
use spillway_export::control::{AttributeRow, DeviceRow, Shown};

/// A device of a server: the id of the server's process, and the name.
pub(super) type DeviceKey = (u32, String);

/// What a look has found of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// When, from any fixed time on.
    pub(super) at: Duration,
    /// How its server lists it.
    pub(super) row: DeviceRow,
    /// The declarations of its attributes, from the top part to the origin.
    pub(super) attributes: Rc<[AttributeRow]>,
    /// The values of its attributes by name.
    pub(super) values: BTreeMap<String, Shown>,
}

impl Sample {
    /// Whether its server has ever answered: each device has a stack.
    pub(super) fn is_known(&self) -> bool {
        !self.row.stack.is_empty()
    }

    /// An attribute that is a number, or switched on (1) or off (0).
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        number(&self.values.get(name)?.value)
    }

    /// The same of a part. Names that a part above has too begin with the part.
    pub(super) fn number_of(&self, part: &str, name: &str) -> Option<f64> {
        self.number(&format!("{part}.{name}")).or_else(|| self.number(name))
    }

    /// Attributes that have this name in any part, with what part that is.
    pub(super) fn every<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a AttributeRow, &'a Shown)> {
        let named = self.attributes.iter().filter(move |row| own_name(row) == name);
        named.filter_map(|row| Some((row, self.values.get(&row.name)?)))
    }
}

/// The name of an attribute in its part.
pub(super) fn own_name(row: &AttributeRow) -> &str {
    row.name.strip_prefix(&row.part).and_then(|rest| rest.strip_prefix('.')).unwrap_or(&row.name)
}

/// A value as a number, if it is one.
pub(super) fn number(value: &Json) -> Option<f64> {
    value.as_f64().or_else(|| value.as_bool().map(|on| f64::from(u8::from(on))))
}

/// How fast a counter has grown in so many seconds. One that went down belongs to another server, or was cleared: it has no rate.
pub(super) fn rate(before: f64, now: f64, seconds: f64) -> Option<f64> {
    (seconds > 0.0 && now >= before).then(|| (now - before) / seconds)
}

/// A device as the latest look has it.
#[derive(Clone, Debug)]
pub(super) struct ObservedDevice {
    /// Which one it is.
    pub(super) key: DeviceKey,
    /// What was found last.
    pub(super) now: Rc<Sample>,
    /// What the look before has found. None after the first look, and of a server that is silent.
    pub(super) before: Option<Rc<Sample>>,
    /// How long its server has not answered.
    pub(super) silent: Option<Duration>,
    /// Bytes of memory that its server may use; 0 where that is not known.
    pub(super) budget: u64,
}

impl ObservedDevice {
    /// How fast a figure has grown since the look before, a second.
    pub(super) fn rate(&self, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let before = self.before.as_deref()?;
        let seconds = self.now.at.saturating_sub(before.at).as_secs_f64();
        rate(of(before)?, of(&self.now)?, seconds)
    }
}

#[cfg(test)]
pub(in crate::client::top) mod tests {
    use super::*;
    use serde_json::json;

    /// A device with these parts and numbers, at so many seconds.
    pub(in crate::client::top) fn sample(
        seconds: u64,
        row: DeviceRow,
        values: &[(&str, &str, Json)],
    ) -> Sample {
        let declared = values.iter().map(|(part, name, _)| AttributeRow {
            name: (*name).into(),
            part: (*part).into(),
            role: "counter".into(),
            readable: true,
            ..Default::default()
        });
        let shown = values.iter().map(|(_, name, value)| {
            let text = value.to_string();
            ((*name).to_owned(), Shown { name: (*name).into(), value: value.clone(), text, next: None })
        });
        Sample {
            at: Duration::from_secs(seconds),
            row,
            attributes: declared.collect(),
            values: shown.collect(),
        }
    }

    /// A device between two looks.
    pub(in crate::client::top) fn device(before: Option<Sample>, now: Sample) -> ObservedDevice {
        let key = (7, now.row.name.clone());
        ObservedDevice { key, now: Rc::new(now), before: before.map(Rc::new), silent: None, budget: 1 << 30 }
    }

    #[test]
    fn a_rate_is_the_growth_in_a_second() {
        assert_eq!(rate(100.0, 300.0, 2.0), Some(100.0));
        assert_eq!(rate(5.0, 5.0, 0.1), Some(0.0));
    }

    #[test]
    fn a_counter_that_went_down_has_no_rate() {
        assert_eq!([rate(300.0, 100.0, 2.0), rate(1.0, 2.0, 0.0)], [None; 2]);
        let at = |seconds, value: u64| {
            sample(seconds, DeviceRow::default(), &[("zram", "num_reads", json!(value))])
        };
        let of = |now: &Sample| now.number("num_reads");
        assert_eq!(device(Some(at(1, 10)), at(3, 30)).rate(of), Some(10.0));
        assert_eq!(device(Some(at(1, 30)), at(3, 10)).rate(of), None);
        assert_eq!(device(None, at(3, 10)).rate(of), None, "a first look has none");
        assert_eq!(device(Some(at(3, 10)), at(3, 20)).rate(of), None, "no time has gone by");
        assert_eq!(device(Some(sample(1, DeviceRow::default(), &[])), at(3, 20)).rate(of), None);
    }

    #[test]
    fn parts_have_numbers_of_their_own() {
        let values = [
            ("page_cache", "read_bytes", json!(7)),
            ("write_cache", "blocks", json!(8)),
            ("write_cache", "write_cache.read_bytes", json!(9)),
        ];
        let sample = sample(0, DeviceRow::default(), &values);
        assert_eq!(sample.number_of("page_cache", "read_bytes"), Some(7.0));
        assert_eq!(sample.number_of("write_cache", "read_bytes"), Some(9.0));
        assert_eq!(sample.number_of("write_cache", "blocks"), Some(8.0));
        let every: Vec<_> =
            sample.every("read_bytes").map(|(row, shown)| (&row.part[..], shown.value.clone())).collect();
        assert_eq!(every, [("page_cache", json!(7)), ("write_cache", json!(9))]);
    }
}
