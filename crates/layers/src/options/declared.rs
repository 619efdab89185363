//! What every configuration of a part can do, by the names of its options.

use spillway_core::{Error, Preset, Spec, Value};

/// What a configuration says about a part.
pub trait Options: Default {
    /// The declarations.
    fn specs() -> &'static [Spec];

    /// The value of the option `name`, which exists.
    fn value(&self, name: &str) -> Value;

    /// Sets the option `name`, which exists, to a value that [`Spec::check`] allowed.
    fn put(&mut self, name: &str, value: Value);

    /// Checks every value that is not the default. Errors as for [`Spec::check`].
    fn check(&self) -> Result<(), Error> {
        let preset = Self::default();
        let mut given = Self::specs().iter().filter(|spec| self.value(spec.name) != preset.value(spec.name));
        given.try_for_each(|spec| spec.check(self.value(spec.name)).map(drop))
    }
}

/// What an option is where it is not given.
pub fn preset(spec: &Spec) -> Value {
    match spec.preset {
        Preset::Absent | Preset::Required | Preset::Words(_) => Value::None,
        Preset::Number(number) => Value::U64(number),
        Preset::Choice(name) => Value::Choice(name),
        Preset::Switch(on) => Value::Switch(on),
    }
}
