//! The control protocol: how `spillway ls`, `get`, `set`, `reset` and `stop` talk to a server.
//!
//! A client connects to a unix socket, writes one JSON object on a line and reads one JSON object on a line for it; it may
//! do so again on the same connection, and replies come in the order of the requests.
//!
//! ```text
//!   {"v":1,"op":"get","device":"ram0","attribute":"mm_stat"}
//!   {"v":1,"result":{"values":[{"name":"mm_stat","value":"..."}]}}
//!   {"v":1,"op":"reset","device":"ram0"}
//!   {"v":1,"error":{"errno":"EBUSY","code":16,"message":"..."}}
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | [`message`] | requests and replies, to and from lines of JSON |
//! | [`catalog`] | [`Catalog`]: what a server must answer, whatever the protocol |
//! | [`session`] | [`ControlSession`]: the conversation, without the socket |
//!
//! *Upwards* it promises: bad input gets an error reply with an errno, never a panic; a line longer than
//! [`LINE_BYTES_MAX`] gets one and ends the conversation, because its end cannot be found; one request of a connection is
//! in progress at a time. *Below* it needs a [`Catalog`]. Permission is the socket's file mode: whoever can connect may do
//! everything.
//!
//! An HTTP interface can stand beside [`session`] and use the same [`Catalog`] and the same [`message`] types.

pub mod catalog;
pub mod message;
pub mod session;

pub use catalog::{Catalog, Change};
pub use message::{
    AttributeRow, DeviceRow, Failure, LINE_BYTES_MAX, Operation, PROTOCOL_VERSION, Reply, ServerVersion,
    Value,
};
pub use session::ControlSession;
