//! What puts objects elsewhere while clients read and write their pages: compaction, recompression, and the compression of
//! pages that were stored as they came.

pub(super) mod aging;
pub(super) mod deferring;
pub(super) mod moving;
pub(super) mod passes;
pub(super) mod recompress;
pub(super) mod slices;
