//! Rules on documents: what they say of the code is so, and some stay short.

mod bodies;
pub(super) mod example;
pub(super) mod lengths;
pub(super) mod promises;
