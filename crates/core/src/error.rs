//! What can go wrong in operation, as values.
//!
//! [`Kind`] is small and `Copy`: it travels on the data path. [`Error`] adds the words for a person and is made on the
//! control path, where the failure arises. [`Kind::errno`] is the one place that turns a kind into a number.

use std::fmt;

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A parameter outside what is allowed (EINVAL).
    Invalid,
    /// No room: past the end for a write, device full, or a memory limit reached (ENOSPC).
    NoSpace,
    /// The system refused memory (ENOMEM).
    OutOfMemory,
    /// The disk below failed (EIO).
    Io,
    /// The data came back, but is not what was written (EIO).
    Corrupt,
    /// What is below cannot be reached at present (EIO). Nothing that was acknowledged is lost, and another try may succeed: see
    /// [`StickyError`](crate::sync::StickyError).
    Unreachable,
    /// What is below refuses a write for lack of room at present (ENOSPC). As with [`Kind::Unreachable`], nothing acknowledged is lost, and
    /// another try may succeed.
    Exhausted,
    /// The device cannot do this (EOPNOTSUPP).
    NotSupported,
    /// The device does not take writes (EPERM).
    ReadOnly,
    /// The server is stopping (ESHUTDOWN).
    ShuttingDown,
    /// In use, or in a state that forbids the change (EBUSY).
    Busy,
    /// A number that does not fit its type (ERANGE).
    Range,
    /// Text longer than allowed (E2BIG).
    TooLong,
    /// No such device, attribute or file (ENOENT).
    NotFound,
    /// What is needed for it is not there (ENODEV).
    NoDevice,
    /// Neither a file nor a block device (ENOTBLK).
    NotBlock,
    /// A path leads through something that is no folder (ENOTDIR).
    NotFolder,
    /// The caller may not (EACCES).
    Denied,
    /// A reply longer than its type can carry (EOVERFLOW).
    Overflow,
}

impl Kind {
    /// Each kind, in the order of the declaration, so that none is forgotten. An errno of several stands for the first of them.
    pub const ALL: [Self; Self::Overflow as usize + 1] = [
        Self::Invalid,
        Self::NoSpace,
        Self::OutOfMemory,
        Self::Io,
        Self::Corrupt,
        Self::Unreachable,
        Self::Exhausted,
        Self::NotSupported,
        Self::ReadOnly,
        Self::ShuttingDown,
        Self::Busy,
        Self::Range,
        Self::TooLong,
        Self::NotFound,
        Self::NoDevice,
        Self::NotBlock,
        Self::NotFolder,
        Self::Denied,
        Self::Overflow,
    ];

    /// The Linux errno of this kind.
    pub const fn errno(self) -> i32 {
        self.number_and_name().0
    }

    /// The symbolic name of the errno, such as `EINVAL`.
    pub const fn errno_name(self) -> &'static str {
        self.number_and_name().1
    }

    const fn number_and_name(self) -> (i32, &'static str) {
        match self {
            Kind::ReadOnly => (1, "EPERM"),
            Kind::NotFound => (2, "ENOENT"),
            Kind::Io | Kind::Corrupt | Kind::Unreachable => (5, "EIO"),
            Kind::TooLong => (7, "E2BIG"),
            Kind::OutOfMemory => (12, "ENOMEM"),
            Kind::Denied => (13, "EACCES"),
            Kind::NotBlock => (15, "ENOTBLK"),
            Kind::Busy => (16, "EBUSY"),
            Kind::NoDevice => (19, "ENODEV"),
            Kind::NotFolder => (20, "ENOTDIR"),
            Kind::Invalid => (22, "EINVAL"),
            Kind::NoSpace | Kind::Exhausted => (28, "ENOSPC"),
            Kind::Range => (34, "ERANGE"),
            Kind::Overflow => (75, "EOVERFLOW"),
            Kind::NotSupported => (95, "EOPNOTSUPP"),
            Kind::ShuttingDown => (108, "ESHUTDOWN"),
        }
    }

    /// Whether the same request may succeed later, without a repair of this host.
    pub const fn passes(self) -> bool {
        matches!(self, Kind::Unreachable | Kind::Exhausted)
    }

    /// The kind that an errno of the operating system stands for; anything unlisted is [`Kind::Io`].
    pub fn of_errno(errno: i32) -> Kind {
        let errno = match errno {
            30 => Kind::ReadOnly.errno(),
            122 => Kind::NoSpace.errno(),
            27 => Kind::Overflow.errno(),
            other => other,
        };
        Self::ALL.into_iter().find(|kind| kind.errno() == errno).unwrap_or(Kind::Io)
    }
}

/// A failure with the words a person needs: what was wrong, which value, what is allowed, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind, for programs.
    pub kind: Kind,
    message: String,
}

impl Error {
    /// A failure of `kind` explained by `message`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Shorthand for [`Kind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// Shorthand for [`Kind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, message)
    }

    /// The words without the errno.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.kind.errno_name())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_survive_the_trip_through_errno() {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
            let back = match kind {
                Kind::Corrupt | Kind::Unreachable => Kind::Io,
                Kind::Exhausted => Kind::NoSpace,
                _ => kind,
            };
            assert_eq!(Kind::of_errno(kind.errno()), back);
            assert_eq!(Kind::of_errno(kind.errno()).errno_name(), kind.errno_name());
        }
    }
}
