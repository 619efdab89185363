//! Attributes of a part of a stack, as a table of rows.

use std::sync::Arc;

use super::spec::{Role, Spec, Type};
use super::value::{Excerpt, Value};
use crate::block_device::device::Answer;
use crate::error::{Error, Kind};

/// Reads an attribute of `T`.
type Get<T> = fn(&T) -> Value;

/// Reads the lines of an attribute of `T` from a place on: 0, or where the excerpt before ended. Takes a bounded time.
type Walk<T> = fn(&T, u64) -> Result<Excerpt, Error>;

/// Changes an attribute of `T`, to a value that the declaration allows.
type Set<T> = fn(&T, Value) -> Result<(), Error>;

/// Begins a change of `T` that may take long. It goes on if the answer is dropped.
type Begin<T> = fn(&T, Value) -> Answer<Result<(), Error>>;

/// A declaration, and how a `T` is read and changed.
pub struct Attribute<T: 'static> {
    spec: Spec,
    read: Option<Read<T>>,
    change: Option<Change<T>>,
}

/// How an attribute of `T` is read.
enum Read<T> {
    Whole(Get<T>),
    Lines(Walk<T>),
}

impl<T> Read<T> {
    fn excerpt(&self, target: &T, from: u64) -> Result<Excerpt, Error> {
        match self {
            Read::Whole(get) => Ok(get(target).into()),
            Read::Lines(walk) => walk(target, from),
        }
    }
}

/// How an attribute of `T` changes.
enum Change<T> {
    AtOnce(Set<T>),
    Later(Begin<T>),
}

impl<T> Change<T> {
    fn make(&self, target: &T, value: Value) -> Answer<Result<(), Error>> {
        match self {
            Change::AtOnce(set) => Answer::Done(set(target, value)),
            Change::Later(begin) => begin(target, value),
        }
    }
}

impl<T> Attribute<T> {
    /// The declaration.
    pub const fn spec(&self) -> Spec {
        self.spec
    }

    /// A row that is only read.
    pub const fn read(spec: Spec, get: Get<T>) -> Self {
        Self {
            spec: Spec { readable: true, writable: false, ..spec },
            read: Some(Read::Whole(get)),
            change: None,
        }
    }

    /// A row of lines, which are only read.
    pub const fn lines(name: &'static str, help: &'static str, walk: Walk<T>) -> Self {
        let spec = Spec::fact(name, Type::Lines, help);
        Self { spec: Spec { readable: true, ..spec }, read: Some(Read::Lines(walk)), change: None }
    }

    /// A row that is only written.
    pub const fn write(spec: Spec, set: Set<T>) -> Self {
        let change = Some(Change::AtOnce(set));
        Self { spec: Spec { readable: false, writable: true, ..spec }, read: None, change }
    }

    /// A row that is only written, and takes long to change.
    pub const fn begin(spec: Spec, begin: Begin<T>) -> Self {
        let change = Some(Change::Later(begin));
        Self { spec: Spec { readable: false, writable: true, ..spec }, read: None, change }
    }

    /// A row that is read and written.
    pub const fn both(spec: Spec, get: Get<T>, set: Set<T>) -> Self {
        Self::read_and_changed(spec, get, Change::AtOnce(set))
    }

    /// A row that is read and written, and takes long to change.
    pub const fn both_begin(spec: Spec, get: Get<T>, begin: Begin<T>) -> Self {
        Self::read_and_changed(spec, get, Change::Later(begin))
    }

    const fn read_and_changed(spec: Spec, get: Get<T>, change: Change<T>) -> Self {
        let spec = Spec { readable: true, writable: true, ..spec };
        Self { spec, read: Some(Read::Whole(get)), change: Some(change) }
    }
}

/// Attributes of something, whatever it is.
pub trait Attributes: Send + Sync {
    /// The declarations, in the order of the table.
    fn specs(&self) -> Vec<Spec>;

    /// The declaration of `name`; [`Kind::NotFound`] lists what there is.
    fn spec(&self, name: &str) -> Result<Spec, Error>;

    /// The value of `name`; where it is [`Type::Lines`] those from `from` on, which is 0 or [`Excerpt::next`]. [`Kind::NotFound`] as for
    /// [`Self::spec`], [`Kind::Denied`] where it can only be written; for lines what the part says about its state.
    fn excerpt(&self, name: &str, from: u64) -> Result<Excerpt, Error>;

    /// The value of `name`; of lines the first ones. Errors as for [`Self::excerpt`].
    fn get(&self, name: &str) -> Result<Value, Error> {
        self.excerpt(name, 0).map(|excerpt| excerpt.value)
    }

    /// Sets `name`. [`Kind::NotFound`] as for [`Self::spec`], [`Kind::Denied`] where it can only be read; what [`Spec::check`] says
    /// about the value, and then what the part says about its state. An answer that is pending is polled on the thread that asked;
    /// dropped, the change goes on.
    fn set(&self, name: &str, value: Value) -> Answer<Result<(), Error>>;

