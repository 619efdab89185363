//! vhost-user: conversations on unix sockets whose messages carry descriptors, and queues in memory that the other side shares.
//!
//! The conversation of a device is a task of the front thread, and takes one front end at a time: the next one waits in the socket. Each
//! queue is a task on a worker, woken by the event descriptor that its front end writes to, and by answers.
//!
//! A front end is a program of the user who may connect, so that it could end this one anyway: its event descriptors and its files are
//! looked at when they come, and not trusted beyond what that costs nothing. The guest behind it is not trusted at all.

mod descriptors;
mod event;
mod mapping;
mod queue;
mod serve;
mod warn_once;

pub use serve::{NewConversation, VhostServing, serve_vhost};
