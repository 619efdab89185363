//! The page of a device: its parts with all figures, and what flows between them.

use spillway_core::size::human;
use spillway_export::control::{AttributeRow, Shown};

use super::flows::{Flow, flow, kind_of, parts};
use super::grid::{columns_of, figure, in_columns, value};
use super::pages::wrapped;
use crate::client::screen::Line;
use crate::client::top::figures::{mebibytes, per_second, traffic};
use crate::client::top::sample::{ObservedDevice, Sample, own_name};
use crate::tables::wrapped_words;

/// Facts that are sentences or states, and stand above the figures of a part.
const WORDS: [&str; 4] = ["error", "connection", "drain_state", "policy"];

/// What stands before what belongs to a part.
const INDENT: &str = "  ";

/// The whole page, for so many characters in a line: what flows and what is said first, then all figures.
pub(super) fn lines(device: &ObservedDevice, width: usize) -> Vec<Line> {
    let (parts, room) = (parts(&device.now), width.saturating_sub(INDENT.len()));
    let mut lines = head(device, width);
    for part in &parts {
        let words = indented(words(&device.now, part, room));
        let said: Vec<_> = words.chain(below(device, part)).map(Line::plain).collect();
        lines.extend((!said.is_empty()).then(|| Line::strong(*part)));
        lines.extend(said);
    }
    for part in parts {
        lines.extend([Line::default(), Line::strong(format!("{part}: figures"))]);
        lines.extend(indented(part_lines(device, part, room)).map(Line::plain));
    }
    lines
}

fn indented(lines: Vec<String>) -> impl Iterator<Item = String> {
    lines.into_iter().map(|line| format!("{INDENT}{line}"))
}

fn head(device: &ObservedDevice, width: usize) -> Vec<Line> {
    let row = &device.now.row;
    let read_only = if row.read_only { "  read-only" } else { "" };
    let title = format!("{}  {}  {}{read_only}", row.name, human(row.disksize), row.stack);
    let silent = device.silent.map(|lasts| {
        format!("its server (pid {}) has not answered for {} s: this is old", device.key.0, lasts.as_secs())
    });
    let exports = row.exports.iter().map(|export| format!("{INDENT}{export}"));
    let work = row.work.iter().map(|work| format!("{INDENT}{}: {}", work.title(), work.figures()));
    let plain = silent.into_iter().chain(exports).chain(work).chain(clients(device, width));
    [Line::strong(title)].into_iter().chain(plain.map(Line::plain)).collect()
}

/// What clients do.
fn clients(device: &ObservedDevice, width: usize) -> Vec<String> {
    let row = &device.now.row;
    let rate = |of: fn(&Sample) -> u64| device.rate(|sample| Some(of(sample) as f64));
    let write =
        traffic(rate(|sample| sample.row.requests.write_bytes), rate(|sample| sample.row.requests.writes));
    let read =
        traffic(rate(|sample| sample.row.requests.read_bytes), rate(|sample| sample.row.requests.reads));
    let others = [
        ("flushes", rate(|sample| sample.row.requests.flushes)),
        ("discards", rate(|sample| sample.row.requests.discards)),
        ("zeroings", rate(|sample| sample.row.requests.write_zeroes)),
    ];
    let others = others.map(|(name, rate)| format!("{name} {}/s", per_second(rate)));
    let (number, failed) = (row.clients, row.requests.errors);
    let first = [format!("clients {number}"), format!("write {write}"), format!("read {read}")];
    let items = first.into_iter().chain(others).chain([format!("failed requests {failed}")]);
    wrapped(items.collect(), "--> ", width)
}

/// What flows from a part to the one below it.
fn below(device: &ObservedDevice, part: &str) -> Option<String> {
    flow(&device.now, part)?;
    let rate = |of: fn(Flow) -> f64| mebibytes(device.rate(|sample| flow(sample, part).map(of)));
    let (written, read) = (rate(|flow| flow.written), rate(|flow| flow.read));
    let to = if kind_of(part) == "zram" { "spill file: " } else { "" };
    Some(format!("--> {to}write {written} MiB/s, read {read} MiB/s"))
}

/// What a part says of itself.
fn words(sample: &Sample, part: &str, width: usize) -> Vec<String> {
    let own = attributes(sample, part).filter(|(row, _)| is_said(row));
    let said = own.filter_map(|(row, shown)| Some(format!("{}: {}", own_name(row), shown.value.as_str()?)));
    said.flat_map(|text| wrapped_words(&text, width)).collect()
}

