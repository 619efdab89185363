//! A device that is served: its stack, its export and how they are shown.

use std::sync::Arc;

use spillway_core::Attributes;
use spillway_export::control::{AttributeRow, DeviceRow};
use spillway_export::nbd::Export;
use spillway_layers::stack::Stack;

use crate::address::Address;

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
    pub(crate) fn attributes(&self) -> Vec<AttributeRow> {
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
