//! The control plane's one table.
//!
//! A layer lists its attributes once, as rows of name, unit, help, show and store. From those rows come `spillway get` and
//! `set`, configuration keys, listings and the manual.

use std::sync::Arc;

use crate::error::{Error, Kind};

/// What a shown value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Text, or several columns.
    Text,
    /// Bytes.
    Bytes,
    /// Pages of 4096 bytes.
    Pages,
    /// A plain number.
    Count,
    /// 0 or 1.
    Switch,
}

impl Unit {
    /// The word used in listings and the manual.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Text => "text",
            Unit::Bytes => "bytes",
            Unit::Pages => "pages",
            Unit::Count => "count",
            Unit::Switch => "0 or 1",
        }
    }
}

/// Reads an attribute of `T`.
pub type Show<T> = fn(&T) -> String;

/// Changes an attribute of `T`.
pub type Store<T> = fn(&T, &str) -> Result<(), Error>;

/// A row of a layer's table.
pub struct Attribute<T: 'static> {
    /// Name as typed: lower case with underscores, unit last.
    pub name: &'static str,
    /// What the shown value counts.
    pub unit: Unit,
    /// One or two sentences: what it is, what is accepted, which errors.
    pub help: &'static str,
    /// How it is read; `None` for write-only.
    pub show: Option<Show<T>>,
    /// How it is written; `None` for read-only.
    pub store: Option<Store<T>>,
}

impl<T> Attribute<T> {
    /// A read-only row.
    pub const fn read(name: &'static str, unit: Unit, help: &'static str, show: Show<T>) -> Self {
        Self { name, unit, help, show: Some(show), store: None }
    }

    /// A write-only row.
    pub const fn write(name: &'static str, unit: Unit, help: &'static str, store: Store<T>) -> Self {
        Self { name, unit, help, show: None, store: Some(store) }
    }

    /// A row that is read and written.
    pub const fn both(
        name: &'static str,
        unit: Unit,
        help: &'static str,
        show: Show<T>,
        store: Store<T>,
    ) -> Self {
        Self { name, unit, help, show: Some(show), store: Some(store) }
    }
}

/// A row without its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// See [`Attribute::name`].
    pub name: &'static str,
    /// See [`Attribute::unit`].
    pub unit: Unit,
    /// See [`Attribute::help`].
    pub help: &'static str,
    /// Whether it can be read.
    pub readable: bool,
    /// Whether it can be written.
    pub writable: bool,
}

/// Attributes of something, whatever it is.
pub trait Attributes: Send + Sync {
    /// The rows, in the order of the table.
    fn specs(&self) -> Vec<Spec>;

    /// The value of `name` as text, possibly of several lines, without a final newline.
    fn show(&self, name: &str) -> Result<String, Error>;

    /// Sets `name`. One final newline in `value` is ignored, as the kernel does.
    fn store(&self, name: &str, value: &str) -> Result<(), Error>;
}

/// A layer together with its rows.
pub struct Table<T: 'static> {
    target: Arc<T>,
    rows: &'static [Attribute<T>],
}

impl<T> Table<T> {
    /// The attributes `rows` of `target`.
    pub fn new(target: Arc<T>, rows: &'static [Attribute<T>]) -> Self {
        Self { target, rows }
    }

    fn row(&self, name: &str) -> Result<&'static Attribute<T>, Error> {
        self.rows
            .iter()
            .find(|row| row.name == name)
            .ok_or_else(|| unknown(name, self.rows.iter().map(|r| r.name)))
    }
}

fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> Error {
    let known: Vec<_> = known.collect();
    Error::new(Kind::NotFound, format!("there is no attribute {name:?}; there are: {}", known.join(", ")))
}

impl<T: Send + Sync> Attributes for Table<T> {
    fn specs(&self) -> Vec<Spec> {
        let spec = |row: &Attribute<T>| Spec {
            name: row.name,
            unit: row.unit,
            help: row.help,
            readable: row.show.is_some(),
            writable: row.store.is_some(),
        };
        self.rows.iter().map(spec).collect()
    }

    fn show(&self, name: &str) -> Result<String, Error> {
        let show = self.row(name)?.show;
        let show =
            show.ok_or_else(|| Error::new(Kind::Denied, format!("attribute {name} can only be written")))?;
        Ok(show(&self.target))
    }

    fn store(&self, name: &str, value: &str) -> Result<(), Error> {
        let store = self.row(name)?.store;
        let store =
            store.ok_or_else(|| Error::new(Kind::Denied, format!("attribute {name} can only be read")))?;
        store(&self.target, value.strip_suffix('\n').unwrap_or(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU64, Ordering};

    static ROWS: &[Attribute<AtomicU64>] = &[
        Attribute::both(
            "level",
            Unit::Count,
            "A number.",
            |n| n.load(Ordering::Relaxed).to_string(),
            |n, text| {
                n.store(text.parse().map_err(|_| Error::invalid("not a number"))?, Ordering::Relaxed);
                Ok(())
            },
        ),
        Attribute::write("poke", Unit::Count, "Write only.", |_, _| Ok(())),
    ];

    #[test]
    fn a_table_shows_stores_and_refuses() {
        let table = Table::new(Arc::new(AtomicU64::new(3)), ROWS);
        assert_eq!(table.show("level").as_deref(), Ok("3"));
        table.store("level", "4\n").unwrap();
        assert_eq!(table.show("level").as_deref(), Ok("4"));
        assert_eq!(table.store("level", "x").unwrap_err().kind, Kind::Invalid);
        assert_eq!(table.show("poke").unwrap_err().kind, Kind::Denied);
        let missing = table.show("nothing").unwrap_err();
        assert!(missing.kind == Kind::NotFound && missing.to_string().contains("level, poke"));
    }
}