fn is_said(row: &AttributeRow) -> bool {
    WORDS.contains(&own_name(row)) && row.role != "knob"
}

/// The figures of a part, and its settings.
fn part_lines(device: &ObservedDevice, part: &str, width: usize) -> Vec<String> {
    let sample = &*device.now;
    let (mut figures, mut columns, mut rows, mut settings) = (vec![], vec![], vec![], vec![]);
    for (row, shown) in attributes(sample, part).filter(|(row, _)| !is_said(row)) {
        if row.r#type == "rows" {
            rows.push(format!("{}:", own_name(row)));
            rows.extend(indented(shown.text.lines().map(str::to_owned).collect()));
        } else if row.role == "knob" || shown.value.is_string() {
            settings.push(format!("{} {}", own_name(row), value(sample, row, shown)));
        } else if shown.value.is_object() {
            columns.extend(columns_of(sample, row, shown));
        } else {
            figures.push(figure(device, row, shown));
        }
    }
    let figures = in_columns(&figures, width).into_iter().chain(in_columns(&columns, width));
    figures.chain(rows).chain(wrapped(settings, "settings: ", width)).collect()
}

/// The attributes of a part with their values.
fn attributes<'a>(sample: &'a Sample, part: &'a str) -> impl Iterator<Item = (&'a AttributeRow, &'a Shown)> {
    let own = sample.attributes.iter().filter(move |row| row.part == part);
    own.filter_map(|row| Some((row, sample.values.get(&row.name)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::top::sample::tests::{device, sample};
    use serde_json::json;
    use spillway_export::control::{ColumnRow, DeviceRow, WorkRow};

    /// A RAM disk with a spill file that has written 8 MiB to it in 2 s.
    fn busy() -> ObservedDevice {
        let row = |bytes: u64| {
            let mut row = DeviceRow {
                name: "ram0".into(),
                stack: "zram".into(),
                disksize: 4 << 30,
                ..Default::default()
            };
            (row.spill_size, row.clients, row.exports) = (Some(1 << 30), 1, vec!["nbd+unix:///ram0".into()]);
            row.requests.write_bytes = bytes;
            let (device, kind) = ("ram0".to_owned(), "recompress".to_owned());
            row.work =
                vec![WorkRow { device, kind, done: 1 << 30, total: Some(4 << 30), ..Default::default() }];
            row
        };
        let values = |written: u64| {
            [
                ("zram", "spill_written_bytes", json!(written)),
                ("zram", "bd_stat", json!({"bd_reads": 0, "bd_writes": 2})),
                ("zram", "policy", json!("nothing is spilled below 90 % of the memory")),
                ("zram", "backing_dev", json!("a path")),
            ]
        };
        let mut now = sample(3, row(6 << 20), &values(10 << 20));
        let mut attributes = now.attributes.to_vec();
        attributes[0].unit = "bytes".into();
        attributes[1].columns = vec![ColumnRow { name: "bd_writes".into(), unit: "pages".into() }];
        now.attributes = attributes.into();
        device(Some(sample(1, row(2 << 20), &values(2 << 20))), now)
    }

    #[test]
    fn a_page_has_clients_parts_and_flows() {
        let text: Vec<_> = lines(&busy(), 80).into_iter().map(|line| line.text).collect();
        assert_eq!(
            text.join("\n"),
            "\
ram0  4G  zram
  nbd+unix:///ram0
  recompressing ram0: 25 % of 4G
--> clients 1  write 2.00 MiB/s (0/s)  read 0.00 MiB/s (0/s)  flushes 0/s
    discards 0/s  zeroings 0/s  failed requests 0
zram
  policy: nothing is spilled below 90 % of the memory
--> spill file: write 4.00 MiB/s, read 0.00 MiB/s

zram: figures
  spill_written_bytes 10M 4.00 MiB/s
  bd_stat bd_writes 8K
  settings: backing_dev \"a path\""
        );
    }

    #[test]
    fn a_page_fits_its_terminal() {
        for width in 0..200 {
            let lines = lines(&busy(), width);
            assert!(lines.iter().any(|line| line.text.contains("bd_writes")), "{width}");
            let long =
                lines.iter().filter(|line| line.text.starts_with("  policy") && line.text.len() > width);
            assert!(width < 20 || long.count() == 0, "{width}");
        }
    }
}
