//! The codecs of a device, by priority: the primary, which writers use, and up to three secondaries, which pages are recompressed with.
//!
//! A slot keeps the priority of the codec that has made its object, so that two may differ in their parameters alone. They change only
//! while the device has no size: a slot's lock orders what a reader finds here after the choice.

use std::sync::Arc;

use spillway_core::sync::{AtomicU32, Mutex, Ordering};
use spillway_core::{Budget, Charge, Kind};

use super::encoder::{Choice, Encoder};
use crate::spill::format;
use crate::zram::codec::{CODECS, Codec, CodecIndex};
use crate::zram::page::PAGE;

/// Codecs that a device may have. A slot has room for eight.
pub(crate) const PRIORITIES: usize = 4;

/// A codec for recompression, and the memory of its encoder.
struct Secondary {
    choice: Choice,
    _charge: Charge,
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Codecs {
    /// Numbers in [`CODECS`] by priority, of 8 bits each.
    numbers: AtomicU32,
    /// From priority 1 on.
    secondaries: Mutex<[Option<Secondary>; PRIORITIES - 1]>,
}

impl Codecs {
    /// The number in [`CODECS`] of the codec of that priority.
    #[inline]
    pub(crate) fn number(&self, priority: CodecIndex) -> usize {
        (self.numbers.load(Ordering::Relaxed) >> (8 * u32::from(priority.0)) & 0xff) as usize
    }

    /// The codec of that priority.
    pub(crate) fn get(&self, priority: CodecIndex) -> &'static Codec {
        &CODECS[self.number(priority)]
    }

    /// How an object of `len` bytes is read from the spill file, which names codecs for readers without the device.
    pub(crate) fn record_codec(&self, len: usize, priority: CodecIndex) -> format::RecordCodec {
        if len == PAGE {
            format::RecordCodec::RAW
        } else {
            format::RecordCodec::compressed(self.number(priority) as u8)
        }
    }

    /// The first priority of the codec of that number, if it is in use.
    pub(crate) fn priority(&self, number: usize) -> Option<CodecIndex> {
        self.in_use().find(|&priority| self.number(priority) == number)
    }

    /// Names of the codecs in use by their numbers; nothing for the others.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |number| self.priority(number).map_or("", |_| CODECS[number].name);
        (0..CODECS.len()).map(|number| name(number).to_owned()).collect()
    }

    /// The priorities that have a codec. The primary is found without a lock.
    fn in_use(&self) -> impl Iterator<Item = CodecIndex> {
        let is_in_use =
            |&priority: &CodecIndex| priority == CodecIndex::PRIMARY || self.secondary(priority).is_some();
        (0..PRIORITIES as u8).map(CodecIndex).filter(is_in_use)
    }

    fn set(&self, priority: usize, codec: usize) {
        let shift = 8 * priority as u32;
        let other = self.numbers.load(Ordering::Relaxed) & !(0xff << shift);
        self.numbers.store(other | (codec as u32) << shift, Ordering::Relaxed);
    }

    /// Writers use this codec from now on. No client is at work.
    pub(crate) fn set_primary(&self, codec: usize) {
        self.set(0, codec);
    }

    /// Pages are recompressed with `choice` at a priority from 1 on, whose encoder is charged to `budget`. No client is at work.
    pub(crate) fn set_secondary(
        &self,
        priority: CodecIndex,
        choice: Choice,
        budget: &Arc<Budget>,
    ) -> Result<(), Kind> {
        let place = usize::from(priority.0).checked_sub(1).expect("priority 0 is the primary");
        let charge = budget.hold(choice.encoder_bytes())?;
        self.secondaries.lock()[place] = Some(Secondary { choice, _charge: charge });
        self.set(usize::from(priority.0), choice.codec);
        Ok(())
    }

    /// There are no secondaries. No client is at work.
    pub(crate) fn clear_secondaries(&self) {
        *self.secondaries.lock() = Default::default();
    }

    /// What is chosen at a priority from 1 on.
    pub(crate) fn secondary(&self, priority: CodecIndex) -> Option<Choice> {
        let place = usize::from(priority.0).checked_sub(1)?;
        self.secondaries.lock().get(place)?.as_ref().map(|secondary| secondary.choice)
    }

    /// The secondaries, the weakest first.
    pub(crate) fn secondaries(&self) -> Vec<(CodecIndex, Choice)> {
        let priorities = (1..PRIORITIES as u8).map(CodecIndex);
        priorities.filter_map(|priority| Some((priority, self.secondary(priority)?))).collect()
    }

    /// An encoder of a secondary, of the memory that is charged for it: one at a time.
    pub(crate) fn encoder(&self, priority: CodecIndex) -> Option<Encoder> {
        self.secondary(priority).map(|choice| Encoder::new(priority, choice, None))
    }
}
