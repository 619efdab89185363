//! Attributes as files: what is read and written of them.
//!
//! As in the kernel's sysfs, a read from the start takes the value anew and later ones go on in that text; a write is the whole value,
//! wherever it is written to. A value is shown with a newline at its end, and may be written with one.

use std::collections::HashMap;
use std::sync::Arc;

use spillway_core::buffer::Reserve;
use spillway_core::sync::Mutex;
use spillway_core::{Answer, Attributes, Error, IoBuf, Value};

use super::wire::errno;
use crate::control::{Catalog, Change};

/// Longest value that is read, and written, in bytes.
const SHOWN_LEN_MAX: usize = 64 << 10;
const WRITTEN_LEN_MAX: usize = 4096;

/// Memory is counted in pages.
const PAGE: usize = 4096;

/// Control files that may be open at a time.
const OPEN_MAX: usize = 1024;

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
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    last_handle: u64,
    /// What was read last by each handle.
    texts: HashMap<u64, Option<Text>>,
}

struct Text {
    bytes: Vec<u8>,
    _reserve: Reserve,
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
        Self { device, folders: folders.collect(), catalog, open: Mutex::default() }
    }

    /// A file by the numbers of its folder and in it.
    pub(super) fn file(&self, folder: u16, file: u16) -> Option<ControlFile> {
        self.folders.get(usize::from(folder))?.1.get(usize::from(file)).copied()
    }

    /// A handle for one more open file, or an errno.
    pub(super) fn open(&self) -> Result<u64, i32> {
        let mut open = self.open.lock();
        if open.texts.len() >= OPEN_MAX {
            return Err(errno::ENFILE);
        }
        open.last_handle += 1;
        let handle = open.last_handle;
        open.texts.insert(handle, None);
        Ok(handle)
    }

    pub(super) fn close(&self, handle: u64) {
        let closed = self.open.lock().texts.remove(&handle);
        drop(closed);
    }

    /// Nobody will close what is open.
    pub(super) fn forget_files(&self) {
        let texts = std::mem::take(&mut self.open.lock().texts);
        drop(texts);
    }

    /// At most `len` bytes from `offset` of what the attribute shows, or an errno.
    pub(super) fn read(
        &self,
        (folder, file): (u16, u16),
        handle: u64,
        offset: u64,
        len: usize,
    ) -> Result<IoBuf, i32> {
        if offset == 0 {
            let text = self.take(folder, file)?;
            let mut open = self.open.lock();
            *open.texts.get_mut(&handle).ok_or(errno::EINVAL)? = Some(text);
        }
        let open = self.open.lock();
        let Some(Some(text)) = open.texts.get(&handle) else { return Ok(IoBuf::empty()) };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.bytes.len());
        let end = start.saturating_add(len).min(text.bytes.len());
        Ok(IoBuf::copy_of(&text.bytes[start..end]))
    }

    fn take(&self, folder: u16, file: u16) -> Result<Text, i32> {
        let spec = self.file(folder, file).ok_or(errno::ENOENT)?;
        let attributes = &self.folders[usize::from(folder)].0.attributes;
        let mut shown = attributes.show(spec.name).map_err(|error| error.kind.errno())?;
        if !shown.ends_with('\n') {
            shown.push('\n');
        }
        let mut bytes = shown.into_bytes();
        bytes.truncate(SHOWN_LEN_MAX);
        let reserve = Reserve::try_new(bytes.len().next_multiple_of(PAGE) as u64).ok_or(errno::ENOMEM)?;
        Ok(Text { bytes, _reserve: reserve })
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
