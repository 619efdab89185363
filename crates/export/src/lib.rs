//! Protocols as sessions without I/O.

pub mod control;
