//! Text in columns, as tables have it in a terminal, a file or a report.

use std::fmt::Alignment;

/// The lines of a table: a column is as wide as its widest cell, and a space apart from the next. Its cells keep to the left, or to the right
/// where `alignments` says so.
pub(crate) fn aligned(alignments: &[Alignment], rows: &[impl AsRef<[String]>]) -> Vec<String> {
    let widest =
        |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..alignments.len()).map(widest).collect();
    let line = |row: &[String]| {
        assert_eq!(row.len(), widths.len(), "a row has a cell for each column");
        let cells =
            row.iter().zip(alignments).zip(&widths).map(|((cell, alignment), &width)| match alignment {
                Alignment::Right => format!("{cell:>width$}"),
                _ => format!("{cell:width$}"),
            });
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    };
    rows.iter().map(|row| line(row.as_ref())).collect()
}

/// A sentence in lines of at most `width` characters, where no word alone is longer.
pub(crate) fn wrapped_words(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
