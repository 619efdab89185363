//! Command-line options made of declarations.

use std::marker::PhantomData;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, Error, FromArgMatches, ValueHint};
use spillway_core::{Preset, Spec, Switch, Type, Unit, Value};
use spillway_layers::options::Options;

/// A configuration, as far as the command line says it.
#[derive(Clone, Debug)]
pub(crate) struct Declared<C> {
    given: Vec<(&'static str, Value)>,
    of: PhantomData<C>,
}

impl<C: Options> Declared<C> {
    /// Whether the command line says something of `name`.
    pub(crate) fn gives(&self, name: &str) -> bool {
        self.given.iter().any(|(given, _)| *given == name)
    }

    /// The configuration, with defaults for what was not given.
    pub(crate) fn config(self) -> C {
        self.over(C::default())
    }

    /// `base` where nothing else was given.
    pub(crate) fn over(self, mut base: C) -> C {
        self.given.into_iter().for_each(|(name, value)| base.put(name, value));
        base
    }
}

impl<C: Options> Args for Declared<C> {
    fn augment_args(command: Command) -> Command {
        let command = command.args(options::<C>().map(|(spec, option)| argument(spec, option)));
        C::specs().iter().filter(|spec| !spec.switches.is_empty()).fold(command, switches)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<C: Options> FromArgMatches for Declared<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut declared = Self { given: Vec::new(), of: PhantomData };
        declared.update_from_arg_matches(matches).map(|()| declared)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for (spec, option) in options::<C>() {
            let value = match spec.kind {
                Type::Switch => matches.get_flag(option).then_some(Value::Switch(true)),
                _ => matches.get_one::<Value>(option).cloned(),
            };
            self.given.extend(value.map(|value| (spec.name, value)));
        }
        for spec in C::specs() {
            let chosen = spec.switches.iter().find(|switch| matches.get_flag(switch.name));
            self.given.extend(chosen.map(|switch| (spec.name, Value::Choice(switch.name))));
        }
        Ok(())
    }
}

/// The declarations that have an option.
fn options<C: Options>() -> impl Iterator<Item = (&'static Spec, &'static str)> {
    C::specs().iter().filter_map(|spec| Some((spec, spec.option?)))
}

fn argument(spec: &'static Spec, option: &'static str) -> Arg {
    let argument = Arg::new(option).long(option).help(help(spec));
    if spec.kind == Type::Switch {
        return argument.action(ArgAction::SetTrue);
    }
    let read = move |text: &str| spec.parse(text).map_err(|error| error.message().to_owned());
    let hint = if spec.kind == Type::Path { ValueHint::AnyPath } else { ValueHint::Other };
    argument
        .value_hint(hint)
        .required(spec.preset == Preset::Required)
        .value_name(placeholder(spec))
        .value_parser(ValueParser::new(read))
}

/// The switches of a declaration, of which one may be given.
fn switches(command: Command, spec: &'static Spec) -> Command {
    let switch = |switch: &Switch| {
        assert!(spec.check(Value::Choice(switch.name)).is_ok(), "{} chooses no {}", switch.name, spec.name);
        Arg::new(switch.name).long(switch.name).help(switch.help).action(ArgAction::SetTrue)
    };
    let names = spec.switches.iter().map(|switch| switch.name);
    command.args(spec.switches.iter().map(switch)).group(ArgGroup::new(spec.name).args(names))
}

fn help(spec: &Spec) -> String {
    let range = Some(spec.range()).filter(|range| !range.is_empty());
    let range = range.map_or(String::new(), |range| format!(" ({range})"));
    let shown = !matches!(spec.preset, Preset::Required | Preset::Switch(_));
    let preset = spec.preset_text().filter(|_| shown);
    let preset = preset.map_or(String::new(), |preset| format!(" [default: {preset}]"));
    format!("{}{range}{preset}", spec.help)
}

/// What stands for the value in the help.
fn placeholder(spec: &Spec) -> &'static str {
    match (spec.kind, spec.unit) {
        (Type::Path, _) => "PATH",
        (Type::Choice(_), _) => "NAME",
        (Type::Text, _) => "TEXT",
        (_, Unit::Bytes | Unit::BytesPerSecond) => "SIZE",
        (_, Unit::Percent) => "PERCENT",
        (_, Unit::Milliseconds) => "MS",
        (_, Unit::Microseconds) => "US",
        _ => "N",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_layers::write_cache::{Config, Mode, OldCache};

    fn parse(line: &str) -> Result<Config, String> {
        let command = Declared::<Config>::augment_args(Command::new("cache"));
        let matches =
            command.try_get_matches_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        Ok(Declared::from_arg_matches(&matches).unwrap().config())
    }

    #[test]
    fn options_fill_the_configuration() {
        let line = "cache --cache c --mode p --block-size 16K --high-watermark 80 --max-age none --cleaner";
        let config = parse(line).unwrap();
        assert_eq!((config.path.to_str(), config.mode), (Some("c"), Mode::PersistentMemory));
        assert_eq!((config.block_size, config.high_watermark, config.max_age), (16384, 80, None));
        assert!(config.cleaner && config.old_cache == OldCache::Open);
        assert_eq!(config.low_watermark, 45, "the default");
    }

    #[test]
    fn a_switch_chooses_its_value_alone() {
        let old_cache = |line: &str| parse(line).map(|config| config.old_cache);
        assert_eq!(old_cache("cache --cache c --create"), Ok(OldCache::Create));
        assert_eq!(old_cache("cache --cache c --recover"), Ok(OldCache::Recover));
        let both = old_cache("cache --cache c --create --recover").unwrap_err();
        assert!(both.contains("'--create' cannot be used with '--recover'"), "{both}");
    }

    #[test]
    fn a_refusal_is_the_declarations() {
        for (line, part) in [
            ("cache", "--cache <PATH>"),
            (
                "cache --cache c --high-watermark 101",
                "high_watermark cannot be 101: give a whole number from 0 to 100",
            ),
            ("cache --cache c --mode q", "one of s, p"),
            ("cache --cache c --block-size 3000", "a power of two from 512 to 65536"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn help_has_range_unit_and_default() {
        let help = Declared::<Config>::augment_args(Command::new("cache")).render_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "--high-watermark <PERCENT> Start writing back",
            "(0 to 100 percent) [default: 50]",
            "[default: 65536, 64 in mode p]",
            "--mode <NAME> How the cache device is accessed",
            "(s, p) [default: s]",
            "--cleaner Write back everything",
        ] {
            assert!(help.contains(part), "{part}: {help}");
        }
    }
}
