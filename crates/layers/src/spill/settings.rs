//! What a spill file is opened with.

use spillway_core::{Error, Works};

use super::format::{CODEC_NAME_LEN, CODECS, NAME_LEN_MAX, SEGMENT_SHIFT, SEGMENT_SHIFT_MIN};

/// Whether a device takes what it stored before it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// No: a file that has it is refused.
    Never,
    /// Where the file has it; otherwise the device begins empty.
    IfThere,
    /// A file that does not have it is refused.
    Always,
}

impl Keep {
    /// What is to be kept, or has to be there.
    pub(crate) fn of(keep: bool, required: bool) -> Self {
        match (keep, required) {
            (_, true) => Keep::Always,
            (true, false) => Keep::IfThere,
            (false, false) => Keep::Never,
        }
    }
}

/// What a spill file is opened with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device's name, at most 256 bytes.
    pub name: String,
    /// Slots of the device.
    pub slots: u64,
    /// Names of its codecs by number, at most 8 of at most 16 bytes, empty where it has none of that number.
    pub codecs: Vec<String>,
    /// Take a file whatever it holds.
    pub force: bool,
    /// Take one that a device of this name has left without being stopped.
    pub retake: bool,
    /// Whether what it keeps is taken.
    pub keep: Keep,
    /// What to do about a file that is refused, where it is not to be forced.
    pub remedy: Option<&'static str>,
    /// Buffers of a MiB for what is written: so many batches are under way at once.
    pub batches: usize,
    /// Bytes that the owner keeps for each record of a batch: charged for as many as a batch may have.
    pub kept: usize,
    /// Bytes of a segment as a power of two: 22, in tests from 14 on.
    pub segment_shift: u32,
    /// Where the device's long work is registered.
    pub works: Works,
}

impl Settings {
    /// Those of a device with this name and so many slots.
    pub fn new(name: impl Into<String>, slots: u64) -> Self {
        Self {
            name: name.into(),
            slots,
            codecs: Vec::new(),
            force: false,
            retake: false,
            keep: Keep::Never,
            remedy: None,
            batches: 4,
            kept: 0,
            segment_shift: SEGMENT_SHIFT,
            works: Works::default(),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let len = self.name.len();
        if len > NAME_LEN_MAX {
            return Err(Error::invalid(format!(
                "a device that spills has a name of at most {NAME_LEN_MAX} bytes, not {len}"
            )));
        }
        assert!((SEGMENT_SHIFT_MIN..=SEGMENT_SHIFT).contains(&self.segment_shift) && self.batches > 0);
        assert!(self.codecs.len() <= CODECS, "{} codecs", self.codecs.len());
        Ok(())
    }
}

/// Names of codecs by number, as a superblock has them.
pub(super) fn codec_names(codecs: &[String]) -> [[u8; CODEC_NAME_LEN]; CODECS] {
    let mut names = [[0; CODEC_NAME_LEN]; CODECS];
    for (into, name) in names.iter_mut().zip(codecs) {
        into[..name.len()].copy_from_slice(name.as_bytes());
    }
    names
}
