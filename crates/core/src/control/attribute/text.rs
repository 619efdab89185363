//! Values as text: for people, and in the kernel's form where the declaration says so.

use super::reading::NONE;
use super::spec::{Column, Preset, Spec, Type, Unit};
use super::value::Value;
use crate::size::human;

const MIB: u64 = 1 << 20;

impl Spec {
    /// `value` as text, possibly of several lines, without a final newline. It reads back as the same value, but for means, which
    /// are rounded, and for what the kernel shows otherwise than it reads it.
    pub fn text(&self, value: &Value) -> String {
        match (self.kind, value) {
            (_, Value::None) => NONE.into(),
            (_, Value::U64(number)) => number.to_string(),
            (_, Value::Switch(on)) => u8::from(*on).to_string(),
            (Type::Choice(names), Value::Choice(chosen)) if self.kernel => among(names, chosen),
            (_, Value::Choice(chosen)) => (*chosen).into(),
            (Type::Ratio { decimals, .. }, Value::Ratio(part, whole)) => decimal(*part, *whole, decimals),
            (_, Value::Ratio(part, whole)) => decimal(*part, *whole, 2),
            (_, Value::Text(text)) => text.clone(),
            (Type::Columns { head, columns }, Value::Columns(numbers)) => in_columns(head, columns, numbers),
            (_, Value::Columns(numbers)) => in_columns("", &[], numbers),
            (_, Value::Rows(rows)) => self.table(rows),
        }
    }

