//! Values out of text, checked against the declaration; the words of a refusal.

use std::num::IntErrorKind;

use super::spec::{Spec, Type};
use super::value::Value;
use crate::error::{Error, Kind};
use crate::size::{self, human};

/// Longest name of a choice, as in the kernel: what is longer cannot be one.
const NAME_CHARS_MAX: usize = 127;

/// The word for [`Value::None`].
pub(super) const NONE: &str = "none";

impl Spec {
    /// Reads text that a person typed as an option or in a configuration; sizes by [`size::parse`]. [`Kind::Invalid`], or what the
    /// declaration says for a number that is too large; [`Kind::TooLong`] for a name that can be none.
    pub fn parse(&self, text: &str) -> Result<Value, Error> {
        self.read(text, size::parse)
    }

    /// Reads text that was written to the attribute: like [`Self::parse`], by the kernel's rules where it is the kernel's. Errors as there.
    pub fn parse_written(&self, text: &str) -> Result<Value, Error> {
        self.read(text, if self.kernel { size::memparse } else { size::parse })
    }

    /// Checks a value that is written to the attribute. Text is read by [`Self::parse_written`]. Errors as for [`Self::parse`].
    pub fn check(&self, value: Value) -> Result<Value, Error> {
        match (self.kind, value) {
            (_, Value::None) if self.or_none => Ok(Value::None),
            (Type::Number(..) | Type::PowerOfTwo(..), Value::U64(number)) => self.in_range(number),
            (Type::Switch, Value::U64(number @ 0..=1)) => Ok(Value::Switch(number == 1)),
            (Type::Switch, Value::Switch(on)) => Ok(Value::Switch(on)),
            (Type::Choice(_), Value::Choice(name)) => self.named(name),
            (Type::Ratio { .. }, Value::U64(number)) => self.bounded(number, 1),
            (Type::Ratio { .. }, Value::Ratio(part, whole)) => self.bounded(part, whole),
            (Type::Text | Type::Path, Value::Text(text)) => Ok(Value::Text(text)),
            (_, Value::Text(text)) => self.parse_written(&text),
            (_, Value::Switch(on)) => Err(self.refused(&on.to_string())),
            (_, value) => Err(self.refused(&self.text(&value))),
        }
    }

    /// What is allowed, to follow "give".
    pub fn allowed(&self) -> String {
        let values = match self.kind {
            Type::Number(least, most) if self.unit.is_size() => sizes(least, most),
            Type::Number(least, most) => numbers(least, most),
            Type::PowerOfTwo(least, most) => format!("a power of two from {least} to {most}"),
            Type::Switch => "0 or 1".into(),
            Type::Choice(names) => format!("one of {}", names.join(", ")),
            Type::Ratio { most, .. } => format!("a number from 0 to {most}, such as 0.01"),
            Type::Text => "text".into(),
            Type::Path => "a path".into(),
            Type::Columns { columns, .. } => format!("{} numbers", columns.len()),
            Type::Rows(columns) => format!("rows of {} values", columns.len()),
            Type::Lines => "lines of text".into(),
        };
        if self.or_none { format!("{values}, or {NONE}") } else { values }
    }

    /// The refusal of `value`, as it was written or shown.
    pub fn refused(&self, value: &str) -> Error {
        self.refused_as(Kind::Invalid, value)
    }

    fn refused_as(&self, kind: Kind, value: &str) -> Error {
        Error::new(kind, format!("{} cannot be {value}: give {}", self.name, self.allowed()))
    }

    fn read(&self, text: &str, size: fn(&str) -> Result<u64, Error>) -> Result<Value, Error> {
        let word = text.trim();
        if self.or_none && word == NONE {
            return Ok(Value::None);
        }
        match self.kind {
            Type::Number(..) | Type::PowerOfTwo(..) if self.unit.is_size() => {
                self.in_range(size(word).map_err(|_| self.refused(&format!("{word:?}")))?)
            }
            Type::Number(..) | Type::PowerOfTwo(..) => self.in_range(self.number(word)?),
            Type::Switch => {
                let on = switch(word).or_else(|| self.kernel.then(|| kernel_switch(word)).flatten());
                on.map(Value::Switch).ok_or_else(|| self.refused(&format!("{word:?}")))
            }
            Type::Choice(_) => self.named(word),
            Type::Ratio { decimals, .. } => {
                let read = decimal(word, decimals).ok_or_else(|| self.refused(&format!("{word:?}")));
                read.and_then(|(part, whole)| self.bounded(part, whole))
            }
            Type::Text | Type::Path => Ok(Value::Text(text.to_owned())),
            Type::Columns { .. } | Type::Rows(_) | Type::Lines => Err(self.refused(&format!("{word:?}"))),
        }
    }

