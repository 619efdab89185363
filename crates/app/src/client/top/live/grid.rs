//! Attributes as figures: a name, a value with its unit, and a rate, side by side as far as there is room.

use spillway_core::size::human;
use spillway_export::control::{AttributeRow, ColumnRow, Shown};

use crate::client::top::figures::{mebibytes, per_second};
use crate::client::top::sample::{ObservedDevice, Sample, number, own_name};

/// Characters between two columns of figures.
const GAP: usize = 3;

/// An attribute as the page has it.
pub(super) struct Figure {
    name: String,
    value: String,
    rate: String,
}

/// An attribute of one value, with its rate if it is a counter that moves.
pub(super) fn figure(device: &ObservedDevice, row: &AttributeRow, shown: &Shown) -> Figure {
    let speed = device.rate(|sample| sample.number(&row.name));
    let speed = speed.filter(|&speed| row.role == "counter" && speed > 0.0);
    let rate = speed.map_or(String::new(), |speed| rate_of(&device.now, row, speed));
    Figure { name: own_name(row).to_owned(), value: value(&device.now, row, shown), rate }
}

/// The numbers of an attribute that has several.
pub(super) fn columns_of(sample: &Sample, row: &AttributeRow, shown: &Shown) -> Vec<Figure> {
    let of_column = |column: &ColumnRow| {
        let count = number(shown.value.get(&column.name)?)?;
        let value = counted(sample, &row.part, &column.unit, count);
        Some(Figure { name: format!("{} {}", own_name(row), column.name), value, rate: String::new() })
    };
    row.columns.iter().filter_map(of_column).collect()
}

/// A value as text. Whole numbers have their unit, and what counts bytes is a size.
pub(super) fn value(sample: &Sample, row: &AttributeRow, shown: &Shown) -> String {
    match number(&shown.value) {
        Some(count) if !shown.value.is_boolean() && row.r#type != "ratio" => {
            counted(sample, &row.part, &row.unit, count)
        }
        _ => shown.text.clone(),
    }
}

fn counted(sample: &Sample, part: &str, unit: &str, count: f64) -> String {
    match (bytes_of(sample, part, unit), unit) {
        (Some(bytes), _) => human((count * bytes) as u64) + if unit == "bytes/s" { "/s" } else { "" },
        (None, "" | "requests") => format!("{count}"),
        (None, "percent") => format!("{count} %"),
        (None, unit) => format!("{count} {unit}"),
    }
}

fn rate_of(sample: &Sample, row: &AttributeRow, speed: f64) -> String {
    match bytes_of(sample, &row.part, &row.unit) {
        Some(bytes) => format!("{} MiB/s", mebibytes(Some(speed * bytes))),
        None => format!("{}/s", per_second(Some(speed))),
    }
}

/// Bytes of one of a unit, where it counts bytes.
fn bytes_of(sample: &Sample, part: &str, unit: &str) -> Option<f64> {
    match unit {
        "bytes" | "bytes/s" => Some(1.0),
        "pages" => Some(4096.0),
        "sectors" => Some(512.0),
        "blocks" => sample.number_of(part, "block_size"),
        _ => None,
    }
}

/// Figures below each other, in as many columns as there is room for.
pub(super) fn in_columns(figures: &[Figure], width: usize) -> Vec<String> {
    let widest =
        |of: fn(&Figure) -> &str| figures.iter().map(|figure| of(figure).chars().count()).max().unwrap_or(0);
    let (name, value, rate) =
        (widest(|figure| &figure.name), widest(|figure| &figure.value), widest(|figure| &figure.rate));
    let column = name + value + rate + 2;
    let columns = ((width + GAP) / (column + GAP)).max(1);
    let rows = figures.len().div_ceil(columns);
    let cell =
        |figure: &Figure| format!("{:name$} {:>value$} {:>rate$}", figure.name, figure.value, figure.rate);
    let row = |row: usize| {
        let cells: Vec<_> = figures.iter().skip(row).step_by(rows).map(cell).collect();
        cells.join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    (0..rows).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::top::sample::tests::sample;
    use serde_json::json;
    use spillway_export::control::DeviceRow;

    #[test]
    fn figures_stand_side_by_side_where_there_is_room() {
        let figure = |name: &str| Figure { name: name.into(), value: "1".into(), rate: String::new() };
        let figures = ["a", "bb", "c"].map(figure);
        assert_eq!(in_columns(&figures, 13), ["a  1    c  1", "bb 1"]);
        assert_eq!(in_columns(&figures, 12), ["a  1", "bb 1", "c  1"]);
        assert!(in_columns(&[], 80).is_empty());
    }

    #[test]
    fn numbers_have_their_units() {
        let sample = sample(0, DeviceRow::default(), &[("write_cache", "block_size", json!(512))]);
        let shown = |unit| counted(&sample, "write_cache", unit, 2048.0);
        let units = ["bytes", "bytes/s", "pages", "sectors", "blocks", "requests", "percent", "ms", ""];
        assert_eq!(units.map(shown), ["2K", "2K/s", "8M", "1M", "1M", "2048", "2048 %", "2048 ms", "2048"]);
    }
}
