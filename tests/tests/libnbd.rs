//! libnbd's tools as clients.

use spillway_tests::{Launch, clients};

#[test]
fn nbdcopy_round_trips() {
    clients::copies_round_trip(&Launch::ram("32M").start());
}

#[test]
fn nbdinfo_describes_the_export() {
    clients::describes_itself(&Launch::ram("100M").start(), "ram0", 100 << 20);
}

#[test]
fn nbdinfo_maps_what_is_allocated() {
    clients::maps_what_is_allocated(&Launch::ram("64M").start());
}

#[test]
fn overlapping_writes_over_several_connections_are_whole() {
    clients::overlapping_writes_are_whole(&Launch::ram("1M").start());
}
