//! Rules on documents: what they say of the code is so.

mod bodies;
pub(super) mod example;
pub(super) mod promises;