    fn number(&self, word: &str) -> Result<u64, Error> {
        word.parse().map_err(|error: std::num::ParseIntError| {
            let above = *error.kind() == IntErrorKind::PosOverflow;
            self.refused_as(if above { self.above } else { Kind::Invalid }, &format!("{word:?}"))
        })
    }

    fn in_range(&self, number: u64) -> Result<Value, Error> {
        let (least, most, fits) = match self.kind {
            Type::PowerOfTwo(least, most) => (least, most, number.is_power_of_two()),
            Type::Number(least, most) => (least, most, true),
            _ => unreachable!("{} is no number", self.name),
        };
        if fits && (least..=most).contains(&number) {
            return Ok(Value::U64(number));
        }
        Err(self.refused_as(if number > most { self.above } else { Kind::Invalid }, &number.to_string()))
    }

    fn named(&self, word: &str) -> Result<Value, Error> {
        let Type::Choice(names) = self.kind else { unreachable!("{} is no choice", self.name) };
        if word.len() > NAME_CHARS_MAX {
            let long = format!("text of {} characters", word.len());
            return Err(self.refused_as(Kind::TooLong, &long));
        }
        let found = names.iter().find(|name| **name == word);
        found.map(|name| Value::Choice(name)).ok_or_else(|| self.refused(&format!("{word:?}")))
    }

    fn bounded(&self, part: u64, whole: u64) -> Result<Value, Error> {
        let Type::Ratio { most, .. } = self.kind else { unreachable!("{} is no ratio", self.name) };
        let value = Value::Ratio(part, whole);
        let within = whole > 0 && u128::from(part) <= u128::from(most) * u128::from(whole);
        if within { Ok(value) } else { Err(self.refused(&self.text(&value))) }
    }
}

