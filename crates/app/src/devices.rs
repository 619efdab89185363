//! The devices of this server: the [`Catalog`] that control clients see.
//!
//! Looking is done here, on the thread of whoever looks. Changes are sent to the server's own thread, which makes one at a
//! time, so that two of them cannot meet. The list's lock is a leaf: it is released before a device is asked.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use spillway_core::sync::RwLock;
use spillway_core::{Answer, Attributes, Error, Kind};
use spillway_export::control::{AttributeRow, Catalog, Change, DeviceRow, ServerVersion};
use spillway_export::nbd::Export;
use spillway_layers::stack::Stack;

use crate::address::Address;
use crate::promise::Promise;
use crate::server::Event;

/// Bytes after which an attribute's value stands in a column of `mm_stat`: stored, compressed, in use.
const MM_STAT_COLUMNS: usize = 3;

/// A device that is served.
pub(crate) struct Device {
    /// What it is made of.
    pub(crate) stack: Stack,
    /// What NBD clients connect to.
    pub(crate) export: Arc<Export>,
    /// Where they connect.
    pub(crate) address: Address,
    /// What is worth knowing about how it was opened.
    pub(crate) notes: Vec<String>,
}

impl Device {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.export.name()
    }

    /// The device as a listing shows it.
    pub(crate) fn row(&self) -> DeviceRow {
        let geometry = self.export.geometry();
        let memory = self.stack.show("mm_stat").ok().and_then(|text| memory_columns(&text));
        let column = |index: usize| memory.map(|columns| columns[index]);
        DeviceRow {
            name: self.name().to_owned(),
            stack: self.stack.describe(),
            algorithm: self.stack.show("comp_algorithm").ok().and_then(|text| selected(&text)),
            disksize: geometry.size,
            data: column(0),
            compr: column(1),
            total: column(2),
            ratio: memory.filter(|columns| columns[0] > 0 && columns[2] > 0).map(|columns| ratio(&columns)),
            streams: self.stack.show("max_comp_streams").ok().and_then(|text| text.trim().parse().ok()),
            read_only: geometry.read_only,
            clients: self.export.clients() as u64,
            exports: (geometry.size > 0).then(|| self.address.uri(self.name())).into_iter().collect(),
        }
    }

    /// The attributes of all parts. A name that a part above has too is written `PART.NAME`.
    fn attributes(&self) -> Vec<AttributeRow> {
        let mut rows: Vec<AttributeRow> = Vec::new();
        for part in &self.stack.parts {
            for spec in part.attributes.specs() {
                let mut row = AttributeRow::from(spec);
                if rows.iter().any(|above| above.name == row.name) {
                    row.name = format!("{}.{}", part.name, row.name);
                }
                rows.push(row);
            }
        }
        rows
    }
}

fn memory_columns(mm_stat: &str) -> Option<[u64; MM_STAT_COLUMNS]> {
    let mut columns = mm_stat.split_whitespace().map(|word| word.parse().ok());
    Some([columns.next()??, columns.next()??, columns.next()??])
}

fn ratio([data, _, total]: &[u64; MM_STAT_COLUMNS]) -> f64 {
    *data as f64 / *total as f64
}

/// The word in brackets of a list of choices.
fn selected(choices: &str) -> Option<String> {
    let word = choices.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    word.map(str::to_owned)
}

/// All devices of this server.
pub(crate) struct Devices {
    list: RwLock<Vec<Arc<Device>>>,
    events: Sender<Event>,
}

impl Devices {
    /// No devices yet; changes go to `events`.
    pub(crate) fn new(events: Sender<Event>) -> Self {
        Self { list: RwLock::new(Vec::new()), events }
    }

    /// Adds a device whose name is not taken.
    pub(crate) fn add(&self, device: Arc<Device>) {
        self.list.write().push(device);
    }

    /// Takes a device from the list.
    pub(crate) fn remove(&self, name: &str) {
        self.list.write().retain(|device| device.name() != name);
    }

    /// Every device, in the order in which they were configured.
    pub(crate) fn all(&self) -> Vec<Arc<Device>> {
        self.list.read().clone()
    }

    /// The device of that name, or [`Kind::NotFound`] with the names there are.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Device>, Error> {
        let all = self.all();
        all.iter().find(|device| device.name() == name).cloned().ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|device| device.name()).collect();
            let there = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            Error::new(Kind::NotFound, format!("there is no device {name:?}; this server has: {there}"))
        })
    }
}

impl Catalog for Devices {
    fn version(&self) -> ServerVersion {
        ServerVersion { version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() }
    }

    fn devices(&self) -> Vec<DeviceRow> {
        self.all().iter().map(|device| device.row()).collect()
    }

    fn attributes(&self, device: &str) -> Result<Vec<AttributeRow>, Error> {
        Ok(self.find(device)?.attributes())
    }

    fn show(&self, device: &str, attribute: &str) -> Result<String, Error> {
        self.find(device)?.stack.show(attribute)
    }

    fn change(&self, change: Change) -> Answer<Result<(), Error>> {
        let (promise, answer) = Promise::new();
        // Where the server's thread is gone the promise is dropped, which answers that the server stops.
        let _ = self.events.send(Event::Change(change, promise));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_formats_are_understood() {
        assert_eq!(selected("lzo-rle lzo [lz4] zstd \n").as_deref(), Some("lz4"));
        assert_eq!(selected("lz4"), None);
        let columns = memory_columns("   40960     1000    12288        0    12288\n").unwrap();
        assert_eq!(columns, [40960, 1000, 12288]);
        assert!((ratio(&columns) - 3.333).abs() < 0.001);
        assert_eq!(memory_columns("1 2"), None);
    }
}
