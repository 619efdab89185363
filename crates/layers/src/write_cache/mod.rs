//! SSD write cache, in dm-writecache's own format. So far the format: what lies on a cache device, and what it means.
//!
//! | module | holds |
//! | --- | --- |
//! | [`mod@format`] | superblock, entries, layout, and the checks before a cache is taken for one |
//! | [`recovery`] | which blocks of a cache are alive after a crash |

pub mod format;
pub mod recovery;
