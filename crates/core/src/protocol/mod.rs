//! A conversation on a byte stream, without the stream, and one in whole messages.

pub mod exchange;
pub mod session;
