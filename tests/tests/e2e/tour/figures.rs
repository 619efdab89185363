//! Every figure that the page shows is what the server says by HTTP and by the command, written as people read it.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use spillway_tests::{Browser, Server, until};

/// See its head.
const FIGURES: &str = include_str!("figures.js");

/// Figures that a page with devices has at least.
const COUNT_MIN: usize = 20;

/// Bytes of the units that count data.
const PAGE: f64 = 4096.0;
const SECTOR: f64 = 512.0;

/// What the server says about itself and its devices.
struct Truth {
    version: Json,
    rows: Vec<Json>,
    /// By device, of the server itself with an empty name; of each attribute the value by HTTP and its unit.
    attributes: BTreeMap<String, BTreeMap<String, (Json, String)>>,
    /// By device, as the command has them.
    commanded: BTreeMap<String, Json>,
}

impl Truth {
    fn read(server: &Server, ask: &dyn Fn(&str) -> Json) -> Self {
        let rows = list(ask("api/devices"));
        let names: Vec<String> = rows.iter().map(|row| word(&row["name"])).collect();
        let mut attributes: BTreeMap<_, _> =
            names.iter().map(|name| (name.clone(), of_device(ask, name))).collect();
        let own = list(ask("api/server/attributes")).into_iter().map(|one| {
            let name = word(&one["name"]);
            let unit = own_unit(&name).to_owned();
            (name, (one["value"].clone(), unit))
        });
        attributes.insert(String::new(), own.collect());
        let commanded = names.into_iter().map(|name| {
            let said = server.spillway(&["get", &name, "--json"]).well();
            (name, serde_json::from_str(&said.out).expect("JSON"))
        });
        Self { version: ask("api/server"), rows, attributes, commanded: commanded.collect() }
    }

    /// What is wrong with a figure of the page.
    fn contradicts(&self, figure: &Json) -> Option<String> {
        let device = figure["device"].as_str().unwrap_or_default();
        let (value, text) = match figure["attribute"].as_str() {
            Some(name) => {
                let (value, unit) = self.attributes[device].get(name)?;
                let commanded = self.commanded.get(device).map(|values| &values[name]);
                if commanded.is_some_and(|other| !equal(other, value)) {
                    return Some(format!("{figure} is {value} by HTTP and {commanded:?} by the command"));
                }
                (value, shown(value, unit, self.block_size(device)))
            }
            None => self.field(device, figure["field"].as_str().expect("it is one of the two")),
        };
        let right = equal(&figure["value"], value) && figure["text"] == text;
        (!right).then(|| format!("{figure} is {value}, written as {text:?}"))
    }

    fn field(&self, device: &str, name: &str) -> (&Json, String) {
        let row = self.rows.iter().find(|row| row["name"] == device);
        let value = &row.unwrap_or(&self.version)[name];
        let text = match name {
            "disksize" => human(number(value)),
            "ratio" => format!("{} to 1", rounded(number(value), 2)),
            _ => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        };
        (value, text)
    }

    fn block_size(&self, device: &str) -> Option<f64> {
        self.attributes[device].get("block_size").map(|(size, _)| number(size))
    }
}

fn of_device(ask: &dyn Fn(&str) -> Json, name: &str) -> BTreeMap<String, (Json, String)> {
    let declared = list(ask(&format!("api/devices/{name}/attributes")));
    let units: BTreeMap<_, _> = declared.iter().map(|row| (word(&row["name"]), word(&row["unit"]))).collect();
    let values = list(ask(&format!("api/devices/{name}")));
    let value = |one: &Json| (word(&one["name"]), (one["value"].clone(), units[&word(&one["name"])].clone()));
    values.iter().map(value).collect()
}

/// The unit of an attribute of the server, which `spillway get` declares for those of devices alone.
fn own_unit(name: &str) -> &str {
    match name {
        "uptime" => "s",
        "workers" => "",
        _ => "bytes",
    }
}

fn list(json: Json) -> Vec<Json> {
    let Json::Array(list) = json else { panic!("no list: {json}") };
    list
}

fn word(json: &Json) -> String {
    json.as_str().unwrap_or_default().to_owned()
}

fn number(json: &Json) -> f64 {
    json.as_f64().unwrap_or_else(|| panic!("{json} is no number"))
}

/// A browser has one kind of number.
fn equal(one: &Json, other: &Json) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// A value as people read it.
fn shown(value: &Json, unit: &str, block: Option<f64>) -> String {
    let size = match unit {
        "bytes" | "bytes/s" => Some(1.0),
        "pages" => Some(PAGE),
        "sectors" => Some(SECTOR),
        "blocks" => block,
        _ => None,
    };
    let unit = match unit {
        "percent" => "%",
        "us" => "µs",
        "bytes/s" => "/s",
        unit => unit,
    };
    match (value, size) {
        (Json::Null, _) => "none".into(),
        (Json::Bool(on), _) => u8::from(*on).to_string(),
        (Json::String(text), _) => text.clone(),
        (_, Some(size)) if unit == "/s" => human(number(value) * size) + unit,
        (_, Some(size)) => human(number(value) * size),
        (_, None) => format!("{} {unit}", grouped(number(value))).trim_end().into(),
    }
}

fn human(mut bytes: f64) -> String {
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].into_iter();
    let mut unit = units.next().expect("there are six");
    while bytes >= 1024.0 {
        let Some(larger) = units.next() else { break };
        (bytes, unit) = (bytes / 1024.0, larger);
    }
    format!("{} {unit}", rounded(bytes, if bytes >= 100.0 || unit == "B" { 0 } else { 1 }))
}

/// With so many digits behind the point; a half is rounded up.
fn rounded(value: f64, digits: usize) -> String {
    let scale = 10_f64.powi(digits as i32);
    format!("{:.digits$}", (value * scale + 0.5).floor() / scale)
}

/// With commas between thousands, or two digits behind the point.
fn grouped(value: f64) -> String {
    if value.fract() != 0.0 {
        return rounded(value, 2);
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What the page showed otherwise when it was looked at last; printed when the test fails.
struct Differences(Vec<String>);

impl Drop for Differences {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the page differs in:\n{}", self.0.join("\n"));
        }
    }
}

/// Waits until each figure of the page is what the server says: the page looks once a second, and the server's own figures move.
pub(crate) fn are_the_attributes(browser: &mut Browser, server: &Server, ask: &dyn Fn(&str) -> Json) {
    let mut differences = Differences(Vec::new());
    until("each figure of the page is the attribute", || {
        let page = browser.evaluate(FIGURES);
        assert_eq!(page["unmarked"], Json::Array(Vec::new()), "figures that do not say what they are");
        let figures = list(page["figures"].clone());
        let truth = Truth::read(server, ask);
        differences.0 = figures.iter().filter_map(|figure| truth.contradicts(figure)).collect();
        (differences.0.is_empty() && figures.len() >= COUNT_MIN).then_some(())
    });
}

#[test]
fn numbers_are_written_as_people_read_them() {
    let cases = [
        (Json::from(1023), "bytes", "1023 B"),
        (Json::from((12 << 20) + (1 << 18)), "bytes", "12.3 MiB"),
        (Json::from(256), "pages", "1.0 MiB"),
        (Json::from(1_234_567), "requests", "1,234,567 requests"),
        (Json::from(2.5), "", "2.50"),
        (Json::from(true), "", "1"),
        (Json::Null, "bytes", "none"),
    ];
    for (value, unit, text) in cases {
        assert_eq!(shown(&value, unit, None), text);
    }
}
