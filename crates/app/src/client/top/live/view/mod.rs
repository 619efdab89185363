//! Which page is open, what is selected, and what keys do to that.

use spillway_io::mutant;

use super::detail;
use super::pages::{self, Overview};
use crate::cli::{SortColumn, TopOptions};
use crate::client::screen::{Key, Line};
use crate::client::top::figures::{Figures, figures};
use crate::client::top::looks::Picture;
use crate::client::top::sample::{DeviceKey, ObservedDevice};
use crate::client::top::table::{COLUMNS, sort};

/// Rows that PageUp and PageDown pass over.
const PAGE_ROWS: usize = 10;

/// What is open.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Page {
    Table,
    Device(DeviceKey),
}

/// See the head of this file.
pub(super) struct View {
    picture: Picture,
    /// The rows of all devices, sorted.
    rows: Vec<Figures>,
    sort: SortColumn,
    reversed: bool,
    /// The selected row, which is one of the rows unless there are none, and its device.
    selected: usize,
    chosen: Option<DeviceKey>,
    /// The row or line at the top of the page.
    first: usize,
    page: Page,
    help: bool,
    /// The device to open once it is found.
    wanted: Option<String>,
}

impl View {
    /// As the options have it, before the first look.
    pub(super) fn new(options: &TopOptions) -> Self {
        Self {
            picture: Picture::default(),
            rows: Vec::new(),
            sort: options.sort,
            reversed: false,
            selected: 0,
            chosen: None,
            first: 0,
            page: Page::Table,
            help: false,
            wanted: options.device.clone(),
        }
    }

    /// Takes what a look has found. The selected device stays selected, wherever its row is now.
    pub(super) fn update(&mut self, picture: Picture) {
        self.rows = picture.devices.iter().map(figures).collect();
        self.picture = picture;
        let wanted = self.rows.iter().find(|row| Some(&row.key.1) == self.wanted.as_ref());
        if let Some(key) = wanted.map(|row| row.key.clone()) {
            (self.wanted, self.chosen) = (None, Some(key.clone()));
            self.page = Page::Device(key);
        }
        self.arrange();
    }

    fn arrange(&mut self) {
        sort(&mut self.rows, self.sort, self.reversed);
        let chosen = self.rows.iter().position(|row| Some(&row.key) == self.chosen.as_ref());
        self.select(chosen.unwrap_or(self.selected));
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.rows.len().saturating_sub(1));
        self.chosen = self.rows.get(self.selected).map(|row| row.key.clone());
        assert_eq!(self.chosen.is_none(), self.rows.is_empty(), "a device is selected unless there is none");
    }

    /// Does what a key means; whether the view goes on.
    pub(super) fn press(&mut self, key: Key) -> bool {
        assert!(!mutant::on("top: panic at a key"), "a deliberate defect");
        match key {
            Key::Char('q') | Key::Interrupt => return false,
            Key::Char('?') => self.help = !self.help,
            Key::Escape if self.help => self.help = false,
            _ if self.help => {}
            Key::Escape => self.open(Page::Table),
            _ if self.page != Page::Table => self.scroll(key),
            Key::Enter => {
                if let Some(key) = self.chosen.clone() {
                    self.open(Page::Device(key));
                }
            }
            Key::Char('s' | '>') => self.sort_by(1),
            Key::Char('<') => self.sort_by(COLUMNS.len() - 1),
            Key::Char('r') => {
                self.reversed = !self.reversed;
                self.arrange();
            }
            key => self.select(moved(self.selected, key)),
        }
        true
    }

    fn open(&mut self, page: Page) {
        (self.page, self.first) = (page, 0);
    }

    /// Scrolls a device's page; how far that goes is known when it is composed.
    fn scroll(&mut self, key: Key) {
        self.first = moved(self.first, key);
    }

    /// Sorts by the column so many to the right, beyond the last one from the left again.
    fn sort_by(&mut self, steps: usize) {
        let at = COLUMNS.iter().position(|&column| column == self.sort).expect("it is a column");
        self.sort = COLUMNS[(at + steps) % COLUMNS.len()];
        self.arrange();
    }

    /// The lines of the page that is open, for so many columns and rows.
    pub(super) fn compose(&mut self, width: usize, height: usize) -> Vec<Line> {
        if self.help {
            return pages::help();
        }
        let Page::Device(key) = &self.page else { return pages::table(&mut self.overview(), width, height) };
        let lines = match self.device(key) {
            Some(device) => detail::lines(device, width),
            None => vec![Line::strong(format!("{}: it has ended, or its server", key.1))],
        };
        let room = height.saturating_sub(1);
        self.first = self.first.min(lines.len().saturating_sub(room));
        let mut shown: Vec<_> = lines.into_iter().skip(self.first).take(room).collect();
        shown.resize_with(room, Line::default);
        shown.push(Line::strong(pages::DEVICE_KEYS));
        shown
    }

    fn overview(&mut self) -> Overview<'_> {
        let Self { picture, rows, sort, reversed, selected, first, .. } = self;
        Overview { picture, rows, sort: *sort, reversed: *reversed, selected: *selected, first }
    }

    fn device(&self, key: &DeviceKey) -> Option<&ObservedDevice> {
        self.picture.devices.iter().find(|device| device.key == *key)
    }
}

/// The place that a key goes to from `place`.
fn moved(place: usize, key: Key) -> usize {
    match key {
        Key::Up => place.saturating_sub(1),
        Key::Down => place.saturating_add(1),
        Key::PageUp => place.saturating_sub(PAGE_ROWS),
        Key::PageDown => place.saturating_add(PAGE_ROWS),
        Key::Home => 0,
        Key::End => usize::MAX,
        _ => place,
    }
}

#[cfg(test)]
mod tests;
