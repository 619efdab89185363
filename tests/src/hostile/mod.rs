//! Clients drawn at random that try to make a server take more memory than it may, beside one that behaves.
//!
//! Nothing here knows what the server keeps where: a client is a handshake and bursts of requests, each of any command, flags, length
//! and place, whose payloads come whole, in part or drop by drop, and whose replies may never be read. Many such clients come at a time,
//! and often with the same requests, because one alone seldom hurts; now and then a machine by vhost-user beside them. Where a server
//! speaks TLS, most of them say all that in TLS, and others break TLS itself; where it answers HTTP, others ask there for what they may not
//! have. A [`round`](round::run) is one server under waves of them, and is repeated by its seed as far as threads allow.
//!
//! What is checked: the server's own count of its memory and its resident memory stay below `--memory` + 64 MiB; the client that
//! behaves gets every answer, and its own data; what it flushed is there after the server was killed; the server lives, and keeps no
//! descriptor of a client that is gone. No word in plain is obeyed once TLS was asked for, and nobody without the right changes anything over
//! HTTP: no answer says so, and a reader beside them finds every device and setting as it was.

mod attack;
mod bystander;
mod chance;
mod door;
mod machine;
mod motif;
mod reader;
mod records;
mod round;
mod speech;
mod stacks;
mod web;
mod words;

pub use bystander::Slowest;
pub use chance::Chance;
pub use round::{Report, Size, run};
pub use stacks::{STACKS, Stack};
