//! What an attribute is set to or shows.

use crate::error::Kind;

/// A value. Which of these an attribute has is said by its [`super::Type`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing: a limit that is not set, an error that did not happen.
    None,
    /// A number in the attribute's unit.
    U64(u64),
    /// On or off.
    Switch(bool),
    /// One of the names that the declaration lists.
    Choice(&'static str),
    /// The first divided by the second, which is not 0.
    Ratio(u64, u64),
    /// Text, possibly of several lines, without a final newline.
    Text(String),
    /// Numbers in the order of the declared columns.
    Columns(Vec<u64>),
    /// Any number of rows, each with a value for each declared column.
    Rows(Vec<Vec<Value>>),
}

/// A value; of [`super::Type::Lines`] as much of it as is shown at once, without a newline behind the last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The value, or these lines. Only the last excerpt may have none.
    pub value: Value,
    /// Where the next excerpt begins; `None` behind the last.
    pub next: Option<u64>,
}

impl From<Value> for Excerpt {
    fn from(value: Value) -> Self {
        Self { value, next: None }
    }
}

impl Value {
    /// `one` for each `other`; 0 where there is no other.
    pub fn mean(one: u64, other: u64) -> Self {
        if other == 0 { Value::Ratio(0, 1) } else { Value::Ratio(one, other) }
    }

    /// What a [`StickyError`](crate::sync::StickyError) says: nothing, or the errno of the first failure by its name.
    pub fn failure(checked: Result<(), Kind>) -> Self {
        checked.err().map_or(Value::None, |kind| Value::Text(kind.errno_name().into()))
    }

    /// The number, where it is one.
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::U64(number) => Some(*number),
            Value::Switch(on) => Some(u64::from(*on)),
            _ => None,
        }
    }

    /// The chosen name, where it is a choice.
    pub fn choice(&self) -> Option<&'static str> {
        match self {
            Value::Choice(name) => Some(name),
            _ => None,
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Value::U64(number)
    }
}

impl From<bool> for Value {
    fn from(on: bool) -> Self {
        Value::Switch(on)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}
