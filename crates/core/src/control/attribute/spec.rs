//! The declaration of an attribute.

use crate::error::Kind;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// It has none, or none of these.
    None,
    /// Bytes. Text may have a unit: `4G`.
    Bytes,
    /// Bytes in a second. Text may have a unit.
    BytesPerSecond,
    /// Pages of 4096 bytes.
    Pages,
    /// Blocks of the device.
    Blocks,
    /// Sectors of 512 bytes.
    Sectors,
    /// Requests of clients, or I/Os.
    Requests,
    /// Percent.
    Percent,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

impl Unit {
    /// The word used in listings and the manual.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::None => "",
            Unit::Bytes => "bytes",
            Unit::BytesPerSecond => "bytes/s",
            Unit::Pages => "pages",
            Unit::Blocks => "blocks",
            Unit::Sectors => "sectors",
            Unit::Requests => "requests",
            Unit::Percent => "percent",
            Unit::Seconds => "s",
            Unit::Milliseconds => "ms",
            Unit::Microseconds => "us",
            Unit::Nanoseconds => "ns",
        }
    }

    /// Whether text may be a size such as `4G`.
    pub const fn is_size(self) -> bool {
        matches!(self, Unit::Bytes | Unit::BytesPerSecond)
    }
}

/// When a knob may be turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// For one start: on the command line, not in a configuration file.
    Once,
    /// At the start.
    Start,
    /// At the start, and later while the device has no size; then it is in use ([`Kind::Busy`]).
    BeforeInit,
    /// At any time.
    Live,
}

impl When {
    /// The words used in listings and the manual.
    pub const fn name(self) -> &'static str {
        match self {
            When::Once => "for one start",
            When::Start => "at the start",
            When::BeforeInit => "while the device has no size",
            When::Live => "at any time",
        }
    }
}

/// What an attribute is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// An option: a key of configurations, and an attribute that shows it.
    Knob(When),
    /// Only grows, until it is cleared.
    Counter,
    /// A measurement that goes up and down.
    Gauge,
    /// A fact or a state.
    Fact,
    /// Something happens when it is written.
    Command,
}

impl Role {
    /// The word used in listings.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Knob(_) => "knob",
            Role::Counter => "counter",
            Role::Gauge => "gauge",
            Role::Fact => "fact",
            Role::Command => "command",
        }
    }
}

/// One of the numbers of a value that has several, or a column of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Lower case with underscores.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Characters to which text is padded from the left.
    pub width: usize,
}

impl Column {
    /// A column without padding.
    pub const fn new(name: &'static str, unit: Unit) -> Self {
        Self { name, unit, width: 0 }
    }

    /// A column of eight characters.
    pub const fn wide(name: &'static str, unit: Unit) -> Self {
        Self { name, unit, width: 8 }
    }
}

/// What kind of value, and which of them are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A whole number, both bounds allowed.
    Number(u64, u64),
    /// A power of two, both bounds allowed.
    PowerOfTwo(u64, u64),
    /// 0 or 1.
    Switch,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// A number that need not be whole, from 0 to this; read and shown with up to so many decimals.
    Ratio {
        /// The largest that is allowed.
        most: u64,
        /// Digits after the point, at most 9.
        decimals: u32,
    },
    /// Any text.
    Text,
    /// A path of the file system.
    Path,
    /// Several numbers.
    Columns {
        /// Text before them.
        head: &'static str,
        /// What they are.
        columns: &'static [Column],
    },
    /// Any number of rows with these columns.
    Rows(&'static [Column]),
    /// Lines of text, of which so many may be that they are shown an excerpt at a time.
    Lines,
}

impl Type {
    /// Any whole number.
    pub const COUNT: Self = Type::Number(0, u64::MAX);

    /// A mean, to two decimals.
    pub const MEAN: Self = Type::Ratio { most: u64::MAX, decimals: 2 };

    /// The columns that a value has; none where it has no columns.
    pub const fn columns(self) -> &'static [Column] {
        match self {
            Type::Columns { columns, .. } | Type::Rows(columns) => columns,
            _ => &[],
        }
    }

    /// The word used in listings.
    pub const fn name(self) -> &'static str {
        match self {
            Type::Number(..) | Type::PowerOfTwo(..) => "number",
            Type::Switch => "switch",
            Type::Choice(_) => "choice",
            Type::Ratio { .. } => "ratio",
            Type::Text => "text",
            Type::Path => "path",
            Type::Columns { .. } => "columns",
            Type::Rows(_) => "rows",
            Type::Lines => "lines",
        }
    }
}

