//! Options that may change while requests read them.

use std::marker::PhantomData;

use spillway_core::Error;
use spillway_core::sync::{AtomicU64, Ordering};

/// A type that fits a word, so that it may change while others read it.
pub trait Word: Copy {
    /// The word.
    fn word(self) -> u64;

    /// The value of a word that [`Word::word`] gave.
    fn of_word(word: u64) -> Self;
}

impl Word for u64 {
    fn word(self) -> u64 {
        self
    }

    fn of_word(word: u64) -> Self {
        word
    }
}

impl Word for bool {
    fn word(self) -> u64 {
        self.into()
    }

    fn of_word(word: u64) -> Self {
        assert!(word <= 1, "{word} is no switch");
        word == 1
    }
}

impl Word for f64 {
    fn word(self) -> u64 {
        self.to_bits()
    }

    fn of_word(word: u64) -> Self {
        Self::from_bits(word)
    }
}

/// The largest number stands for none: no range may reach it.
impl Word for Option<u64> {
    fn word(self) -> u64 {
        assert_ne!(self, Some(u64::MAX), "the word for none");
        self.unwrap_or(u64::MAX)
    }

    fn of_word(word: u64) -> Self {
        Some(word).filter(|&word| word != u64::MAX)
    }
}

/// Refuses two percentages of which the first is above the second: [`spillway_core::Kind::Invalid`] names both.
pub(crate) fn in_order(low: (&str, u64), high: (&str, u64)) -> Result<(), Error> {
    if low.1 <= high.1 {
        return Ok(());
    }
    let ((name, percent), (other, limit)) = (low, high);
    Err(Error::invalid(format!(
        "{name} {percent} is above {other} {limit}: give percentages from 0 to 100, {name} not above {other}"
    )))
}

/// An option that may change while requests read it.
pub(crate) struct Live<T>(AtomicU64, PhantomData<T>);

impl<T: Word> Live<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(AtomicU64::new(value.word()), PhantomData)
    }

    pub(crate) fn get(&self) -> T {
        T::of_word(self.0.load(Ordering::Relaxed))
    }

    /// Changes it to a value that the declaration allows.
    pub(crate) fn set(&self, value: T) {
        self.0.store(value.word(), Ordering::Relaxed);
    }

    /// Changes it, and back if the settings do not fit together then.
    pub(crate) fn set_checked(&self, value: T, check: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
        let before = self.get();
        self.set(value);
        check().inspect_err(|_| self.set(before))
    }
}

/// Settings that always fit together.
pub(crate) fn unrelated<T>(_: &T) -> Result<(), Error> {
    Ok(())
}
