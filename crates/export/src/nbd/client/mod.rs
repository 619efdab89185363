//! The client's side of the NBD protocol, without I/O: an NBD export as the origin of a device.
//!
//! What it is: [`NbdOrigin`] is a [`Storage`](spillway_core::Storage) over one to several connections to one export. Each connection is a
//! [`Session`](spillway_core::session::Session) that a driver runs, as it runs those of the server; a [`Dial`] makes them. Simple and
//! structured replies, `base:allocation` for extents.
//!
//! What it promises upwards: a call ends with the server's answer. Where a connection is lost, all are closed and made again; then
//! every acknowledged change that no flush has covered is sent again from a journal, then what was not answered. A flush
//! therefore covers what it covers without the loss, also where the server was restarted and has lost it; and reads show what the journal
//! has. Changes that overlap are sent one after the other, as they come. While the server cannot be reached, calls wait, up to [`Settings::timeout`] or what is
//! set later; those that fail then cost nothing that was acknowledged before. A flush that the server refuses may: all others fail after it.
//! A change for which the server has no room fails with [`Kind::Exhausted`](spillway_core::Kind::Exhausted), and costs nothing either.
//!
//! What it needs below: a server that has ended the requests of a connection when it takes a new one after that was lost; a driver that
//! keeps the loop of [`spillway_core::session`], and drops a session when its connection ends.
//!
//! States: connecting -> replaying -> up -> (a connection is lost) connecting; failing beside connecting, once the timeout is over, until
//! there is a connection, or calls wait anew since the device ends or another timeout is set.
//!
//! Lock order: the state of the link, then a channel; the journal, the changes and the answer of a call are leaves.

mod access;
mod call;
mod channel;
mod journal;
mod link;
mod negotiation;
mod payload;
mod reconnect;
mod rounds;
mod sent;
mod session;
mod settings;
mod storage;
mod transmission;

#[cfg(test)]
mod tests;

pub use settings::{Dial, NewSession, Settings};
pub use storage::NbdOrigin;
