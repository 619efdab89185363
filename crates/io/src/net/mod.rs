//! Sessions on unix and TCP sockets: who may connect, who is connected, one task for each connection, and how they stop.

pub(crate) mod serve;
pub(crate) mod socket;

pub(crate) mod access;
pub(crate) mod control;
pub(crate) mod dial;
pub(crate) mod listener_state;
pub(crate) mod networks;
pub(crate) mod passed;
pub(crate) mod peer;
pub(crate) mod peers;

mod connection;
mod shares;
mod table;
