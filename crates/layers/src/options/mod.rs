//! A part's options, each declared once.
//!
//! The macro `options` makes of the declarations a `Config` (plain values, for code and for configuration files), `OPTIONS` (each
//! option's `Spec` by name) and, where asked, a `Settings` (what the part reads while it works; live ones may change) with its rows for
//! the attributes. The command line and the manual ask [`Options`].

mod declared;
mod field;
mod live;
mod reading;
#[cfg(test)]
mod tests;

pub use declared::{Options, preset};
pub use field::Field;
pub use live::Word;
pub(crate) use live::{Live, in_order, unrelated};
pub use reading::{Reading, deserialize, unknown};

/// An option's name for each of several values: an enum, its names, and the traits that make it a field.
#[macro_export]
macro_rules! choices {
    ($(#[$doc:meta])* $vis:vis enum $Name:ident { $($(#[$about:meta])* $Variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $Name { $($(#[$about])* $Variant,)* }

        impl $Name {
            /// The names.
            $vis const NAMES: &'static [&'static str] = &[$($text),*];
            const ALL: &'static [Self] = &[$(Self::$Variant),*];
        }

        impl Default for $Name {
            fn default() -> Self {
                Self::ALL[0]
            }
        }

        impl $crate::options::Field for $Name {
            fn of(value: spillway_core::Value) -> Self {
                let chosen = value.choice().map(|name| Self::NAMES.iter().position(|known| *known == name));
                chosen.map_or(Self::default(), |index| Self::ALL[index.expect("the declaration lists it")])
            }

            fn value(&self) -> spillway_core::Value {
                spillway_core::Value::Choice(Self::NAMES[*self as usize])
            }
        }

        impl $crate::options::Word for $Name {
            fn word(self) -> u64 {
                self as u64
            }

            fn of_word(word: u64) -> Self {
                Self::ALL[word as usize]
            }
        }
    };
}

/// See the head of this file. The settings are followed by the function that checks whether they fit together. The part itself keeps, shows
/// and changes the options that stand in `by hand`: they are no settings. An option is `WHEN name: FIELD = TYPE, "help" .more_of_the_spec();`, the time at which it may change first. What stands in
/// `besides` is no option: code sets it.
#[macro_export]
macro_rules! options {
    (
        $(#[$doc:meta])* $vis:vis struct $Config:ident;
        $($When:ident $name:ident: $field:ty = $kind:expr, $help:literal $(.$more:ident($($with:tt)*))*;)*
        $(.. besides { $($(#[$about:meta])* $extra:ident: $extra_type:ty,)* })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $Config {
            $(#[doc = $help] pub $name: $field,)*
            $($($(#[$about])* pub $extra: $extra_type,)*)?
        }

        /// The declarations of the options.
        #[allow(dead_code, reason = "some are asked for by name only")]
        pub(crate) struct Specs { $(pub(crate) $name: spillway_core::Spec,)* }

        pub(crate) const OPTIONS: Specs = Specs {
            $($name: spillway_core::Spec::knob(
                stringify!($name), spillway_core::When::$When, $kind, $help,
            )$(.$more($($with)*))*,)*
        };

        impl Default for $Config {
            fn default() -> Self {
                Self {
                    $($name: $crate::options::Field::of($crate::options::preset(&OPTIONS.$name)),)*
                    $($($extra: Default::default(),)*)?
                }
            }
        }

        impl $crate::options::Options for $Config {
            fn specs() -> &'static [spillway_core::Spec] {
                const { &[$(OPTIONS.$name),*] }
            }

            fn value(&self, name: &str) -> spillway_core::Value {
                match name {
                    $(stringify!($name) => $crate::options::Field::value(&self.$name),)*
                    _ => unreachable!("{name} is no option"),
                }
            }

            fn put(&mut self, name: &str, value: spillway_core::Value) {
                match name {
                    $(stringify!($name) => self.$name = $crate::options::Field::of(value),)*
                    _ => unreachable!("{name} is no option"),
                }
            }
        }

        impl<'a> serde::Deserialize<'a> for $Config {
            fn deserialize<D: serde::Deserializer<'a>>(source: D) -> Result<Self, D::Error> {
                $crate::options::deserialize(source)
            }
        }
    };
    (
        $(#[$doc:meta])* $vis:vis struct $Config:ident;
        $(#[$settings_doc:meta])* $settings_vis:vis struct $Settings:ident: $check:expr;
        $(.. by hand {
            $($Hand:ident $by_hand:ident: $hand_field:ty = $hand_kind:expr, $hand_help:literal $(.$hand_more:ident($($hand_with:tt)*))*;)*
        })?
        $($When:ident $name:ident: $field:ty = $kind:expr, $help:literal $(.$more:ident($($with:tt)*))*;)*
        $(.. besides { $($(#[$about:meta])* $extra:ident: $extra_type:ty,)* })?
    ) => {
        options! {
            $(#[$doc])* $vis struct $Config;
            $($($Hand $by_hand: $hand_field = $hand_kind, $hand_help $(.$hand_more($($hand_with)*))*;)*)?
            $($When $name: $field = $kind, $help $(.$more($($with)*))*;)*
            $(.. besides { $($(#[$about])* $extra: $extra_type,)* })?
        }

        $(#[$settings_doc])*
        $settings_vis struct $Settings {
            $($settings_vis $name: $crate::options::kept!($When, $field),)*
            $($($settings_vis $extra: $extra_type,)*)?
        }

        impl $Settings {
            /// [`spillway_core::Kind::Invalid`] names the option, the value and what is allowed.
            $settings_vis fn new(config: &$Config) -> Result<Self, spillway_core::Error> {
                $crate::options::Options::check(config)?;
                let settings = Self {
                    $($name: $crate::options::keep!($When, config.$name.clone()),)*
                    $($($extra: config.$extra.clone(),)*)?
                };
                $check(&settings).map(|()| settings)
            }

            /// The attributes of the options.
            $settings_vis const ROWS: &'static [spillway_core::Attribute<$Settings>] = &[
                $($crate::options::row!($When $name, $check),)*
            ];
        }
    };
}

/// How a setting is kept.
macro_rules! kept {
    (Live, $field:ty) => { $crate::options::Live<$field> };
    ($When:ident, $field:ty) => { $field };
}

macro_rules! keep {
    (Live, $value:expr) => {
        $crate::options::Live::new($value)
    };
    ($When:ident, $value:expr) => {
        $value
    };
}

/// The row of a setting.
macro_rules! row {
    (Live $name:ident, $check:expr) => {
        spillway_core::Attribute::both(
            OPTIONS.$name,
            |settings| $crate::options::Field::value(&settings.$name.get()),
            |settings, value| {
                settings.$name.set_checked($crate::options::Field::of(value), || $check(settings))
            },
        )
    };
    ($When:ident $name:ident, $check:expr) => {
        spillway_core::Attribute::read(OPTIONS.$name, |settings| {
            $crate::options::Field::value(&settings.$name)
        })
    };
}

pub use {choices, options};
pub(crate) use {keep, kept, row};
