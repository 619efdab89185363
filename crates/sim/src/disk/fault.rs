//! What may go wrong with a call, and with which.

use spillway_core::Kind;

/// The calls of [`Storage`](spillway_core::Storage).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `read`.
    Read,
    /// `write`, durable or not.
    Write,
    /// `sync`.
    Sync,
    /// `zero`.
    Zero,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call fails with this kind.
    Fail(Kind),
    /// A read or write moves only its first sector.
    Short,
    /// A bit of the first sector of a write is stored wrong.
    Rot,
    /// A write lands one block further on.
    Misdirect,
    /// A read shows what lies one block further on.
    Misread,
    /// What is not durable is lost before the call, and reads go back; the next sync or durable write reports it.
    Lose,
    /// The call takes so many seconds more; without a number it never ends, and is not carried out while anybody waits for it.
    Hang(Option<u64>),
    /// A sync succeeds and makes nothing durable.
    Ignore,
    /// The first sector of a read cannot be read until it is written.
    GoBad,
}

/// A planned fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which calls count; all of them if `None`.
    pub call: Option<Call>,
    /// The counted call that it strikes, from 0.
    pub nth: u64,
    /// What happens.
    pub effect: Effect,
    /// Whether it strikes all counted calls from then on.
    pub sticky: bool,
}
