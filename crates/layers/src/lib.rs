//! Origins and layers. A layer sees the world through `spillway_core` only: it can make no system call, so the code that
//! passes in simulation is the code that ships.
//!
//! Every kind has a `Config` (what a configuration file says, checked by the kind's `new`), a device, and a table of
//! attributes whose names are the configuration's keys. [`stack`] is the one match over the kinds.

pub mod delay;
pub mod fault;
pub mod file;
pub mod memory;
pub mod null;
pub mod rate;
pub mod stack;
pub mod trace;
pub mod write_cache;
pub mod zram;

/// Values as configurations and attributes write them, and the words for those that are refused.
pub mod config {
    use std::ops::RangeInclusive;

    use serde::Deserialize;
    use spillway_core::sync::{AtomicU64, Ordering};
    use spillway_core::{BlockSize, Error, block, size};

    /// A size: a whole number of bytes, or text such as `"4G"` or `"512MiB"`. The text is read where it is used, so that
    /// a refusal can name the key.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(untagged, expecting = "expected a size: a whole number of bytes, or text such as \"4G\"")]
    pub enum Size {
        /// Bytes.
        Bytes(u64),
        /// Digits with a unit; see [`size::parse`].
        Text(String),
    }

    impl Size {
        /// The size in bytes; [`spillway_core::Kind::Invalid`] naming `key` where the text is not a size.
        pub fn bytes(&self, key: &str) -> Result<u64, Error> {
            match self {
                Size::Bytes(bytes) => Ok(*bytes),
                Size::Text(text) => size::parse(text).map_err(|error| about(key, &error)),
            }
        }

        /// The size of a device of whole blocks.
        pub(crate) fn of_device(&self, key: &str, block: BlockSize) -> Result<u64, Error> {
            let bytes = self.bytes(key)?;
            if bytes == 0 || bytes > block::DEVICE_BYTES_MAX || !bytes.is_multiple_of(block.bytes()) {
                let unit = block.bytes();
                return Err(Error::invalid(format!(
                    "{key} cannot be {bytes} bytes: give a multiple of {unit} from {unit} to 4E"
                )));
            }
            Ok(bytes)
        }
    }

    impl Default for Size {
        fn default() -> Self {
            Size::Bytes(0)
        }
    }

    impl From<u64> for Size {
        fn from(bytes: u64) -> Self {
            Size::Bytes(bytes)
        }
    }

    impl From<&str> for Size {
        fn from(text: &str) -> Self {
            Size::Text(text.to_owned())
        }
    }

    /// `error` with the place it is about in front.
    pub(crate) fn about(place: &str, error: &Error) -> Error {
        Error::new(error.kind, format!("{place}: {}", error.message()))
    }

    /// The value that `text` names in `choices`.
    pub(crate) fn choose<T: Copy>(key: &str, text: &str, choices: &[(T, &str)]) -> Result<T, Error> {
        let found = choices.iter().find(|(_, name)| *name == text.trim());
        found.map(|(value, _)| *value).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(_, name)| *name).collect();
            Error::invalid(format!("{key} cannot be {text:?}: give one of {}", names.join(", ")))
        })
    }

    /// The name of `value` in `choices`, which lists it.
    pub(crate) fn name_of<T: PartialEq>(value: T, choices: &[(T, &'static str)]) -> &'static str {
        let found = choices.iter().find(|(choice, _)| *choice == value);
        found.map(|(_, name)| *name).expect("a table of choices lists every value it can yield")
    }

    /// A number of a layer that may be changed while requests read it.
    pub(crate) struct Setting {
        key: &'static str,
        allowed: RangeInclusive<u64>,
        value: AtomicU64,
    }

    impl Setting {
        /// `value` under the name `key`; [`spillway_core::Kind::Invalid`] outside `allowed`.
        pub(crate) fn new(
            key: &'static str,
            value: u64,
            allowed: RangeInclusive<u64>,
        ) -> Result<Self, Error> {
            let setting = Self { key, allowed, value: AtomicU64::new(0) };
            setting.set(value)?;
            Ok(setting)
        }

        pub(crate) fn get(&self) -> u64 {
            self.value.load(Ordering::Relaxed)
        }

        pub(crate) fn show(&self) -> String {
            self.get().to_string()
        }

        /// Stores a plain number.
        pub(crate) fn store(&self, text: &str) -> Result<(), Error> {
            self.set(text.trim().parse().map_err(|_| self.refusal(&format!("{text:?}")))?)
        }

        /// Stores a size with or without a unit.
        pub(crate) fn store_size(&self, text: &str) -> Result<(), Error> {
            self.set(Size::from(text).bytes(self.key)?)
        }

        pub(crate) fn set(&self, value: u64) -> Result<(), Error> {
            if !self.allowed.contains(&value) {
                return Err(self.refusal(&value.to_string()));
            }
            self.value.store(value, Ordering::Relaxed);
            Ok(())
        }

        fn refusal(&self, value: &str) -> Error {
            let (key, least, most) = (self.key, self.allowed.start(), self.allowed.end());
            Error::invalid(format!("{key} cannot be {value}: give a whole number from {least} to {most}"))
        }
    }
}
