//! Protocols as sessions without I/O, and what they share.
//!
//! | module | holds |
//! | --- | --- |
//! | [`nbd`], [`fuse`], [`vhost_user`], [`control`] | the protocols |
//! | `export` | a device that is served, who is connected, who may not be |
//! | `exports` | the names that lead to them |
//! | `covered` | the work of requests that cover much |
//! | `ending` | how one conversation ends once nothing is pending |
//! | `pipeline` | admission, back-pressure and pending requests of a conversation |
//! | `pending` | answers that are still to come, and which of them have news |
//! | [`tls`] | a session within TLS |
//! | `fields` | numbers in messages of programs on this machine |
//! | `statistics` | what clients did |
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as spillway_export;

pub mod control;
pub mod fuse;
pub mod nbd;
pub mod tls;
pub mod vhost_user;

mod covered;
mod ending;
mod export;
mod exports;
mod fields;
mod pending;
mod pipeline;
mod statistics;
#[cfg(test)]
mod test_device;

pub use export::{Alias, Export, Reserved};
pub use exports::{Exports, Offer};
pub use statistics::Statistics;
