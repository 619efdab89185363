//! Rules on crates, folders and files: what may depend on what, and how large a folder, a file or a function may be.

pub(super) mod arrows;
pub(super) mod circles;
pub(super) mod limits;
pub(super) mod unused;
