//! Workers, sockets and sessions on the real system.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod drivers;
mod endings;
mod fairness;
mod front;
mod handshakes;
mod house;
mod sockets;
mod stalls;
mod toy;
mod workers;
