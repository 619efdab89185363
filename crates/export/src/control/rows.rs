//! What a reply says of devices, attributes and values.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use spillway_core::{Column, Error, Excerpt, OperationLatency, Role, Spec, Type, Value};

use super::work::WorkRow;
use crate::statistics::Statistics;

/// A device in a listing. What a device does not have, such as a compression algorithm, is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// Name of the device.
    pub name: String,
    /// Its layers from top to origin, such as `zram`.
    pub stack: String,
    /// Selected compression algorithm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    /// Size in bytes; 0 until it is set.
    pub disksize: u64,
    /// Bytes stored, before compression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<u64>,
    /// The same bytes after compression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compr: Option<u64>,
    /// Bytes of memory in use for them, tables and free room included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// `data` divided by `total`, once something is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Bytes in the spill file; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spilled: Option<u64>,
    /// Bytes that the spill file is long; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_size: Option<u64>,
    /// Compression streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u64>,
    /// Whether clients may only read.
    pub read_only: bool,
    /// A second name of the device, by which NBD clients can only read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_name: Option<String>,
    /// Connected clients.
    pub clients: u64,
    /// What clients did.
    #[serde(default)]
    pub requests: Statistics,
    /// How long requests took; of operations that nobody asked for, nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<LatencyRow>,
    /// What passed to each part from the one above it, from the top; nothing of the topmost, to which clients' requests pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<PassedRow>,
    /// Long work that is under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<WorkRow>,
    /// URIs and files under which clients reach it; none while it has no size.
    #[serde(default)]
    pub exports: Vec<String>,
}

/// How long requests of one operation took, since the device is open.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// `read`, `write`, `flush`, `discard` or `write_zeroes`.
    pub operation: String,
    /// What those that were timed took together.
    pub seconds: f64,
    /// Of those that were timed, how many took at most 250 ns, of the others how many at most 500 ns, and so on to 33.6 s; the last
    /// number is of those that took longer.
    pub counts: Vec<u64>,
}

impl From<OperationLatency> for LatencyRow {
    fn from(OperationLatency { operation, seconds, counts }: OperationLatency) -> Self {
        Self { operation: operation.to_owned(), seconds, counts }
    }
}

/// What passed to a part from the one above it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassedRow {
    /// Name of the part.
    pub part: String,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub write_bytes: u64,
    /// How long requests took, each of them.
    pub latencies: Vec<LatencyRow>,
}

/// The declaration of an attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttributeRow {
    /// Name as typed.
    pub name: String,
    /// The part of the device that has it: its kind; of several of one kind from the second on with a number.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// `knob`, `counter`, `gauge`, `fact` or `command`.
    pub role: String,
    /// `number`, `switch`, `choice`, `ratio`, `text`, `path`, `columns`, `rows` or `lines`.
    pub r#type: String,
    /// What a number counts; empty where it counts nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// What may be written, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<String>,
    /// Smallest number that is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<u64>,
    /// Largest number that is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
    /// The names to choose from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// The numbers that a value consists of, or the columns of its rows, in the order of its text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<ColumnRow>,
    /// What a knob is where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// When a knob may be turned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Whether `null` is among its values.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub or_none: bool,
    /// Whether it can be read.
    pub readable: bool,
    /// Whether it can be written.
    pub writable: bool,
    /// What it is or does.
    pub help: String,
}

/// One of the numbers of a value, or a column of its rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnRow {
    /// Its name.
    pub name: String,
    /// What it counts; empty where it counts nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
}

impl From<&Column> for ColumnRow {
    fn from(column: &Column) -> Self {
        Self { name: column.name.to_owned(), unit: column.unit.name().to_owned() }
    }
}

impl From<&Spec> for AttributeRow {
    fn from(spec: &Spec) -> Self {
        let mut row = Self {
            name: spec.name.to_owned(),
            role: spec.role.name().to_owned(),
            r#type: spec.kind.name().to_owned(),
            unit: spec.unit.name().to_owned(),
            allowed: (spec.writable || matches!(spec.role, Role::Knob(_))).then(|| spec.allowed()),
            default: spec.preset_text(),
            or_none: spec.or_none,
            readable: spec.readable,
            writable: spec.writable,
            help: spec.help.to_owned(),
            ..Self::default()
        };
        match spec.kind {
            Type::Number(least, most) | Type::PowerOfTwo(least, most) => {
                (row.least, row.most) = (Some(least), Some(most));
            }
            Type::Choice(names) => row.choices = names.iter().map(ToString::to_string).collect(),
            _ => row.columns = spec.kind.columns().iter().map(ColumnRow::from).collect(),
        }
        if let Role::Knob(when) = spec.role {
            row.when = Some(when.name().to_owned());
        }
        row
    }
}

