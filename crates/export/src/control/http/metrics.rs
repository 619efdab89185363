//! What a scrape of `/metrics` gets: numbers of the server and of each device, in the text form of OpenMetrics 1.0.
//!
//! Each number is an attribute, and its declaration says what the metric is: `spillway_PART_NAME_UNIT`, with the name of the device and of its
//! part as labels. The unit is a base unit, so milliseconds are told in seconds; a name that ends with its unit has it once. The parts are the
//! kinds of origins and layers, so a name means the same on every device.

use std::collections::BTreeMap;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value as Json;
use spillway_core::{Kind, OperationLatency, Role, Type};

use super::super::catalog::Catalog;
use super::super::operations::works;
use super::super::rows::{AttributeRow, DeviceRow, LatencyRow, PassedRow, Shown};
use super::super::work::{WorkRow, sums};

/// A number as it is shown, or many.
#[derive(Clone, Debug)]
enum Number {
    Whole(u64),
    Real(f64),
    Histogram(LatencyRow),
}

impl Number {
    fn of(value: &Json, scale: f64) -> Option<Self> {
        match value {
            Json::Bool(on) => Some(Number::Whole(u64::from(*on))),
            Json::Number(number) => match number.as_u64() {
                Some(whole) if scale == 1.0 => Some(Number::Whole(whole)),
                _ => number.as_f64().map(|real| Number::Real(real * scale)),
            },
            _ => None,
        }
    }
}

