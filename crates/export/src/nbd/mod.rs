//! The server's side of the NBD protocol, without I/O.
//!
//! What it is: [`NbdSession`] is a [`Session`](spillway_core::session::Session) for one client: bytes in, requests to an
//! [`Aligned`](spillway_core::Aligned) device, bytes out. Fixed newstyle handshake with every option, where what drives it begins TLS; simple,
//! structured and extended replies; every command of the protocol. The source of all facts is the NBD project's public
//! protocol description (doc/proto.md).
//!
//! What it promises upwards: any bytes in any pieces give either replies or an end, never a panic; what a session holds is
//! bounded by its [`Config`] plus one request, and counted by the rule in `memory`; a request is answered exactly once or not at all (after
//! [`hang_up`](spillway_core::session::Session::hang_up)); nothing of a session reaches the device after its hang-up.
//!
//! What it needs below: a device that answers, and a driver that keeps the loop of [`spillway_core::session`].
//!
//! States: handshake (client flags, then options) -> transmission (headers, payloads) -> over. Winding down is a mode of
//! transmission: requests are refused, those in flight finish, the device is flushed, then it is over.
//!
//! Lock order: the list of exports and the waker of a session are leaves; neither is held while a device or another waker
//! is called.

pub mod client;
mod config;
mod handshake;
mod incoming;
mod memory;
mod options;
mod reply;
mod request;
mod responder;
mod session;
mod ticket;
mod transmission;
pub mod wire;

#[cfg(test)]
mod tests;

pub use config::{Config, TlsPolicy};
pub use memory::CONNECTION_BYTES;
pub use session::NbdSession;