    /// The names of the columns, and below them the rows.
    fn table(&self, rows: &[Vec<Value>]) -> String {
        let names = self.kind.columns().iter().map(|column| column.name.to_owned()).collect();
        let cells = rows.iter().map(|row| row.iter().map(|value| self.text(value)).collect());
        let lines: Vec<Vec<String>> = [names].into_iter().chain(cells).collect();
        let width = |at: usize| lines.iter().filter_map(|line| line.get(at)).map(String::len).max();
        let widths: Vec<usize> = (0..).map_while(width).collect();
        let cell = |(text, width): (&String, &usize)| format!("{text:width$}");
        let line = |cells: &Vec<String>| cells.iter().zip(&widths).map(cell).collect::<Vec<_>>().join(" ");
        lines.iter().map(|cells| line(cells).trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    /// The values that are allowed with their unit, as the manual writes them; empty where nothing needs to be said.
    pub fn range(&self) -> String {
        let unit = self.unit.name();
        let range = match self.kind {
            Type::Number(0, u64::MAX) => unit.into(),
            Type::Number(least, u64::MAX) if self.unit.is_size() => format!("at least {}", human(least)),
            Type::Number(least, most) if self.unit.is_size() => {
                format!("{} to {}", human(least), human(most))
            }
            Type::Number(least, most) => format!("{least} to {most} {unit}"),
            Type::PowerOfTwo(least, most) => format!("a power of two from {least} to {most} {unit}"),
            Type::Choice(names) => names.join(", "),
            Type::Ratio { most: u64::MAX, .. } => unit.into(),
            Type::Ratio { most, .. } => format!("0 to {most}"),
            Type::Text | Type::Path if self.or_none => self.kind.name().into(),
            Type::Switch | Type::Text | Type::Path => String::new(),
            Type::Columns { .. } | Type::Rows(_) | Type::Lines => String::new(),
        };
        let none = if self.or_none { format!(", or {NONE}") } else { String::new() };
        format!("{}{none}", range.trim_end())
    }

    /// The default as the manual writes it; `None` where there is none.
    pub fn preset_text(&self) -> Option<String> {
        match self.preset {
            Preset::Absent => None,
            Preset::Required => Some("required".into()),
            Preset::Number(bytes) if self.unit == Unit::Bytes && bytes > 0 && bytes % MIB == 0 => {
                Some(human(bytes))
            }
            Preset::Number(number) => Some(number.to_string()),
            Preset::Choice(name) => Some(name.into()),
            Preset::Switch(on) => Some(u8::from(on).to_string()),
            Preset::Words(words) => Some(words.into()),
        }
    }
}

/// All names, each with a blank after it, the chosen one in brackets.
fn among(names: &[&str], chosen: &str) -> String {
    let word = |name: &&str| if *name == chosen { format!("[{name}] ") } else { format!("{name} ") };
    names.iter().map(word).collect()
}

fn in_columns(head: &str, columns: &[Column], numbers: &[u64]) -> String {
    let width = |index: usize| columns.get(index).map_or(0, |column| column.width);
    let cell = |(index, number): (usize, &u64)| format!("{number:0$}", width(index));
    let cells: Vec<String> = numbers.iter().enumerate().map(cell).collect();
    format!("{head}{}", cells.join(" "))
}

/// Rounded to `decimals`, without zeroes at the end.
fn decimal(part: u64, whole: u64, decimals: u32) -> String {
    if whole == 0 {
        return format!("{part}/0");
    }
    let scale = 10u128.pow(decimals);
    let scaled = (u128::from(part) * scale * 2 + u128::from(whole)) / (u128::from(whole) * 2);
    let text = format!("{}.{:02$}", scaled / scale, scaled % scale, decimals as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Unit, When};
    use super::*;

    fn knob(kind: Type) -> Spec {
        Spec::knob("knob", When::Live, kind, "Help")
    }

    #[test]
    fn values_are_shown_in_their_declared_form() {
        let codecs = knob(Type::Choice(&["lzo", "lz4", "zstd"]));
        const COLUMNS: &[Column] =
            &[Column::wide("a", Unit::Bytes), Column::new("b", Unit::None), Column::wide("c", Unit::Pages)];
        let columns = Type::Columns { head: "version: 1\n", columns: COLUMNS };
        for (spec, value, text) in [
            (knob(Type::COUNT), Value::U64(1 << 32), "4294967296"),
            (knob(Type::COUNT).or_none(), Value::None, "none"),
            (knob(Type::Switch), Value::Switch(true), "1"),
            (codecs, Value::Choice("lz4"), "lz4"),
            (codecs.kernel(), Value::Choice("lz4"), "lzo [lz4] zstd "),
            (knob(Type::MEAN), Value::mean(2, 3), "0.67"),
            (knob(Type::MEAN), Value::mean(4, 2), "2"),
            (knob(Type::MEAN), Value::mean(7, 0), "0"),
            (knob(Type::MEAN), Value::Ratio(1999, 1000), "2"),
            (knob(Type::Ratio { most: 1, decimals: 9 }), Value::Ratio(1, 1000), "0.001"),
            (knob(Type::Ratio { most: 1, decimals: 0 }), Value::Ratio(10, 1), "10"),
            (knob(columns), Value::Columns(vec![5, 6, 123_456_789]), "version: 1\n       5 6 123456789"),
        ] {
            assert_eq!(spec.text(&value), text);
        }
    }

    #[test]
    fn rows_are_a_table_with_the_names_above() {
        const COLUMNS: &[Column] = &[Column::new("op", Unit::None), Column::new("len", Unit::Bytes)];
        let spec = knob(Type::Rows(COLUMNS));
        let row = |op, len| vec![Value::Choice(op), len];
        let rows = vec![row("read", Value::U64(4096)), row("write_zeroes", Value::None)];
        assert_eq!(spec.text(&Value::Rows(rows)), "op           len\nread         4096\nwrite_zeroes none");
        assert_eq!(spec.text(&Value::Rows(vec![])), "op len");
    }

    #[test]
    fn ranges_and_defaults_are_written_for_the_manual() {
        for (spec, range) in [
            (knob(Type::Number(0, 100)).unit(Unit::Percent), "0 to 100 percent"),
            (knob(Type::Number(1, 9)), "1 to 9"),
            (knob(Type::Number(1, 9)).or_none(), "1 to 9, or none"),
            (knob(Type::Number(1, 1 << 44)).unit(Unit::Bytes), "1B to 16T"),
            (knob(Type::Number(1 << 25, u64::MAX)).unit(Unit::Bytes), "at least 32M"),
            (knob(Type::COUNT).unit(Unit::Sectors), "sectors"),
            (knob(Type::COUNT), ""),
            (knob(Type::PowerOfTwo(512, 4096)).unit(Unit::Bytes), "a power of two from 512 to 4096 bytes"),
            (knob(Type::Choice(&["a", "b"])), "a, b"),
            (knob(Type::Ratio { most: 1, decimals: 2 }), "0 to 1"),
            (knob(Type::MEAN).unit(Unit::Blocks), "blocks"),
            (knob(Type::Text).or_none(), "text, or none"),
            (knob(Type::Text), ""),
            (knob(Type::Switch), ""),
        ] {
            assert_eq!(spec.range(), range);
        }
        for (preset, text) in [
            (Preset::Absent, None),
            (Preset::Required, Some("required")),
            (Preset::Number(5), Some("5")),
            (Preset::Switch(false), Some("0")),
            (Preset::Choice("a"), Some("a")),
            (Preset::Words("cores"), Some("cores")),
        ] {
            assert_eq!(knob(Type::Switch).preset(preset).preset_text().as_deref(), text);
        }
        for (bytes, text) in [(0, "0"), (4096, "4096"), (16 << 20, "16M"), (3 << 30, "3G")] {
            let spec = knob(Type::COUNT).unit(Unit::Bytes).preset(Preset::Number(bytes));
            assert_eq!(spec.preset_text().as_deref(), Some(text));
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        let ratio = knob(Type::Ratio { most: 1, decimals: 9 });
        for text in ["0", "0.001", "1", "0.999999999"] {
            assert_eq!(ratio.text(&ratio.parse(text).unwrap()), text);
        }
    }
}
