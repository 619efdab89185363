//! Attributes as files: what is read and written of them.
//!
//! As in the kernel's sysfs, a read from the start takes the value anew and later ones go on in that text; a write is the whole value,
//! wherever it is written to. A value is shown with a newline at its end, nothing as an empty file, and may be written with a newline. Of
//! lines an excerpt is shown at a time: a read where it ends takes the next.

use std::sync::Arc;

use spillway_core::{Answer, Attributes, Excerpt, work};

use super::wire::errno;
use crate::control::{DeviceChanges, Operation};

/// Longest value that is written, in bytes.
const WRITTEN_LEN_MAX: usize = 4096;

/// Units of work for a value that is shown: it may sum over a whole device.
pub(super) const SHOWN_UNITS: u32 = work::TURN / 4;

/// What the kernel says is the size of an attribute.
pub(super) const SIZE: u64 = 4096;

/// A control file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlFile {
    pub(super) name: &'static str,
    pub(super) permissions: u32,
}

impl ControlFile {
    pub(super) fn is_readable(&self) -> bool {
        self.permissions & 0o400 != 0
    }

    pub(super) fn is_writable(&self) -> bool {
        self.permissions & 0o200 != 0
    }
}

/// A folder of control files.
pub(super) trait Controls: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// Its files, always the same.
    fn files(&self) -> &[ControlFile];

    /// What a file that can be read shows now, from the start (0) or from where a piece of it said, or an errno.
    fn show(&self, file: &ControlFile, from: u64) -> Answer<Result<TextPiece, i32>>;

    /// Carries out what is written to a file, or refuses by an errno.
    fn store(&self, file: &ControlFile, text: String) -> Answer<Result<(), i32>>;
}

/// What a control file shows, or of lines the next of it.
pub(super) struct TextPiece {
    pub(super) text: Box<[u8]>,
    /// Where the next piece begins; `None` behind the last.
    pub(super) next: Option<u64>,
}

impl TextPiece {
    /// A piece of which the last line has no newline yet.
    pub(super) fn new(mut text: String, next: Option<u64>) -> Self {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        Self { text: text.into_bytes().into(), next }
    }
}

/// The value that is written by `bytes`, or an errno.
pub(super) fn value_of(bytes: &[u8]) -> Result<String, i32> {
    if bytes.len() > WRITTEN_LEN_MAX {
        return Err(errno::E2BIG);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| errno::EINVAL)?;
    Ok(text.strip_suffix('\n').unwrap_or(text).to_owned())
}

/// A part of a device, as a folder of control files.
pub struct Folder {
    /// Name of the part; no other of the device has it.
    pub name: String,
    /// Its attributes, each a file.
    pub attributes: Arc<dyn Attributes>,
}

/// The folder of a part of a device.
pub(super) struct PartFolder {
    device: String,
    folder: Folder,
    files: Vec<ControlFile>,
    /// Who carries out changes.
    server: Arc<dyn DeviceChanges>,
}

impl PartFolder {
    pub(super) fn new(device: &str, folder: Folder, server: Arc<dyn DeviceChanges>) -> Self {
        let file = |spec: &spillway_core::Spec| ControlFile {
            name: spec.name,
            permissions: u32::from(spec.readable) * 0o444 + u32::from(spec.writable) * 0o200,
        };
        let files: Vec<_> = folder.attributes.specs().iter().map(file).collect();
        // Numbers of nodes have room for so many.
        assert!(files.len() < usize::from(u16::MAX), "{} files in {}", files.len(), folder.name);
        Self { device: device.to_owned(), folder, files, server }
    }
}

impl Controls for PartFolder {
    fn name(&self) -> &str {
        &self.folder.name
    }

    fn files(&self) -> &[ControlFile] {
        &self.files
    }

    fn show(&self, file: &ControlFile, from: u64) -> Answer<Result<TextPiece, i32>> {
        let attributes = &self.folder.attributes;
        let piece = attributes.spec(file.name).and_then(|spec| {
            let Excerpt { value, next } = attributes.excerpt(file.name, from)?;
            Ok(TextPiece::new(spec.text(&value), next))
        });
        Answer::Done(piece.map_err(|error| error.kind.errno()))
    }

    fn store(&self, file: &ControlFile, text: String) -> Answer<Result<(), i32>> {
        let attribute = format!("{}.{}", self.folder.name, file.name);
        let change = Operation::Set { device: self.device.clone(), attribute, value: text.into() };
        let answer = self.server.change(change);
        Answer::pending(async move { answer.await.map_err(|error| error.kind.errno()) })
    }
}
