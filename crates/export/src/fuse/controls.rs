//! Attributes as files: what is read and written of them.
//!
//! As in the kernel's sysfs, a read from the start takes the value anew and later ones go on in that text; a write is the whole value,
//! wherever it is written to. A value is shown with a newline at its end, and may be written with one.

use std::sync::Arc;

use spillway_core::{Answer, Attributes, Error, Value};

use super::wire::errno;
use crate::control::{Catalog, Change};

/// Longest value that is written, in bytes.
const WRITTEN_LEN_MAX: usize = 4096;

/// What the kernel says is the size of an attribute.
pub(super) const SIZE: u64 = 4096;

/// A part of a device, as a folder of control files.
pub struct Folder {
    /// Name of the part; no other of the device has it.
    pub name: String,
    /// Its attributes, each a file.
    pub attributes: Arc<dyn Attributes>,
}

/// A control file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlFile {
    pub(super) name: &'static str,
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl ControlFile {
    pub(super) fn permissions(&self) -> u32 {
        u32::from(self.readable) * 0o444 + u32::from(self.writable) * 0o200
    }
}

/// The control files of a device.
pub(super) struct Controls {
    device: String,
    pub(super) folders: Vec<(Folder, Vec<ControlFile>)>,
    /// Who carries out changes.
    catalog: Arc<dyn Catalog>,
}

impl Controls {
    pub(super) fn new(device: String, folders: Vec<Folder>, catalog: Arc<dyn Catalog>) -> Self {
        let folders = folders.into_iter().map(|folder| {
            let specs = folder.attributes.specs();
            let file = |spec: &spillway_core::Spec| ControlFile {
                name: spec.name,
                readable: spec.readable,
                writable: spec.writable,
            };
            let files = specs.iter().map(file).collect();
            (folder, files)
        });
        Self { device, folders: folders.collect(), catalog }
    }

    /// A file by the numbers of its folder and in it.
    pub(super) fn file(&self, folder: u16, file: u16) -> Option<ControlFile> {
        self.folders.get(usize::from(folder))?.1.get(usize::from(file)).copied()
    }

    /// What the attribute shows now, or an errno.
    pub(super) fn text(&self, (folder, file): (u16, u16)) -> Result<Box<[u8]>, i32> {
        let name = self.file(folder, file).ok_or(errno::ENOENT)?.name;
        let attributes = &self.folders[usize::from(folder)].0.attributes;
        let mut shown = attributes.show(name).map_err(|error| error.kind.errno())?;
        if !shown.ends_with('\n') {
            shown.push('\n');
        }
        Ok(shown.into_bytes().into())
    }

    /// Has the attribute set to what `bytes` say, or refuses by an errno.
    pub(super) fn write(
        &self,
        (folder, file): (u16, u16),
        bytes: &[u8],
    ) -> Result<Answer<Result<(), Error>>, i32> {
        let name = self.file(folder, file).ok_or(errno::ENOENT)?.name;
        if bytes.len() > WRITTEN_LEN_MAX {
            return Err(errno::E2BIG);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| errno::EINVAL)?;
        let text = text.strip_suffix('\n').unwrap_or(text).to_owned();
        let attribute = format!("{}.{name}", self.folders[usize::from(folder)].0.name);
        let change = Change::Set { device: self.device.clone(), attribute, value: Value::Text(text) };
        Ok(self.catalog.change(change))
    }
}
