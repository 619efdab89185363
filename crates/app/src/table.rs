//! Columns of text for `spillway ls`, in the manner of zramctl.

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Lays out `rows` under `head`, each column as wide as its widest cell, with one space between.
pub(crate) fn lay_out<const N: usize>(head: &[(&str, Side); N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].0.len()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let titles = head.map(|(title, _)| title.to_owned());
    std::iter::once(&titles).chain(rows).map(|row| line(head, &widths, row)).collect()
}

fn line<const N: usize>(head: &[(&str, Side); N], widths: &[usize; N], row: &[String; N]) -> String {
    let cell = |column: usize| match head[column].1 {
        Side::Left => format!("{:<1$}", row[column], widths[column]),
        Side::Right => format!("{:>1$}", row[column], widths[column]),
    };
    let cells: Vec<String> = (0..N).map(cell).collect();
    format!("{}\n", cells.join(" ").trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let head = [("NAME", Side::Left), ("SIZE", Side::Right), ("EXPORT", Side::Left)];
        let rows = [["ram0", "4G", "x"], ["scratch", "1024M", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(lay_out(&head, &rows), "NAME     SIZE EXPORT\nram0       4G x\nscratch 1024M\n");
    }
}