/// An attribute and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Name of the attribute.
    pub name: String,
    /// Its value: a number, `true` or `false`, `null`, text, an object of the columns' names and values, or a list of these: rows.
    pub value: Json,
    /// The same as text for people, possibly of several lines, without a final newline.
    pub text: String,
    /// Where to go on; absent where this is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl Shown {
    /// What is shown of the attribute that `spec` declares, under the name that was asked for.
    pub fn new(name: String, spec: &Spec, Excerpt { value, next }: &Excerpt) -> Self {
        Self { name, value: json_of(spec, value), text: spec.text(value), next: *next }
    }
}

fn json_of(spec: &Spec, value: &Value) -> Json {
    match value {
        Value::None => Json::Null,
        Value::U64(number) => (*number).into(),
        Value::Switch(on) => (*on).into(),
        Value::Choice(name) => (*name).into(),
        Value::Ratio(part, whole) => (*part as f64 / *whole as f64).into(),
        Value::Text(text) => text.as_str().into(),
        Value::Columns(numbers) => object(spec, numbers.iter().map(|&number| number.into())),
        Value::Rows(rows) => {
            rows.iter().map(|row| object(spec, row.iter().map(|value| json_of(spec, value)))).collect()
        }
    }
}

/// Values under the names of their columns.
fn object(spec: &Spec, values: impl Iterator<Item = Json>) -> Json {
    let names = spec.kind.columns().iter().map(|column| column.name.to_owned());
    names.zip(values).collect::<Map<_, _>>().into()
}

/// What a client writes; [`spillway_core::Kind::Invalid`] for what no attribute takes.
pub fn value_of(json: Json) -> Result<Value, Error> {
    match json {
        Json::Null => Ok(Value::None),
        Json::Bool(on) => Ok(Value::Switch(on)),
        Json::Number(number) => Ok(number.as_u64().map_or(Value::Text(number.to_string()), Value::U64)),
        Json::String(text) => Ok(Value::Text(text)),
        other => Err(Error::invalid(format!(
            "{other} is not a value of an attribute: give a number, true, false, null or text"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::{Preset, Unit, When};

    #[test]
    fn values_are_typed_on_the_wire() {
        const STAT: &[Column] = &[Column::wide("used", Unit::Bytes), Column::new("zero", Unit::None)];
        let columns = Spec::fact("stat", Type::Columns { head: "", columns: STAT }, "Help");
        let rows = Spec::fact("rows", Type::Rows(STAT), "Help");
        let row = |used, zero| vec![Value::U64(used), Value::Switch(zero)];
        let number = Spec::gauge("number", Unit::Pages, "Help");
        for (spec, value, json, text) in [
            (&number, Value::U64(u64::MAX), r#"18446744073709551615"#, "18446744073709551615"),
            (&number, Value::Switch(true), "true", "1"),
            (&number, Value::Choice("lz4"), r#""lz4""#, "lz4"),
            (&number, Value::Ratio(1, 4), "0.25", "0.25"),
            (&number, Value::None, "null", "none"),
            (&number, Value::Text("a".into()), r#""a""#, "a"),
            (&columns, Value::Columns(vec![3, 4]), r#"{"used":3,"zero":4}"#, "       3 4"),
            (
                &rows,
                Value::Rows(vec![row(3, true), row(4, false)]),
                r#"[{"used":3,"zero":true},{"used":4,"zero":false}]"#,
                "used zero\n3    1\n4    0",
            ),
            (&rows, Value::Rows(vec![]), "[]", "used zero"),
        ] {
            let shown = Shown::new("name".into(), spec, &value.into());
            assert_eq!((shown.value.to_string().as_str(), shown.text.as_str()), (json, text));
            assert_eq!(shown.next, None);
        }
        for (json, value) in [
            ("5", Value::U64(5)),
            ("true", Value::Switch(true)),
            ("null", Value::None),
            ("-1", Value::Text("-1".into())),
            ("0.5", Value::Text("0.5".into())),
            (r#""1G""#, Value::Text("1G".into())),
        ] {
            assert_eq!(value_of(serde_json::from_str(json).unwrap()), Ok(value));
        }
        assert!(value_of(serde_json::json!([1])).unwrap_err().message().contains("[1]"));
    }

    #[test]
    fn a_declaration_is_complete_on_the_wire() {
        let spec = Spec::knob("level", When::Live, Type::Number(1, 9), "Help").unit(Unit::Percent);
        let row = AttributeRow::from(&Spec { writable: true, ..spec.preset(Preset::Number(5)) });
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"name":"level","role":"knob","type":"number","unit":"percent","allowed":"a whole number from 1 to 9","least":1,"most":9,"default":"5","when":"at any time","readable":false,"writable":true,"help":"Help"}"#
        );
    }
}
