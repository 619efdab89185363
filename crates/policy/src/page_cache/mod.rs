//! Which memory a page cache uses, what it reads ahead, evicts and writes back.

pub mod buddy;
pub mod dirty_regions;
pub mod eviction;
pub mod folio;
pub mod readahead;
pub mod zones;
