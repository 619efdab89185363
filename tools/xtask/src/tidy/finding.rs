//! What a rule finds.

use std::fmt;

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) path: String,
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) rule: &'static str,
    pub(super) message: String,
}

impl Finding {
    pub(super) fn new(rule: &'static str, path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.message)
    }
}
