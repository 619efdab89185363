//! What each real client does to a server; a test chooses the server.

mod fio;
mod libnbd;
mod qemu;

pub use fio::{mixed_writes_verify_also_after_a_reconnect, trims_verify};
pub use libnbd::{
    copies_round_trip, describes_itself, map, maps_what_is_allocated, overlapping_writes_are_whole,
};
pub use qemu::{images_round_trip, patterns_verify};
