//! A table of a configuration file, read by the declarations.

use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use spillway_core::{Error, Preset, Role, Spec, Value, When};

use super::declared::Options;

/// Reads a table of a configuration file by the declarations of `T`. An error names the key, the value and what is allowed, or the
/// option that is missing.
pub fn deserialize<'a, T: Options, D: Deserializer<'a>>(source: D) -> Result<T, D::Error> {
    source.deserialize_map(Keys(PhantomData))
}

/// Options out of a table that is being read.
#[derive(Default)]
pub struct Reading<T> {
    options: T,
    given: Vec<&'static str>,
}

impl<T: Options> Reading<T> {
    /// Takes the value of `key` from `map`, unless no option has that name. The error names the option, the value and what is allowed.
    pub fn take<'a, A: MapAccess<'a>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        let Some(spec) = keys::<T>().find(|spec| spec.name == key) else { return Ok(false) };
        let Written(value) = map.next_value()?;
        let value = read(spec, value).map_err(|error| A::Error::custom(error.message()))?;
        self.options.put(spec.name, value);
        self.given.push(spec.name);
        Ok(true)
    }

    /// The options; the error names one that is missing.
    pub fn end<E: serde::de::Error>(self) -> Result<T, E> {
        let missing = |spec: &&Spec| spec.preset == Preset::Required && !self.given.contains(&spec.name);
        match keys::<T>().find(missing) {
            None => Ok(self.options),
            Some(spec) => Err(E::custom(format!("{} is missing: give {}", spec.name, spec.allowed()))),
        }
    }
}

struct Keys<T>(PhantomData<T>);

impl<'a, T: Options> Visitor<'a> for Keys<T> {
    type Value = T;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a table of options")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<T, A::Error> {
        let mut reading = Reading::<T>::default();
        while let Some(key) = map.next_key::<String>()? {
            if !reading.take(&key, &mut map)? {
                map.next_value::<IgnoredAny>()?;
                return Err(A::Error::custom(unknown::<T>(&key, &[])));
            }
        }
        reading.end()
    }
}

/// Text is read by a person's rules, in which sizes may have fractions.
fn read(spec: &Spec, value: Value) -> Result<Value, Error> {
    match value {
        Value::Text(text) => spec.parse(&text),
        value => spec.check(value),
    }
}

/// The options that a file may hold.
fn keys<T: Options>() -> impl Iterator<Item = &'static Spec> {
    T::specs().iter().filter(|spec| spec.role != Role::Knob(When::Once))
}

/// What to say of a key that is neither an option's name nor one of the `others`.
pub fn unknown<T: Options>(key: &str, others: &[&str]) -> String {
    let names = keys::<T>().map(|spec| spec.name).chain(others.iter().copied());
    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    format!("there is no key `{key}`; there are: {}", names.join(", "))
}

/// A value as a file writes it.
struct Written(Value);

impl<'a> serde::Deserialize<'a> for Written {
    fn deserialize<D: Deserializer<'a>>(source: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Written;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number, true or false, or text")
            }

            fn visit_bool<E>(self, on: bool) -> Result<Written, E> {
                Ok(Written(Value::Switch(on)))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Written, E> {
                Ok(Written(Value::U64(number)))
            }

            /// A negative number is not allowed anywhere: as text it is refused by the declaration's words.
            fn visit_i64<E>(self, number: i64) -> Result<Written, E> {
                Ok(Written(u64::try_from(number).map_or(Value::Text(number.to_string()), Value::U64)))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Written, E> {
                Ok(Written(Value::Text(number.to_string())))
            }

            fn visit_str<E>(self, text: &str) -> Result<Written, E> {
                Ok(Written(Value::Text(text.to_owned())))
            }
        }
        source.deserialize_any(Any)
    }
}