type Labels = Vec<(&'static str, String)>;

/// All samples of one name.
#[derive(Debug)]
struct Family {
    help: String,
    unit: Option<Unit>,
    kind: MetricType,
    samples: Vec<(Labels, Number)>,
}

/// What was gathered so far, by name without unit, and unit.
#[derive(Debug, Default)]
struct Families(BTreeMap<(String, Option<&'static str>), Family>);

/// How a unit is told: its name, and how much one is of it.
fn told(unit: &str) -> (Option<&'static str>, f64) {
    match unit {
        "bytes" => (Some("bytes"), 1.0),
        "bytes/s" => (Some("bytes_per_second"), 1.0),
        "pages" => (Some("pages"), 1.0),
        "blocks" => (Some("blocks"), 1.0),
        "sectors" => (Some("sectors"), 1.0),
        "requests" => (Some("requests"), 1.0),
        "percent" => (Some("percent"), 1.0),
        "s" => (Some("seconds"), 1.0),
        "ms" => (Some("seconds"), 1e-3),
        "us" => (Some("seconds"), 1e-6),
        "ns" => (Some("seconds"), 1e-9),
        _ => (None, 1.0),
    }
}

impl Families {
    fn add(&mut self, name: &str, help: &str, unit: &str, kind: MetricType, labels: Labels, value: Number) {
        let unit = told(unit).0;
        let stem = unit.and_then(|unit| name.strip_suffix(unit)?.strip_suffix('_')).unwrap_or(name);
        let family = self.0.entry((stem.to_owned(), unit)).or_insert_with(|| Family {
            help: help.to_owned(),
            unit: unit.map(|unit| Unit::Other(unit.to_owned())),
            kind,
            samples: Vec::new(),
        });
        assert!(
            family.kind as usize == kind as usize && family.help == help,
            "{name} is declared in two ways"
        );
        family.samples.push((labels, value));
    }

    /// Adds what an attribute shows, of `device` if it is one's.
    fn add_attribute(&mut self, device: Option<&str>, row: &AttributeRow, value: &Json) {
        let labels = || {
            let part = device.map(|device| [("device", device.to_owned()), ("part", row.part.clone())]);
            Labels::from_iter(part.into_iter().flatten())
        };
        // Names that two parts of a device have begin with the part.
        let own = row.name.rsplit('.').next().unwrap_or(&row.name);
        let kind = row.part.trim_end_matches(|c: char| c.is_ascii_digit());
        let name = format!("{kind}_{own}");
        let role = if row.role == Role::Counter.name() { MetricType::Counter } else { MetricType::Gauge };
        match value {
            Json::Object(columns) => {
                for column in &row.columns {
                    let name = format!("{name}_{}", column.name);
                    let value = columns.get(&column.name);
                    let number = value.and_then(|value| Number::of(value, told(&column.unit).1));
                    let Some(number) = number else { continue };
                    self.add(&name, &row.help, &column.unit, MetricType::Gauge, labels(), number);
                }
            }
            _ if row.role == Role::Fact.name() && !row.choices.is_empty() => {
                for choice in &row.choices {
                    let one = [labels(), vec![("state", choice.clone())]].concat();
                    let number = Number::Whole(u64::from(value == choice));
                    self.add(&name, &row.help, "", MetricType::Gauge, one, number);
                }
            }
            // A failure: its absence is a number too, for those who compare.
            Json::Null | Json::String(_) if row.or_none && row.r#type == Type::Text.name() => {
                let errno = value.as_str().unwrap_or_default().to_owned();
                let number = Number::Whole(u64::from(!errno.is_empty()));
                let one = [labels(), vec![("errno", errno)]].concat();
                self.add(&name, &row.help, "", MetricType::Gauge, one, number);
            }
            _ => {
                let Some(number) = Number::of(value, told(&row.unit).1) else { return };
                self.add(&name, &row.help, &row.unit, role, labels(), number);
            }
        }
    }

    fn add_device(&mut self, row: &DeviceRow) {
        let device = || vec![("device", row.name.clone())];
        let mut gauge = |name: &str, help: &str, unit: &str, value| {
            self.add(name, help, unit, MetricType::Gauge, device(), Number::Whole(value));
        };
        gauge("device_size", "Size of the device", "bytes", row.disksize);
        gauge("device_clients", "Clients that are connected", "", row.clients);
        gauge("device_read_only", "Whether clients may only read", "", row.read_only.into());
        let did = &row.requests;
        for (operation, count) in [
            ("read", did.reads),
            ("write", did.writes),
            ("flush", did.flushes),
            ("discard", did.discards),
            ("write_zeroes", did.write_zeroes),
            ("other", did.others),
            ("failed", did.errors),
        ] {
            let labels = [device(), vec![("operation", operation.to_owned())]].concat();
            let help = "Requests of clients that were answered, by operation; failed are those of any that ended with an error";
            self.add("device", help, "requests", MetricType::Counter, labels, Number::Whole(count));
        }
        for (operation, bytes) in [("read", did.read_bytes), ("write", did.write_bytes)] {
            let labels = [device(), vec![("operation", operation.to_owned())]].concat();
            let help = "Bytes that clients have read and written";
            self.add("device", help, "bytes", MetricType::Counter, labels, Number::Whole(bytes));
        }
        let help = "Time from the submission of a client's request to the device until its answer is known, by operation: of one in 64 reads \
                    and writes, drawn at random, and of all others";
        self.add_latencies("device_latency", help, &device(), &row.latencies);
        for passed in &row.passed {
            self.add_passed([device(), vec![("part", passed.part.clone())]].concat(), passed);
        }
    }

    fn add_passed(&mut self, part: Labels, passed: &PassedRow) {
        for (operation, bytes) in [("read", passed.read_bytes), ("write", passed.write_bytes)] {
            let labels = [&part[..], &[("operation", operation.to_owned())]].concat();
            let help = "Bytes that the part above has read and written here";
            self.add("part", help, "bytes", MetricType::Counter, labels, Number::Whole(bytes));
        }
        let help = "Time from the submission of a request by the part above until its answer is known, by operation, of all requests";
        self.add_latencies("part_latency", help, &part, &passed.latencies);
    }

    fn add_work(&mut self, row: WorkRow) {
        let mut gauge = |name: &str, help: &str, unit: &str, value| {
            let labels = vec![("device", row.device.clone()), ("kind", row.kind.clone())];
            self.add(name, help, unit, MetricType::Gauge, labels, value);
        };
        let help = "Long work that is under way: what is done, by kind";
        gauge("work_done", help, "bytes", Number::Whole(row.done));
        let help = "Long work that is under way: what is done or left, where that is known";
        row.total.into_iter().for_each(|total| gauge("work_total", help, "bytes", Number::Whole(total)));
        let help = "Long work that is under way: an estimate of the time left, once there is one";
        row.seconds_left.into_iter().for_each(|left| gauge("work_left", help, "s", Number::Real(left)));
    }

    fn add_latencies(&mut self, name: &str, help: &str, whose: &Labels, latencies: &[LatencyRow]) {
        for latency in latencies {
            let labels = [&whose[..], &[("operation", latency.operation.clone())]].concat();
            let histogram = Number::Histogram(latency.clone());
            self.add(name, help, "s", MetricType::Histogram, labels, histogram);
        }
    }
}

/// A scrape, which gathers a device at a time: there may be many, and clients wait on the same thread.
pub(super) struct Scrape {
    families: Families,
    left: std::vec::IntoIter<DeviceRow>,
}

impl Scrape {
    pub(super) fn new(catalog: &dyn Catalog) -> Self {
        let mut families = Families::default();
        for (row, shown) in catalog.server() {
            families.add_attribute(None, &row, &shown.value);
        }
        sums(works(catalog)).into_iter().for_each(|row| families.add_work(row));
        Self { families, left: catalog.devices().into_iter() }
    }

    /// Gathers the next device; the text once there is none.
    pub(super) fn step(&mut self, catalog: &dyn Catalog) -> Option<String> {
        let Some(device) = self.left.next() else { return Some(self.text()) };
        self.families.add_device(&device);
        let readable = |row: &AttributeRow| row.readable && row.r#type != Type::Lines.name();
        // One that was stopped meanwhile is left out.
        for row in catalog.attributes(&device.name).unwrap_or_default().iter().filter(|row| readable(row)) {
            match catalog.get(&device.name, &row.name, 0) {
                Ok(Shown { value, .. }) => self.families.add_attribute(Some(&device.name), row, &value),
                Err(error) if error.kind == Kind::NotFound => break,
                Err(_) => {}
            }
        }
        None
    }

    fn text(&mut self) -> String {
        let mut registry = Registry::with_prefix("spillway");
        registry.register_collector(Box::new(std::mem::take(&mut self.families)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)
            .expect("writing to a string cannot fail");
        text
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for ((name, _), family) in &self.0 {
            let mut metric =
                encoder.encode_descriptor(name, &family.help, family.unit.as_ref(), family.kind)?;
            for (labels, number) in &family.samples {
                encode(&mut metric.encode_family(labels)?, family.kind, number)?;
            }
        }
        Ok(())
    }
}

fn encode(metric: &mut MetricEncoder, kind: MetricType, number: &Number) -> Result<(), std::fmt::Error> {
    match (kind, number) {
        (MetricType::Counter, Number::Whole(whole)) => {
            metric.encode_counter::<NoLabelSet, _, f64>(whole, None)
        }
        (MetricType::Counter, Number::Real(real)) => metric.encode_counter::<NoLabelSet, _, f64>(real, None),
        (_, Number::Whole(whole)) => metric.encode_gauge(whole),
        (_, Number::Real(real)) => metric.encode_gauge(real),
        (_, Number::Histogram(LatencyRow { seconds, counts, .. })) => {
            let buckets: Vec<(f64, u64)> = OperationLatency::ends().zip(counts.iter().copied()).collect();
            metric.encode_histogram::<NoLabelSet>(*seconds, counts.iter().sum(), &buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::rows::ColumnRow;
    use super::*;
    use serde_json::json;

    fn row(name: &str, part: &str, role: &str, kind: &str, unit: &str) -> AttributeRow {
        AttributeRow {
            name: name.into(),
            part: part.into(),
            role: role.into(),
            r#type: kind.into(),
            unit: unit.into(),
            help: "Help, \"quoted\"".into(),
            ..AttributeRow::default()
        }
    }

    /// Lines of samples, and of types.
    fn lines(rows: &[(AttributeRow, Json)]) -> Vec<String> {
        let mut scrape = Scrape { families: Families::default(), left: Vec::new().into_iter() };
        rows.iter().for_each(|(row, value)| scrape.families.add_attribute(Some("a\"b"), row, value));
        let text = scrape.text();
        let about = |line: &&str| !line.starts_with("# HELP") && !line.starts_with("# UNIT");
        text.lines().filter(about).map(|line| line.replace("device=\"a\\\"b\",part=", "")).collect()
    }

    #[test]
    fn a_declaration_says_name_unit_and_type() {
        for (declared, value, type_line, sample) in [
            (
                row("reads", "write_cache", "counter", "number", "blocks"),
                json!(7),
                "# TYPE spillway_write_cache_reads_blocks counter",
                "spillway_write_cache_reads_blocks_total{\"write_cache\"} 7",
            ),
            (
                row("file.at_risk_bytes", "file2", "gauge", "number", "bytes"),
                json!(u64::MAX),
                "# TYPE spillway_file_at_risk_bytes gauge",
                "spillway_file_at_risk_bytes{\"file2\"} 18446744073709551615",
            ),
            (
                row("throttled_time", "zram", "counter", "number", "ms"),
                json!(1500),
                "# TYPE spillway_zram_throttled_time_seconds counter",
                "spillway_zram_throttled_time_seconds_total{\"zram\"} 1.5",
            ),
            (
                row("cleaner", "write_cache", "knob", "switch", ""),
                json!(true),
                "# TYPE spillway_write_cache_cleaner gauge",
                "spillway_write_cache_cleaner{\"write_cache\"} 1",
            ),
            (
                row("hit_ratio", "page_cache", "gauge", "ratio", ""),
                json!(0.25),
                "# TYPE spillway_page_cache_hit_ratio gauge",
                "spillway_page_cache_hit_ratio{\"page_cache\"} 0.25",
            ),
        ] {
            assert_eq!(lines(&[(declared, value)]), [type_line, sample, "# EOF"]);
        }
    }

    #[test]
    fn states_failures_and_columns_become_numbers() {
        let mut state = row("drain_state", "write_cache", "fact", "choice", "");
        state.choices = vec!["off".into(), "running".into()];
        let mut failure = row("error", "page_cache", "fact", "text", "");
        failure.or_none = true;
        let mut columns = row("bd_stat", "zram", "fact", "columns", "");
        let column = |name: &str| ColumnRow { name: name.into(), unit: "pages".into() };
        columns.columns = vec![column("bd_count"), column("bd_reads")];
        let shown = lines(&[
            (state, json!("running")),
            (failure.clone(), Json::Null),
            (failure, json!("EIO")),
            (columns, json!({ "bd_count": 3, "bd_reads": 4 })),
        ]);
        assert_eq!(
            shown.iter().filter(|line| !line.starts_with('#')).collect::<Vec<_>>(),
            [
                "spillway_page_cache_error{\"page_cache\",errno=\"\"} 0",
                "spillway_page_cache_error{\"page_cache\",errno=\"EIO\"} 1",
                "spillway_write_cache_drain_state{\"write_cache\",state=\"off\"} 0",
                "spillway_write_cache_drain_state{\"write_cache\",state=\"running\"} 1",
                "spillway_zram_bd_stat_bd_count_pages{\"zram\"} 3",
                "spillway_zram_bd_stat_bd_reads_pages{\"zram\"} 4",
            ]
        );
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        let limit = row("at_risk_bytes_max", "limits", "knob", "number", "bytes");
        let policy = row("policy", "zram", "fact", "text", "");
        assert_eq!(lines(&[(limit, Json::Null), (policy, json!("22 % are held"))]), ["# EOF"]);
    }
}