fn switch(word: &str) -> Option<bool> {
    match word {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// What the kernel takes for on or off: words by their first letters, and numbers.
fn kernel_switch(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_bytes() {
        [b'y' | b't', ..] | [b'o', b'n', ..] => Some(true),
        [b'n' | b'f', ..] | [b'o', b'f', ..] => Some(false),
        _ => word.parse::<u64>().ok().map(|number| number != 0),
    }
}

fn numbers(least: u64, most: u64) -> String {
    match (least, most) {
        (0, u64::MAX) => "a whole number".into(),
        (least, u64::MAX) => format!("a whole number from {least}"),
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("a whole number from {least} to {most}"),
    }
}

fn sizes(least: u64, most: u64) -> String {
    match (least, most) {
        (0, u64::MAX) => "a size in bytes or with K, M, G, T, such as 4G".into(),
        (least, u64::MAX) => format!("a size from {}, such as 4G", human(least)),
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("a size from {} to {}, such as 4G or 512M", human(least), human(most)),
    }
}

/// `word` as a fraction of ten to the power of `decimals`.
fn decimal(word: &str, decimals: u32) -> Option<(u64, u64)> {
    let (whole, fraction) = word.split_once('.').unwrap_or((word, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > decimals as usize {
        return None;
    }
    let scale = 10u64.checked_pow(decimals)?;
    let parts = fraction.parse::<u64>().ok()? * 10u64.pow(decimals - fraction.len() as u32);
    Some((whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(parts)?, scale))
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Unit, When};
    use super::*;

    fn knob(kind: Type) -> Spec {
        Spec::knob("knob", When::Live, kind, "Help")
    }

    fn refusal(spec: &Spec, text: &str) -> (Kind, String) {
        let error = spec.parse(text).unwrap_err();
        assert!(error.message().contains("knob cannot be ") && error.message().contains("give "), "{error}");
        (error.kind, error.message().to_owned())
    }

    #[test]
    fn text_becomes_a_value_of_the_declared_type() {
        let bytes = knob(Type::COUNT).unit(Unit::Bytes);
        for (spec, text, value) in [
            (knob(Type::Number(1, 9)), " 9\n", Value::U64(9)),
            (bytes, "1.5K", Value::U64(1536)),
            (knob(Type::PowerOfTwo(512, 65536)).unit(Unit::Bytes), "64K", Value::U64(65536)),
            (knob(Type::Switch), "1", Value::Switch(true)),
            (knob(Type::Choice(&["lz4", "zstd"])), "zstd\n", Value::Choice("zstd")),
            (knob(Type::Ratio { most: 1, decimals: 9 }), "0.25", Value::Ratio(250_000_000, 1_000_000_000)),
            (knob(Type::Ratio { most: 1, decimals: 2 }), "1", Value::Ratio(100, 100)),
            (knob(Type::Text), " a b ", Value::Text(" a b ".into())),
            (knob(Type::Number(1, 9)).or_none(), "none", Value::None),
        ] {
            assert_eq!(spec.parse(text), Ok(value), "{text}");
        }
        assert_eq!(bytes.kernel().parse_written("0x10"), Ok(Value::U64(16)));
        assert_eq!(bytes.kernel().parse("1.5K"), Ok(Value::U64(1536)), "a person's rules");
        assert!(bytes.kernel().parse_written("1.5K").is_err() && bytes.parse_written("1.5K").is_ok());
        let switch = knob(Type::Switch).kernel();
        for text in ["1", "y", "Yes", "on", "true", "7"] {
            assert_eq!(switch.parse_written(text), Ok(Value::Switch(true)), "{text}");
        }
        for text in ["0", "n", "No", "OFF", "false", "000"] {
            assert_eq!(switch.parse_written(text), Ok(Value::Switch(false)), "{text}");
        }
        assert!(["", "o", "-1", "maybe"].into_iter().all(|text| switch.parse_written(text).is_err()));
        assert!(knob(Type::Switch).parse_written("yes").is_err(), "ours are 0 and 1");
    }

    #[test]
    fn a_refusal_names_the_value_and_what_is_allowed() {
        let number = knob(Type::Number(1, 9));
        assert_eq!(refusal(&number, "10").1, "knob cannot be 10: give a whole number from 1 to 9");
        assert_eq!(refusal(&number, "x").1, "knob cannot be \"x\": give a whole number from 1 to 9");
        for (spec, text, part) in [
            (number, "-1", "\"-1\""),
            (number, "", "\"\""),
            (number.or_none(), "0", "to 9, or none"),
            (knob(Type::Number(1, 1)), "0", "give 1"),
            (knob(Type::Number(0, 1 << 44)).unit(Unit::Bytes), "17T", "from 0B to 16T"),
            (knob(Type::Number(1 << 20, u64::MAX)).unit(Unit::Bytes), "1K", "a size from 1M, such"),
            (knob(Type::COUNT).unit(Unit::Bytes), "4X", "\"4X\""),
            (knob(Type::PowerOfTwo(512, 65536)), "3000", "a power of two from 512 to 65536"),
            (knob(Type::Switch), "yes", "0 or 1"),
            (knob(Type::Choice(&["a", "b"])), "c", "one of a, b"),
            (knob(Type::Ratio { most: 1, decimals: 2 }), "1.01", "cannot be 1.01: give a number from 0 to 1"),
            (knob(Type::Ratio { most: 1, decimals: 2 }), "0.001", "\"0.001\""),
            (knob(Type::Ratio { most: 1, decimals: 2 }), "NaN", "\"NaN\""),
        ] {
            let (kind, message) = refusal(&spec, text);
            assert!(kind == Kind::Invalid && message.contains(part), "{message}");
        }
        assert_eq!(refusal(&number.above(Kind::Range), "10").0, Kind::Range);
        assert_eq!(refusal(&number.above(Kind::Range), "99999999999999999999").0, Kind::Range);
        assert_eq!(refusal(&number.above(Kind::Range), "0").0, Kind::Invalid);
        let choice = knob(Type::Choice(&["a"]));
        assert_eq!(refusal(&choice, &"x".repeat(128)).0, Kind::TooLong);
        assert_eq!(refusal(&choice, &"x".repeat(127)).0, Kind::Invalid);
    }

    #[test]
    fn a_typed_value_is_checked_too() {
        let ratio = knob(Type::Ratio { most: 1, decimals: 2 });
        for (spec, value, checked) in [
            (knob(Type::Switch), Value::U64(1), Some(Value::Switch(true))),
            (knob(Type::Switch), Value::U64(2), None),
            (knob(Type::Number(0, 5)), Value::U64(6), None),
            (knob(Type::Number(0, 5)), Value::Text("5".into()), Some(Value::U64(5))),
            (knob(Type::Number(0, 5)), Value::Switch(true), None),
            (knob(Type::Number(0, 5)), Value::None, None),
            (knob(Type::Number(0, 5)).or_none(), Value::None, Some(Value::None)),
            (knob(Type::Choice(&["a"])), Value::Choice("b"), None),
            (knob(Type::Choice(&["a"])), Value::Text("a".into()), Some(Value::Choice("a"))),
            (ratio, Value::U64(1), Some(Value::Ratio(1, 1))),
            (ratio, Value::Ratio(1, 0), None),
            (ratio, Value::Ratio(3, 2), None),
            (knob(Type::Text), Value::U64(1), None),
        ] {
            assert_eq!(spec.check(value.clone()).ok(), checked, "{value:?}");
        }
    }
}
