//! The table of devices as a page, and the page of keys.

use super::columns::fitting;
use crate::cli::SortColumn;
use crate::client::screen::Line;
use crate::client::top::figures::{Figures, memories, sums};
use crate::client::top::looks::Picture;
use crate::client::top::table;

/// Keys of a device's page.
pub(super) const DEVICE_KEYS: &str = "q end  Esc back  ? keys  up/down scroll";

/// Lines of the head about the servers' memory.
const MEMORY_LINES_MAX: usize = 3;

/// The part of the rows of a terminal that a head may take: one in so many.
const HEAD_SHARE: usize = 3;

/// What stands before the selected row, and before the others.
const SELECTED: &str = "> ";
const OTHERS: &str = "  ";

/// What the table shows.
pub(super) struct Overview<'a> {
    pub(super) picture: &'a Picture,
    /// The rows of all devices, sorted.
    pub(super) rows: &'a [Figures],
    pub(super) sort: SortColumn,
    /// Whether numbers are sorted from the smallest, and names from z.
    pub(super) reversed: bool,
    /// The selected row.
    pub(super) selected: usize,
    /// The row at the top, which changes so that the selected one is shown.
    pub(super) first: &'a mut usize,
}

/// The sums and the servers' memory, the table, the state of the selected device, and keys.
pub(super) fn table(view: &mut Overview<'_>, width: usize, height: usize) -> Vec<Line> {
    let is_row = view.selected < view.rows.len() || view.rows.is_empty();
    assert!(is_row, "row {} of {} is selected", view.selected, view.rows.len());
    let mut lines = head(view, width);
    if lines.len() * HEAD_SHARE > height {
        lines.clear();
    }
    let columns = fitting(view.rows, view.sort, width.saturating_sub(OTHERS.len()));
    let mut rows = table::lines(view.rows, &columns).into_iter();
    let titles = rows.next().expect("titles are there without rows");
    lines.push(Line::strong(format!("{OTHERS}{titles}")));
    let room = height.saturating_sub(lines.len() + 2);
    *view.first = first_shown(*view.first, view.selected, room).min(view.rows.len().saturating_sub(room));
    let shown = rows.enumerate().skip(*view.first).take(room);
    lines.extend(shown.map(|(at, row)| match at == view.selected {
        true => Line::chosen(format!("{SELECTED}{row}")),
        false => Line::plain(format!("{OTHERS}{row}")),
    }));
    if view.rows.is_empty() && room > 0 {
        lines.push(Line::plain("none of your servers is running: start one with spillway ram --size 4G"));
    }
    lines.resize_with(height.saturating_sub(2).max(lines.len()), Line::default);
    lines.push(Line::plain(state(view, &columns)));
    lines.push(Line::strong(keys(view)));
    lines
}

fn head(view: &Overview<'_>, width: usize) -> Vec<Line> {
    let mut memory = wrapped(memories(view.picture), "memory ", width);
    if memory.len() > MEMORY_LINES_MAX {
        memory.truncate(MEMORY_LINES_MAX);
        memory.push("       and more servers".to_owned());
    }
    let sums = wrapped(sums(view.picture, view.rows), "", width);
    let lines = sums.into_iter().chain(memory).map(Line::plain);
    lines.chain([Line::default()]).collect()
}

/// The row at the top so that the selected one is among `room` rows, moved as little as possible.
fn first_shown(first: usize, selected: usize, room: usize) -> usize {
    first.min(selected).max((selected + 1).saturating_sub(room))
}

/// What is special about the selected device, in full, and which columns have no room.
fn state(view: &Overview<'_>, columns: &[SortColumn]) -> String {
    let selected = view.rows.get(view.selected).filter(|row| !row.words.is_empty());
    let state = selected.map(|row| format!("{}: {}", row.key.1, row.words.join(", ")));
    let hidden = table::COLUMNS.into_iter().filter(|column| !columns.contains(column));
    let hidden: Vec<_> = hidden.map(table::title).collect();
    let hidden = (!hidden.is_empty()).then(|| format!("no room for {}", hidden.join(" ")));
    state.into_iter().chain(hidden).collect::<Vec<_>>().join("; ")
}

fn keys(view: &Overview<'_>) -> String {
    let order = if view.reversed { "reversed by" } else { "by" };
    format!("q end  ? keys  Enter open  up/down select  {order} {} (s < > r)", table::title(view.sort))
}

/// Joins items to lines of at most `width` characters, where one item alone is not longer; further lines are indented as the first one's
/// `label` is long.
pub(super) fn wrapped(items: Vec<String>, label: &str, width: usize) -> Vec<String> {
    let indent = " ".repeat(label.chars().count());
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        match lines.last_mut() {
            Some(line) if line.chars().count() + item.chars().count() + 2 <= width => {
                line.push_str("  ");
                line.push_str(&item);
            }
            Some(_) => lines.push(format!("{indent}{item}")),
            None => lines.push(format!("{label}{item}")),
        }
    }
    lines
}

/// What the keys do, and what the columns are.
pub(super) fn help() -> Vec<Line> {
    let heads = ["Keys", "Columns"];
    let line = |text: &str| if heads.contains(&text) { Line::strong(text) } else { Line::plain(text) };
    HELP.lines().map(line).collect()
}

const HELP: &str = "\
Keys
  up, down, PageUp, PageDown, Home, End
               select a device, or scroll its page
  Enter        open the selected device: its parts, and flows between them
  Esc          go back
  s, >   <     sort by the next column, by the one before
  r            reverse the order
  ?            these words
  q, Ctrl-C    end

Columns
  RMiB/s WMiB/s  read and written by clients since the look before
  R/s W/s        requests that read and wrote
  CL             clients that are connected
  RATIO          stored bytes for each byte of memory
  MEMORY         in use / limit
  SPILL          in the spill file / its size
  DIRTY          not written back yet, in all caches
  AT-RISK        what a crash would take / age of the oldest
  STATE          silent, errors, connection, drain, read-only";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_wrapped_between_them() {
        let items = || ["ab", "cde", "f"].map(str::to_owned).to_vec();
        assert_eq!(wrapped(items(), "m ", 100), ["m ab  cde  f"]);
        assert_eq!(wrapped(items(), "m ", 9), ["m ab  cde", "  f"]);
        assert_eq!(wrapped(items(), "m ", 0), ["m ab", "  cde", "  f"]);
        assert!(wrapped(vec![], "m ", 9).is_empty());
    }

    #[test]
    fn the_selected_row_is_always_shown() {
        for (first, selected, room, shown) in
            [(0, 0, 5, 0), (0, 4, 5, 0), (0, 5, 5, 1), (3, 1, 5, 1), (3, 5, 5, 3), (9, 2, 0, 3)]
        {
            assert_eq!(first_shown(first, selected, room), shown, "{first} {selected} {room}");
        }
    }

    #[test]
    fn the_keys_fit_a_small_terminal() {
        let lines = help();
        assert!(lines.len() <= 24 && lines.iter().all(|line| line.text.len() <= 80));
    }
}
