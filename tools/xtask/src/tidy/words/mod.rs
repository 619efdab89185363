//! Rules on words: heads of files, names, marks that work leaves in files, and the width of prose.

pub(super) mod heads;
pub(super) mod marks;
pub(super) mod names;
pub(super) mod repeated;
pub(super) mod widths;