/// What a knob is where nobody turned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// None, and none is needed.
    Absent,
    /// None: it has to be given.
    Required,
    /// This number.
    Number(u64),
    /// This name.
    Choice(&'static str),
    /// On or off.
    Switch(bool),
    /// What the layer finds out, in words for the manual.
    Words(&'static str),
}

/// A switch of the command line that chooses one of the names of a [`Type::Choice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The chosen name, and the switch's own.
    pub name: &'static str,
    /// What it does, as [`Spec::help`] does.
    pub help: &'static str,
}

/// The declaration of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Name as typed: lower case with underscores.
    pub name: &'static str,
    /// What it is for.
    pub role: Role,
    /// What kind of value, and which are allowed.
    pub kind: Type,
    /// What the number counts.
    pub unit: Unit,
    /// What it is or does: a sentence or two, the first without a full stop where it is the only one.
    pub help: &'static str,
    /// What a knob is where it is not given.
    pub preset: Preset,
    /// Whether [`super::Value::None`], written `none`, is allowed.
    pub or_none: bool,
    /// Whether text is read and shown as the kernel does: a choice among all names, sizes without fractions, switches by words and numbers.
    pub kernel: bool,
    /// What a number above the range is: [`Kind::Invalid`] but where the kernel says otherwise.
    pub above: Kind,
    /// The name of the command-line option.
    pub option: Option<&'static str>,
    /// Switches of the command line, in place of an option: each chooses the value of its name, and no two are given together.
    pub switches: &'static [Switch],
    /// Whether it can be read.
    pub readable: bool,
    /// Whether it can be written.
    pub writable: bool,
}

impl Spec {
    const fn new(name: &'static str, role: Role, kind: Type, unit: Unit, help: &'static str) -> Self {
        assert!(!name.is_empty() && !help.is_empty(), "an attribute has a name, and says what it is");
        Self {
            name,
            role,
            kind,
            unit,
            help,
            preset: Preset::Absent,
            or_none: false,
            kernel: false,
            above: Kind::Invalid,
            option: None,
            switches: &[],
            readable: false,
            writable: false,
        }
    }

    /// An option.
    pub const fn knob(name: &'static str, when: When, kind: Type, help: &'static str) -> Self {
        Self::new(name, Role::Knob(when), kind, Unit::None, help)
    }

    /// A number that only grows.
    pub const fn counter(name: &'static str, unit: Unit, help: &'static str) -> Self {
        Self::new(name, Role::Counter, Type::COUNT, unit, help)
    }

    /// A number that goes up and down.
    pub const fn gauge(name: &'static str, unit: Unit, help: &'static str) -> Self {
        Self::new(name, Role::Gauge, Type::COUNT, unit, help)
    }

    /// A mean of a number, to two decimals.
    pub const fn mean(name: &'static str, unit: Unit, help: &'static str) -> Self {
        Self::new(name, Role::Gauge, Type::MEAN, unit, help)
    }

    /// A fact or a state.
    pub const fn fact(name: &'static str, kind: Type, help: &'static str) -> Self {
        Self::new(name, Role::Fact, kind, Unit::None, help)
    }

    /// The first failure, `none` before; see [`Value::failure`](super::Value::failure).
    pub const fn failure(help: &'static str) -> Self {
        Self::fact("error", Type::Text, help).or_none()
    }

    /// Something that happens when it is written.
    pub const fn command(name: &'static str, kind: Type, help: &'static str) -> Self {
        Self::new(name, Role::Command, kind, Unit::None, help)
    }

    /// With a unit.
    pub const fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// With a default.
    pub const fn preset(mut self, preset: Preset) -> Self {
        self.preset = preset;
        self
    }

    /// With `none` among the values.
    pub const fn or_none(mut self) -> Self {
        self.or_none = true;
        self
    }

    /// With the kernel's text.
    pub const fn kernel(mut self) -> Self {
        self.kernel = true;
        self
    }

    /// With another error for a number above the range.
    pub const fn above(mut self, kind: Kind) -> Self {
        self.above = kind;
        self
    }

    /// With a command-line option of this name.
    pub const fn option(mut self, option: &'static str) -> Self {
        self.option = Some(option);
        self
    }

    /// With switches of the command line.
    pub const fn switches(mut self, switches: &'static [Switch]) -> Self {
        self.switches = switches;
        self
    }
}
