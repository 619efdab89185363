//! Keys, and pages on terminals of all sizes.

use std::time::Duration;

use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;
use serde_json::json;
use spillway_export::control::DeviceRow;

use super::*;
use crate::client::screen::paint;
use crate::client::top::looks::ObservedServer;
use crate::client::top::sample::tests::{device, sample};

fn options() -> TopOptions {
    TopOptions { device: None, interval: Duration::from_secs(1), sort: SortColumn::Name, count: None }
}

/// Devices that write more the later they are in the alphabet, on one server.
fn picture(names: &[&str]) -> Picture {
    let row = |name: &str, write_bytes: u64| {
        let mut row =
            DeviceRow { name: name.into(), stack: "zram".into(), disksize: 1 << 30, ..Default::default() };
        row.requests.write_bytes = write_bytes;
        row
    };
    let values = [("zram", "mem_used_total", json!(512 << 20)), ("zram", "error", json!("EIO"))];
    let devices = names.iter().zip(1u64..).map(|(name, rank)| {
        device(Some(sample(0, row(name, 0), &values)), sample(1, row(name, rank << 20), &values))
    });
    let devices: Vec<_> = devices.collect();
    let names = names.iter().map(ToString::to_string).collect();
    let servers = vec![ObservedServer { id: 7, devices: names, memory: (1 << 29, 1 << 30), silent: None }];
    Picture { servers, devices }
}

fn view(names: &[&str]) -> View {
    let mut view = View::new(&options());
    view.update(picture(names));
    view
}

fn press(view: &mut View, keys: &[Key]) {
    keys.iter().for_each(|&key| assert!(view.press(key), "{key:?} ends the view"));
}

fn chosen(view: &View) -> &str {
    &view.chosen.as_ref().expect("a device is selected").1
}

/// What a terminal of this size shows, a string a row.
fn shown(view: &mut View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let lines = view.compose(width.into(), height.into());
    terminal.draw(|frame| paint(&lines, frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>()).collect()
}

#[test]
fn a_small_terminal_shows_names_and_figures() {
    let rows = shown(&mut view(&["ram0", "ram1"]), 80, 24);
    let text = rows.join("\n");
    for part in [
        "devices 2",
        "write 3.00 MiB/s (0/s)",
        "memory ram0+1 512M/1G 50 %",
        "NAME",
        "WMiB/s",
        "> ram0 ",
        "  ram1 ",
        "512M/1G",
        "ram0: error EIO",
        "q end",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let row = rows.iter().find(|row| row.starts_with("  ram1")).unwrap();
    assert_eq!(row.split_whitespace().take(3).collect::<Vec<_>>(), ["ram1", "0.00", "2.00"]);
}

#[test]
fn the_selected_device_stays_selected_when_rows_move_and_go() {
    let mut view = view(&["a", "b", "c"]);
    press(&mut view, &[Key::Down]);
    assert_eq!(chosen(&view), "b");
    press(&mut view, &[Key::Char('>'), Key::Char('s')]);
    assert_eq!((view.sort, view.rows[0].key.1.as_str(), chosen(&view)), (SortColumn::Write, "c", "b"));
    press(&mut view, &[Key::Char('r'), Key::Home]);
    assert_eq!(chosen(&view), "a", "the smallest is first");
    press(&mut view, &[Key::Char('<'), Key::Char('<'), Key::Char('r'), Key::End]);
    assert_eq!((view.sort, chosen(&view)), (SortColumn::Name, "c"));
    view.update(picture(&["a", "b"]));
    assert_eq!(chosen(&view), "b", "the row in its place");
    view.update(picture(&[]));
    assert_eq!(view.chosen, None);
    press(&mut view, &[Key::Up, Key::Down, Key::Enter]);
    assert_eq!(view.page, Page::Table);
    view.update(picture(&["x"]));
    assert_eq!(chosen(&view), "x");
}

#[test]
fn enter_opens_a_device_and_escape_closes_it() {
    let mut view = view(&["a", "b"]);
    press(&mut view, &[Key::Down, Key::Enter]);
    let text = shown(&mut view, 80, 24).join("\n");
    assert!(text.starts_with("b  1G  zram") && text.contains("error: EIO"), "{text}");
    assert!(text.contains("mem_used_total") && text.contains("Esc back"), "{text}");
    press(&mut view, &[Key::Char('?')]);
    assert!(shown(&mut view, 80, 24)[0].starts_with("Keys"));
    press(&mut view, &[Key::Escape]);
    assert!(shown(&mut view, 80, 24)[0].starts_with("b  1G"), "the page below the keys");
    view.update(picture(&["a"]));
    assert!(shown(&mut view, 80, 24)[0].starts_with("b: it has ended"));
    press(&mut view, &[Key::Escape]);
    assert_eq!((&view.page, chosen(&view)), (&Page::Table, "a"));
}

#[test]
fn a_device_that_is_named_is_opened_once() {
    let mut view = View::new(&TopOptions { device: Some("b".into()), ..options() });
    view.update(picture(&["a", "b"]));
    assert!(shown(&mut view, 80, 24)[0].starts_with("b  1G"));
    press(&mut view, &[Key::Escape]);
    view.update(picture(&["a", "b"]));
    assert_eq!((&view.page, chosen(&view)), (&Page::Table, "b"));
}

#[test]
fn a_page_scrolls_no_further_than_its_end() {
    let mut view = view(&["a"]);
    press(&mut view, &[Key::Enter, Key::End]);
    let last = shown(&mut view, 80, 4);
    press(&mut view, &[Key::PageDown]);
    assert_eq!(shown(&mut view, 80, 4), last);
    press(&mut view, &[Key::Up]);
    assert_ne!(shown(&mut view, 80, 4), last);
    press(&mut view, &[Key::Home]);
    assert!(shown(&mut view, 80, 4)[0].starts_with("a  1G"));
}

#[test]
fn q_and_ctrl_c_end_every_page() {
    for way in [&[][..], &[Key::Enter], &[Key::Char('?')]] {
        for key in [Key::Char('q'), Key::Interrupt] {
            let mut view = view(&["a"]);
            press(&mut view, way);
            assert!(!view.press(key));
        }
    }
}

#[test]
fn terminals_of_all_sizes_show_every_page() {
    let names: Vec<_> = (0..70).map(|number| format!("device{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for devices in [&names[..0], &names[..1], &names] {
        let mut view = view(devices);
        for keys in [&[][..], &[Key::End], &[Key::Enter], &[Key::End], &[Key::Char('?')]] {
            press(&mut view, keys);
            for (width, height) in [(1, 1), (2, 3), (20, 5), (40, 12), (80, 24), (132, 43), (200, 60)] {
                shown(&mut view, width, height);
            }
        }
    }
    let mut all = view(&names);
    press(&mut all, &[Key::End]);
    let rows = shown(&mut all, 80, 24);
    assert!(rows.iter().any(|row| row.starts_with("> device9 ")), "{rows:#?}");
}