    /// The value of `name` as [`Spec::text`]. Errors as for [`Self::get`].
    fn show(&self, name: &str) -> Result<String, Error> {
        Ok(self.spec(name)?.text(&self.get(name)?))
    }

    /// Sets `name` to what [`Spec::parse_written`] reads out of `text`, without one final newline, as the kernel does. Errors as for
    /// [`Self::set`].
    fn store(&self, name: &str, text: &str) -> Answer<Result<(), Error>> {
        self.set(name, Value::Text(text.strip_suffix('\n').unwrap_or(text).to_owned()))
    }
}

/// A row of a [`Table`], wherever in the part its value lies.
struct Row<T> {
    spec: Spec,
    read: Option<Box<ReadRow<T>>>,
    set: Option<Box<SetRow<T>>>,
}

type ReadRow<T> = dyn Fn(&T, u64) -> Result<Excerpt, Error> + Send + Sync;
type SetRow<T> = dyn Fn(&T, Value) -> Answer<Result<(), Error>> + Send + Sync;

/// A part together with its rows.
pub struct Table<T: 'static> {
    target: Arc<T>,
    rows: Vec<Row<T>>,
}

impl<T> Table<T> {
    /// The attributes `rows` of `target`.
    pub fn new(target: Arc<T>, rows: &'static [Attribute<T>]) -> Self {
        Self { target, rows: Vec::new() }.with(rows, |target| target, |_, _| {})
    }

    /// With the attributes `rows` of what lies `at` a place in the target, which hears the name of each that is `changed` at once.
    pub fn with<U>(
        mut self,
        rows: &'static [Attribute<U>],
        at: fn(&T) -> &U,
        changed: fn(&T, &'static str),
    ) -> Self {
        let row = |row: &'static Attribute<U>| Row {
            spec: row.spec,
            read: row.read.as_ref().map(|read| {
                Box::new(move |target: &T, from: u64| read.excerpt(at(target), from)) as Box<ReadRow<T>>
            }),
            set: row.change.as_ref().map(|change| {
                let set = move |target: &T, value| {
                    let answer = change.make(at(target), value);
                    if let Answer::Done(Ok(())) = answer {
                        changed(target, row.spec.name);
                    }
                    answer
                };
                Box::new(set) as _
            }),
        };
        for row in rows.iter().map(row) {
            assert!(self.row(row.spec.name).is_err(), "two attributes of a part are named {}", row.spec.name);
            self.rows.push(row);
        }
        self
    }

    fn row(&self, name: &str) -> Result<&Row<T>, Error> {
        let found = self.rows.iter().find(|row| row.spec.name == name);
        found.ok_or_else(|| unknown(name, self.rows.iter().map(|row| row.spec.name)))
    }
}

fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> Error {
    let known: Vec<_> = known.collect();
    Error::new(Kind::NotFound, format!("there is no attribute {name:?}; there are: {}", known.join(", ")))
}

impl Spec {
    fn expect_writable(&self) -> Result<(), Error> {
        if self.writable {
            return Ok(());
        }
        let message = match self.role {
            Role::Knob(when) => format!("{} can only be set {}", self.name, when.name()),
            _ => format!("attribute {} can only be read", self.name),
        };
        Err(Error::new(Kind::Denied, message))
    }
}

impl<T: Send + Sync> Attributes for Table<T> {
    fn specs(&self) -> Vec<Spec> {
        self.rows.iter().map(|row| row.spec).collect()
    }

    fn spec(&self, name: &str) -> Result<Spec, Error> {
        Ok(self.row(name)?.spec)
    }

    fn excerpt(&self, name: &str, from: u64) -> Result<Excerpt, Error> {
        let denied = || Error::new(Kind::Denied, format!("attribute {name} can only be written"));
        let read = self.row(name)?.read.as_ref().ok_or_else(denied)?;
        read(&self.target, from)
    }

