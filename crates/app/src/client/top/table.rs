//! The table of devices: its columns, and the order of its rows.

use std::cmp::Ordering;
use std::fmt::Alignment;

use spillway_core::size::human;

use super::figures::{Figures, mebibytes, per_second};
use crate::cli::SortColumn::{self, *};
use crate::tables::aligned;

/// All columns from left to right.
pub(super) const COLUMNS: [SortColumn; 12] =
    [Name, Read, Write, Reads, Writes, Clients, Ratio, Memory, Spill, Dirty, Risk, State];

/// Longest name that is shown whole beside other columns.
const NAME_CHARACTERS_MAX: usize = 20;

/// What is at the top of a column.
pub(super) fn title(column: SortColumn) -> &'static str {
    match column {
        Name => "NAME",
        Read => "RMiB/s",
        Write => "WMiB/s",
        Reads => "R/s",
        Writes => "W/s",
        Clients => "CL",
        Ratio => "RATIO",
        Memory => "MEMORY",
        Spill => "SPILL",
        Dirty => "DIRTY",
        Risk => "AT-RISK",
        State => "STATE",
    }
}

/// What a row has in a column.
pub(super) fn cell(column: SortColumn, row: &Figures) -> String {
    let of = |part: Option<(u64, u64)>| part.map(|(part, whole)| format!("{}/{}", human(part), human(whole)));
    let text = match column {
        Name => Some(shortened(&row.key.1)),
        Read => Some(mebibytes(row.read)),
        Write => Some(mebibytes(row.write)),
        Reads => Some(per_second(row.reads)),
        Writes => Some(per_second(row.writes)),
        Clients => row.clients.map(|clients| clients.to_string()),
        Ratio => row.ratio.map(|ratio| format!("{ratio:.2}")),
        Memory => of(row.memory),
        Spill => of(row.spill),
        Dirty => row.dirty.map(human),
        Risk => row.risk.map(|(bytes, age)| match age {
            Some(seconds) => format!("{}/{seconds}s", human(bytes)),
            None => human(bytes),
        }),
        State => Some(row.words.join(", ")).filter(|words| !words.is_empty()),
    };
    text.unwrap_or_else(|| "-".to_owned())
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_CHARACTERS_MAX) {
        None => name.to_owned(),
        Some(_) => name.chars().take(NAME_CHARACTERS_MAX - 1).chain(['~']).collect(),
    }
}

/// Sorts rows by a column: names from a to z, numbers from the largest, both the other way round where `reversed`. Rows without a number
/// come last, and equal ones are sorted by name.
pub(super) fn sort(rows: &mut [Figures], column: SortColumn, reversed: bool) {
    let turned = |order: Ordering| if reversed { order.reverse() } else { order };
    rows.sort_by(|one, other| {
        let by_name = (&one.key.1, one.key.0).cmp(&(&other.key.1, other.key.0));
        if column == Name {
            return turned(by_name);
        }
        let by_number = match (weight(column, one), weight(column, other)) {
            (Some(one), Some(other)) => turned(other.total_cmp(&one)),
            (one, other) => other.is_some().cmp(&one.is_some()),
        };
        by_number.then(by_name)
    });
}

fn weight(column: SortColumn, row: &Figures) -> Option<f64> {
    let whole = |number: Option<u64>| number.map(|number| number as f64);
    match column {
        Name => None,
        Read => row.read,
        Write => row.write,
        Reads => row.reads,
        Writes => row.writes,
        Clients => whole(row.clients),
        Ratio => row.ratio,
        Memory => whole(row.memory.map(|(used, _)| used)),
        Spill => whole(row.spill.map(|(held, _)| held)),
        Dirty => whole(row.dirty),
        Risk => whole(row.risk.map(|(bytes, _)| bytes)),
        State => whole(Some(row.words.len() as u64).filter(|count| *count > 0)),
    }
}

/// The titles and then the rows, as text. Numbers keep to the right.
pub(super) fn lines(rows: &[Figures], columns: &[SortColumn]) -> Vec<String> {
    let alignments: Vec<_> = columns
        .iter()
        .map(|column| if matches!(column, Name | State) { Alignment::Left } else { Alignment::Right })
        .collect();
    let titles = columns.iter().map(|&column| title(column).to_owned()).collect();
    let cells = rows.iter().map(|row| columns.iter().map(|&column| cell(column, row)).collect());
    let all: Vec<Vec<String>> = std::iter::once(titles).chain(cells).collect();
    aligned(&alignments, &all)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn row(name: &str, write: Option<f64>) -> Figures {
        Figures { key: (1, name.into()), write, ..Default::default() }
    }

    fn sorted(rows: &[Figures], column: SortColumn, reversed: bool) -> Vec<String> {
        let mut rows = rows.to_vec();
        sort(&mut rows, column, reversed);
        rows.into_iter().map(|row| row.key.1).collect()
    }

    /// A row with something in each column.
    pub(in crate::client::top) fn full(name: &str) -> Figures {
        Figures {
            key: (1, name.into()),
            read: Some(123.4 * 1048576.0),
            write: Some(45.67 * 1048576.0),
            reads: Some(12345.0),
            writes: Some(678.0),
            clients: Some(3),
            ratio: Some(2.861),
            memory: Some((512 << 20, 4 << 30)),
            spill: Some((5 << 20, 1 << 30)),
            dirty: Some(12 << 20),
            risk: Some((3 << 20, Some(7))),
            words: vec!["read-only".into()],
        }
    }

    #[test]
    fn rows_are_sorted_by_number_and_by_name() {
        let rows = [row("b", Some(1.0)), row("d", None), row("a", Some(5.0)), row("c", Some(1.0))];
        assert_eq!(sorted(&rows, Name, false), ["a", "b", "c", "d"]);
        assert_eq!(sorted(&rows, Name, true), ["d", "c", "b", "a"]);
        assert_eq!(sorted(&rows, Write, false), ["a", "b", "c", "d"]);
        assert_eq!(sorted(&rows, Write, true), ["b", "c", "a", "d"], "without a rate is always last");
        assert_eq!(sorted(&rows, Risk, true), ["a", "b", "c", "d"]);
        let mut more = row("z", None);
        more.words = vec!["silent".into()];
        assert_eq!(sorted(&[row("a", None), more], State, false), ["z", "a"]);
    }

    #[test]
    fn each_column_sorts_by_its_own_figure() {
        for column in COLUMNS {
            let names = sorted(&[row("a", None), full("b")], column, false);
            assert_eq!(names[0], if column == Name { "a" } else { "b" }, "{column:?}");
        }
    }

    #[test]
    fn a_table_reads_like_a_listing() {
        let long = Figures { key: (2, "n".repeat(64)), ..Default::default() };
        assert_eq!(
            lines(&[full("ram0"), long], &COLUMNS).join("\n"),
            "\
NAME                 RMiB/s WMiB/s   R/s W/s CL RATIO  MEMORY SPILL DIRTY AT-RISK STATE
ram0                    123   45.7 12345 678  3  2.86 512M/4G 5M/1G   12M   3M/7s read-only
nnnnnnnnnnnnnnnnnnn~      -      -     -   -  -     -       -     -     -       - -"
        );
        assert_eq!(lines(&[], &[Name, State]), ["NAME STATE"]);
    }
}
