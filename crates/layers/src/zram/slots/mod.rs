//! The slots of a device: what each page of 4096 bytes holds, and the locks under which that is seen and changed.

pub(super) mod blocks;
pub(super) mod copies;
pub(super) mod deferred;
pub(super) mod holdings;
pub(super) mod locked;
pub(super) mod mark;
pub(super) mod picked;
pub(super) mod table;
pub(super) mod walks;
