//! Which columns of the table a terminal has room for.

use crate::cli::SortColumn::{self, *};
use crate::client::top::figures::Figures;
use crate::client::top::table::{COLUMNS, cell, title};

/// Columns that a narrow terminal does without, in this order.
const DISPENSABLE: [SortColumn; 10] =
    [Ratio, Clients, Spill, Memory, Dirty, Reads, Writes, Risk, State, Read];

/// The columns that fit into `width` characters. Those in which no device has anything go first; that of `sorted` stays.
pub(super) fn fitting(rows: &[Figures], sorted: SortColumn, width: usize) -> Vec<SortColumn> {
    let needed = |column: &SortColumn| widest(*column, rows) + 1;
    let is_empty = |column: SortColumn| rows.iter().all(|row| cell(column, row) == "-");
    let mut columns = COLUMNS.to_vec();
    let empty = DISPENSABLE.into_iter().filter(|&column| is_empty(column));
    for column in empty.chain(DISPENSABLE).filter(|&column| column != sorted) {
        if columns.iter().map(needed).sum::<usize>() <= width + 1 {
            break;
        }
        columns.retain(|&kept| kept != column);
    }
    assert!(columns.contains(&sorted), "the sorted column is shown");
    columns
}

/// Characters of the widest cell, or of the title.
fn widest(column: SortColumn, rows: &[Figures]) -> usize {
    let cells = rows.iter().map(|row| cell(column, row).chars().count());
    cells.chain([title(column).len()]).max().expect("there is a title")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::top::table::lines;
    use crate::client::top::table::tests::full;

    #[test]
    fn a_narrow_terminal_does_without_some_columns() {
        let rows = [full("ram0"), full("cache0")];
        let width = |columns: &[SortColumn]| {
            lines(&rows, columns).iter().map(|line| line.chars().count()).max().unwrap()
        };
        assert_eq!(fitting(&rows, Name, 200), COLUMNS);
        let at_80 = fitting(&rows, Name, 80);
        assert!(width(&at_80) <= 80 && at_80.len() >= 11, "{at_80:?}");
        for most in 0..120 {
            let columns = fitting(&rows, Risk, most);
            assert!(columns.contains(&Name) && columns.contains(&Risk), "{most}");
            assert!(width(&columns) <= most || columns == [Name, Write, Risk], "{most}: {columns:?}");
        }
        let empty = Figures { clients: Some(1), ratio: Some(1.0), ..Default::default() };
        let kept = fitting(&[empty], Name, 45);
        assert!(kept.contains(&Clients) && kept.contains(&Ratio) && !kept.contains(&Spill), "{kept:?}");
    }
}
