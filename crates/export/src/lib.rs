//! Protocols as sessions without I/O.
#![forbid(unsafe_code)]

pub mod control;
pub mod nbd;
