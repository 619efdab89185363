//! `spillway ls`: the devices of all servers, once, or again and again.

use std::fmt::Alignment::{Left, Right};
use std::time::{Duration, Instant};

use anyhow::Result;
use spillway_core::size::human;
use spillway_export::control::DeviceRow;

use super::again::print_every;
use super::connection::print;
use super::json;
use super::listing::{LOOK_PATIENCE, Servers, listing, warn_of};
#[cfg(feature = "top")]
use super::screen::Screen;
use crate::cli::LsOptions;
use crate::runtime_folder::RuntimeFolder;
use crate::tables::aligned;

/// See the head of this file.
pub(crate) fn list(folder: &RuntimeFolder, options: &LsOptions) -> Result<()> {
    if let Some(every) = options.watch {
        return watch(folder, options, every);
    }
    let rows = listing(folder)?;
    print(&if options.json { json(&rows)? } else { device_table(&rows, options) })
}

/// Looks every so often, in place on a terminal.
fn watch(folder: &RuntimeFolder, options: &LsOptions, every: Duration) -> Result<()> {
    let mut servers = Servers::new(folder, LOOK_PATIENCE);
    #[cfg(feature = "top")]
    if !options.json && Screen::is_possible() {
        return in_place::redraw(&mut servers, options, every);
    }
    let between = if options.json { "" } else { "\n" };
    print_every(every, None, between, || {
        let devices = look(&mut servers)?;
        Ok(if options.json { json_line(&devices)? } else { device_table(&devices, options) })
    })
}

/// The devices of the servers that answer. A server is warned of when it falls silent.
fn look(servers: &mut Servers) -> Result<Vec<DeviceRow>> {
    let start = Instant::now();
    let (devices, silences) = servers.devices()?;
    silences.iter().filter(|silence| silence.since >= start).for_each(warn_of);
    Ok(devices)
}

fn json_line(devices: &[DeviceRow]) -> Result<String> {
    Ok(format!("{}\n", serde_json::to_string(devices)?))
}

/// Columns in the manner of zramctl; numbers keep to the right.
pub(super) fn device_table(rows: &[DeviceRow], options: &LsOptions) -> String {
    let size = if options.bytes { |bytes: u64| bytes.to_string() } else { human };
    let head = [
        ("NAME", Left),
        ("STACK", Left),
        ("ALGORITHM", Left),
        ("DISKSIZE", Right),
        ("DATA", Right),
        ("COMPR", Right),
        ("TOTAL", Right),
        ("RATIO", Right),
        ("SPILL", Right),
        ("STREAMS", Right),
        ("EXPORT", Left),
    ];
    let titles = head.map(|(title, _)| title.to_owned());
    let cells: Vec<_> = [titles].into_iter().chain(rows.iter().map(|row| device_cells(row, size))).collect();
    aligned(&head.map(|(_, alignment)| alignment), &cells).join("\n") + "\n"
}

fn device_cells(row: &DeviceRow, size: fn(u64) -> String) -> [String; 11] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        row.name.clone(),
        row.stack.clone(),
        or_dash(row.algorithm.clone()),
        size(row.disksize),
        or_dash(row.data.map(size)),
        or_dash(row.compr.map(size)),
        or_dash(row.total.map(size)),
        or_dash(row.ratio.map(|ratio| format!("{ratio:.2}"))),
        or_dash(row.spilled.zip(row.spill_size).map(|(held, of)| format!("{}/{}", size(held), size(of)))),
        or_dash(row.streams.map(|streams| streams.to_string())),
        or_dash((!row.exports.is_empty()).then(|| row.exports.join(" "))),
    ]
}

#[cfg(feature = "top")]
mod in_place {
    //! The table on a terminal.

    use super::*;
    use crate::client::screen::{Key, Line, ScreenEvent};

    pub(super) fn redraw(servers: &mut Servers, options: &LsOptions, every: Duration) -> Result<()> {
        let mut screen = Screen::open()?;
        loop {
            let due = Instant::now() + every;
            let (devices, silences) = servers.devices()?;
            let silent = silences.iter().flat_map(|silence| &silence.devices);
            let table = device_table(&devices, options);
            let table: Vec<_> = table
                .lines()
                .map(str::to_owned)
                .chain(silent.map(|name| format!("{name}: its server does not answer")))
                .collect();
            loop {
                screen.show(|_, height| page(&table, height))?;
                match screen.wait(due)? {
                    ScreenEvent::Due => break,
                    ScreenEvent::Key(Key::Interrupt | Key::Char('q')) => return Ok(()),
                    ScreenEvent::Key(_) | ScreenEvent::Redraw => {}
                }
            }
        }
    }

    /// The lines of the table that there is room for, and below them what ends the view.
    pub(super) fn page(table: &[String], height: usize) -> Vec<Line> {
        let room = height.saturating_sub(1);
        let hidden = table.len().saturating_sub(room);
        let mut lines: Vec<_> = table.iter().take(room).map(Line::plain).collect();
        lines.resize_with(room, Line::default);
        let hint = match hidden {
            0 => "q or Ctrl-C ends".to_owned(),
            hidden => format!("{hidden} more lines than the terminal has room for; q or Ctrl-C ends"),
        };
        lines.push(Line::strong(hint));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_one_line_of_json() {
        let device = DeviceRow { name: "ram0".into(), ..Default::default() };
        let line = json_line(&[device.clone(), device]).unwrap();
        assert!(line.ends_with("]\n") && line.lines().count() == 1, "{line}");
        assert_eq!(json_line(&[]).unwrap(), "[]\n");
    }

    #[cfg(feature = "top")]
    #[test]
    fn a_table_fills_the_terminal_and_says_what_it_has_no_room_for() {
        let table: Vec<_> = (0..5).map(|row| format!("row {row}")).collect();
        for (height, shown, words) in [(0, 0, "5 more"), (1, 0, "5 more"), (3, 2, "3 more"), (24, 5, "q or")]
        {
            let lines = in_place::page(&table, height);
            assert_eq!(lines.len(), height.max(1));
            assert_eq!(lines.iter().filter(|line| line.text.starts_with("row")).count(), shown);
            assert!(lines.last().unwrap().text.contains(words), "{height}");
        }
    }
}
