//! A toy part, by everything that its declarations have to do.

use std::path::PathBuf;
use std::sync::Arc;

use spillway_core::{Attributes, Error, Kind, Preset, Table, Type, Unit, Value};

use super::*;

choices! {
    /// Colours.
    enum Colour { Red = "red", Green = "green", }
}

options! {
    /// A toy.
    struct Config;
    /// What it reads.
    struct Settings: Settings::in_order;
    .. by hand {
        Live limit: u64 = Type::COUNT, "Limit" .preset(Preset::Number(7));
    }
    Start path: PathBuf = Type::Path, "Where" .preset(Preset::Required);
    Live low: u64 = Type::Number(0, 100), "Low" .preset(Preset::Number(10));
    Live high: u64 = Type::Number(0, 100), "High" .preset(Preset::Number(20));
    Live age: Option<u64> = Type::Number(0, 9), "Age" .preset(Preset::Words("none")).or_none();
    Live colour: Colour = Type::Choice(Colour::NAMES), "Colour" .preset(Preset::Choice("green"));
    Live share: f64 = Type::Ratio { most: 1, decimals: 9 }, "Share" .preset(Preset::Number(0));
    Live on: bool = Type::Switch, "On" .preset(Preset::Switch(true));
    Start size: u64 = Type::Number(1, 1 << 20), "Size" .unit(Unit::Bytes).preset(Preset::Words("of the file"));
    Once force: bool = Type::Switch, "Force" .preset(Preset::Switch(false));
    .. besides {
        /// No option.
        extra: u32,
    }
}

impl Settings {
    fn in_order(&self) -> Result<(), Error> {
        let (low, high) = (self.low.get(), self.high.get());
        if low <= high { Ok(()) } else { Err(Error::invalid("low is above high")) }
    }
}

fn table(config: &Config) -> Table<Settings> {
    let settings = Settings::new(config).unwrap();
    assert_eq!(settings.extra, config.extra);
    Table::new(Arc::new(settings), Settings::ROWS)
}

fn read(text: &str) -> Result<Config, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())
}

#[test]
fn defaults_are_the_declared_ones() {
    let config = Config::default();
    assert_eq!((config.low, config.high, config.age, config.colour), (10, 20, None, Colour::Green));
    assert!(config.on && !config.force && config.size == 0 && config.extra == 0 && config.limit == 7);
    for spec in Config::specs() {
        let value = preset(spec);
        assert!(value == Value::None || spec.check(value.clone()).is_ok(), "{} is {value:?}", spec.name);
    }
}

#[test]
fn a_file_is_read_by_the_declarations() {
    let text =
        "path = \"a\"\nlow = \"5\"\nage = 3\ncolour = \"red\"\nshare = 0.25\non = false\nsize = \"1.5K\"";
    let config = read(text).unwrap();
    assert_eq!((config.path.to_str(), config.low, config.high), (Some("a"), 5, 20));
    assert_eq!((config.age, config.colour, config.share), (Some(3), Colour::Red, 0.25));
    assert!(!config.on && config.size == 1536);
    assert_eq!(read("path = \"a\"\nage = \"none\"").unwrap().age, None);
    for (text, part) in [
        ("low = 1", "path is missing: give a path"),
        ("path = \"a\"\nlimit = -1", "limit cannot be"),
        ("path = \"a\"\nlow = 101", "low cannot be 101: give a whole number from 0 to 100"),
        ("path = \"a\"\nlow = -1", "low cannot be \"-1\""),
        ("path = \"a\"\nlow = 1.5", "low cannot be \"1.5\""),
        ("path = \"a\"\non = 2", "on cannot be 2: give 0 or 1"),
        ("path = 1", "path cannot be 1"),
        ("path = \"a\"\nsise = 1", "there is no key `sise`; there are: `limit`, `path`, `low`"),
        ("path = \"a\"\nforce = true", "there is no key `force`"),
        ("path = \"a\"\nextra = 1", "there is no key `extra`"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn what_code_says_is_checked_too() {
    let refused = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        Settings::new(&config).map(|_| ()).unwrap_err().message().to_owned()
    };
    assert!(refused(|config| config.low = 101).contains("low cannot be 101"));
    assert!(refused(|config| config.share = 1.5).contains("share cannot be 1.5"));
    assert!(refused(|config| config.share = f64::NAN).contains("share cannot be \"NaN\""));
    assert!(refused(|config| config.share = -0.5).contains("share cannot be \"-0.5\""));
    assert!(refused(|config| config.high = 5).contains("low is above high"));
    assert!(Settings::new(&Config::default()).is_ok(), "a default needs no range");
}

#[test]
fn live_settings_change_and_others_do_not() {
    let table = table(&Config { path: "p".into(), extra: 7, ..Config::default() });
    for (name, text) in
        [("low", "15"), ("age", "9"), ("age", "none"), ("colour", "red"), ("share", "0.001"), ("on", "0")]
    {
        table.store(name, text).now().unwrap();
        assert_eq!(table.show(name).as_deref(), Ok(text), "{name}");
    }
    assert_eq!(table.show("path").as_deref(), Ok("p"));
    assert_eq!(table.spec("limit").unwrap_err().kind, Kind::NotFound, "its row is written by hand");
    for name in ["path", "size", "force"] {
        assert_eq!(table.store(name, "1").now().unwrap_err().kind, Kind::Denied, "{name}");
    }
}

#[test]
fn settings_that_do_not_fit_together_stay_as_they_were() {
    let table = table(&Config::default());
    assert!(table.store("high", "9").now().unwrap_err().message().contains("low is above high"));
    assert!(table.store("low", "21").now().is_err());
    assert_eq!(["low", "high"].map(|name| table.show(name).unwrap()), ["10", "20"]);
    ["low", "high"].into_iter().for_each(|name| table.store(name, "0").now().unwrap());
}
