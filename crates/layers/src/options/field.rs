//! The types that options may have.

use std::path::PathBuf;

use spillway_core::Value;

/// A type that an option may have.
pub trait Field: Default {
    /// The value that the declaration allowed; [`Value::None`] is the type's default.
    fn of(value: Value) -> Self;

    /// The value.
    fn value(&self) -> Value;
}

macro_rules! fields {
    ($($type:ty: $pattern:pat => $made:expr, |$this:ident| $shown:expr;)*) => {$(
        impl Field for $type {
            fn of(value: Value) -> Self {
                match value {
                    Value::None => Self::default(),
                    $pattern => $made,
                    other => unreachable!("the declaration allows {other:?}"),
                }
            }

            fn value(&self) -> Value {
                let $this = self;
                $shown
            }
        }
    )*};
}

fields! {
    u64: Value::U64(number) => number, |this| Value::U64(*this);
    usize: Value::U64(number) => number as usize, |this| Value::U64(*this as u64);
    bool: Value::Switch(on) => on, |this| Value::Switch(*this);
    &'static str: Value::Choice(name) => name, |this| Value::Choice(this);
    PathBuf: Value::Text(text) => text.into(), |this| Value::Text(this.display().to_string());
    String: Value::Text(text) => text, |this| Value::Text(this.clone());
}

impl<T: Field> Field for Option<T> {
    fn of(value: Value) -> Self {
        if value == Value::None { None } else { Some(T::of(value)) }
    }

    fn value(&self) -> Value {
        self.as_ref().map_or(Value::None, T::value)
    }
}

/// A fraction, as a part of a thousand million.
impl Field for f64 {
    fn of(value: Value) -> Self {
        match value {
            Value::None => 0.0,
            Value::U64(number) => number as f64,
            Value::Ratio(part, whole) => part as f64 / whole as f64,
            other => unreachable!("the declaration allows {other:?}"),
        }
    }

    /// A number that is none, or negative, is no ratio: text, which is refused.
    fn value(&self) -> Value {
        let parts = self * 1e9;
        if parts >= 0.0 && parts < u64::MAX as f64 {
            return Value::Ratio(parts.round() as u64, 1_000_000_000);
        }
        Value::Text(self.to_string())
    }
}
