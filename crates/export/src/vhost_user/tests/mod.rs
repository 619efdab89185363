//! Tests of queues and conversations: the guest is scripted, and a device's answers are released by hand.

mod conversation;
mod guest;
mod queue;
mod ring;
mod survival;
#[cfg(feature = "shuttle")]
mod threads;
