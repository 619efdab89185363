//! The control protocol: how `spillway ls`, `get`, `set`, `reset` and `stop` talk to a server.
//!
//! A client connects to a unix socket, writes one JSON object on a line and reads one JSON object on a line for it; it may
//! do so again on the same connection, and replies come in the order of the requests.
//!
//! ```text
//!   {"v":2,"op":"get","device":"ram0","attribute":"io_stat"}
//!   {"v":2,"result":{"values":[{"name":"io_stat","value":{"failed_reads":0, ...},"text":"       0 ..."}]}}
//!   {"v":2,"op":"set","device":"ram0","attribute":"mem_limit","value":"1G"}
//!   {"v":2,"result":"done"}
//!   {"v":2,"op":"reset","device":"ram0"}
//!   {"v":2,"error":{"errno":"EBUSY","code":16,"message":"..."}}
//! ```
//!
//! Values are typed: numbers, `true` and `false`, names as text, `null` for none, objects of named columns, and lists of these. Beside each stands
//! its text for people, which no program needs to parse. `attributes` gives the declarations.
//!
//! *Upwards* it promises: bad input gets an error reply with an errno, never a panic; a line longer than
//! [`LINE_BYTES_MAX`] gets one and ends the conversation, because its end cannot be found; one request of a connection is
//! in progress at a time. *Below* it needs a [`Catalog`]. Permission is the socket's file mode: who can connect may do
//! everything.
//!
//! HTTP stands beside it, with the same [`Catalog`] and the same [`message`] types: see [`http`].

pub mod catalog;
pub mod http;
pub mod message;
mod operations;
mod reported;
pub mod rows;
pub mod session;
#[cfg(test)]
mod test_catalog;
pub mod work;

pub use catalog::{Catalog, DeviceChanges, added_name};
pub use http::{HttpSession, Rights};
pub use message::{ControlReply, ErrorReply, LINE_BYTES_MAX, Operation, PROTOCOL_VERSION, ServerVersion};
pub use rows::{AttributeRow, ColumnRow, DeviceRow, LatencyRow, PassedRow, Shown, value_of};
pub use session::ControlSession;
pub use work::WorkRow;