    fn set(&self, name: &str, value: Value) -> Answer<Result<(), Error>> {
        let checked = self.row(name).and_then(|row| {
            row.spec.expect_writable()?;
            Ok((row, row.spec.check(value)?))
        });
        match checked {
            Ok((row, value)) => {
                let set = row.set.as_ref().expect("a writable row has a way to write");
                set(&self.target, value)
            }
            Err(refused) => Answer::Done(Err(refused)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Unit, When};
    use super::*;
    use crate::job::block_on;
    use crate::sync::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Part {
        level: AtomicU64,
        changes: AtomicU64,
    }

    static ROWS: &[Attribute<Part>] = &[
        Attribute::write(Spec::command("poke", Type::Text, "Write only"), |_, _| Ok(())),
        Attribute::begin(Spec::command("walk", Type::Switch, "Takes long"), |part, value| {
            assert_eq!(value, Value::Switch(true));
            part.changes.fetch_add(1, Ordering::Relaxed);
            Answer::pending(async { Err(Error::new(Kind::Io, "far")) })
        }),
        Attribute::read(Spec::gauge("changes", Unit::None, "Read only"), |part| {
            Value::U64(part.changes.load(Ordering::Relaxed))
        }),
        Attribute::read(Spec::knob("mode", When::Start, Type::Switch, "Fixed"), |_| Value::Switch(true)),
    ];

    /// Two lines at a time, up to the fifth.
    static LINES: &[Attribute<Part>] = &[Attribute::lines("lines", "Help", |_, from| match from {
        0..=4 => {
            let text = (from..5.min(from + 2)).map(|line| line.to_string()).collect::<Vec<_>>().join("\n");
            Ok(Excerpt { value: Value::Text(text), next: (from + 2 < 5).then_some(from + 2) })
        }
        _ => Err(Error::invalid("there are five")),
    })];

    #[test]
    fn lines_are_shown_an_excerpt_at_a_time_and_other_values_whole() {
        let table = Table::new(Arc::<Part>::default(), ROWS).with(LINES, |part| part, |_, _| {});
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            let excerpt = table.excerpt("lines", at).unwrap();
            all.push(excerpt.value);
            from = excerpt.next;
        }
        assert_eq!(all, ["0\n1", "2\n3", "4"].map(|text| Value::Text(text.into())));
        assert_eq!(table.show("lines").as_deref(), Ok("0\n1"), "the first ones");
        assert_eq!(table.excerpt("lines", 9).unwrap_err().kind, Kind::Invalid);
        assert_eq!(table.excerpt("changes", 7), Ok(Value::U64(0).into()));
        assert_eq!(table.set("lines", Value::Text("5".into())).now().unwrap_err().kind, Kind::Denied);
    }

    static LEVEL: &[Attribute<AtomicU64>] = &[Attribute::both(
        Spec::knob("level", When::Live, Type::Number(0, 9), "A number"),
        |level| Value::U64(level.load(Ordering::Relaxed)),
        |level, value| match value.number() {
            Some(7) => Err(Error::new(Kind::Busy, "not now")),
            number => {
                level.store(number.expect("a number"), Ordering::Relaxed);
                Ok(())
            }
        },
    )];

    fn table() -> Table<Part> {
        Table::new(Arc::default(), ROWS).with(
            LEVEL,
            |part| &part.level,
            |part, name| {
                assert_eq!(name, "level");
                part.changes.fetch_add(1, Ordering::Relaxed);
            },
        )
    }

    #[test]
    fn a_table_gets_sets_shows_and_stores() {
        let table = table();
        assert_eq!((table.get("level"), table.show("level").as_deref()), (Ok(Value::U64(0)), Ok("0")));
        table.store("level", "4\n").now().unwrap();
        assert_eq!(table.show("level").as_deref(), Ok("4"));
        table.set("level", Value::U64(5)).now().unwrap();
        assert_eq!(table.get("level"), Ok(Value::U64(5)));
        assert_eq!(table.get("changes"), Ok(Value::U64(2)), "the part hears of each");
        table.store("poke", "anything").now().unwrap();
        let names: Vec<_> = table.specs().iter().map(|spec| spec.name).collect();
        assert_eq!(names, ["poke", "walk", "changes", "mode", "level"]);
    }

    #[test]
    fn a_table_refuses() {
        let table = table();
        assert_eq!(table.store("level", "x").now().unwrap_err().kind, Kind::Invalid);
        assert_eq!(table.set("level", Value::U64(10)).now().unwrap_err().kind, Kind::Invalid);
        assert_eq!(table.set("level", Value::U64(7)).now().unwrap_err().kind, Kind::Busy);
        assert_eq!(table.get("level"), Ok(Value::U64(0)), "a refused value changes nothing");
        assert_eq!(table.get("changes"), Ok(Value::U64(0)), "and nobody hears of it");
        assert_eq!(table.show("poke").unwrap_err().kind, Kind::Denied);
        let fixed = table.store("mode", "0").now().unwrap_err();
        assert!(fixed.kind == Kind::Denied && fixed.message().contains("at the start"), "{fixed}");
        assert_eq!(
            table.store("changes", "nonsense").now().unwrap_err().kind,
            Kind::Denied,
            "before it is read"
        );
        let missing = table.show("nothing").unwrap_err();
        assert!(
            missing.kind == Kind::NotFound
                && missing.to_string().contains("poke, walk, changes, mode, level")
        );
    }

    #[test]
    fn what_takes_long_is_checked_at_once_and_answered_later() {
        let table = table();
        assert_eq!(table.store("walk", "x").now().unwrap_err().kind, Kind::Invalid);
        assert_eq!(table.get("changes"), Ok(Value::U64(0)));
        let answer = table.store("walk", "1");
        assert!(matches!(answer, Answer::Pending(_)));
        assert_eq!(table.get("changes"), Ok(Value::U64(1)), "it has begun");
        assert_eq!(block_on(answer).unwrap_err().kind, Kind::Io);
    }

    #[test]
    fn a_row_knows_what_can_be_done_with_it() {
        let can: Vec<_> = table().specs().iter().map(|spec| (spec.readable, spec.writable)).collect();
        assert_eq!(can, [(false, true), (false, true), (true, false), (true, false), (true, true)]);
    }
}
