//! qemu's tools as clients.

use spillway_tests::{Launch, clients};

#[test]
fn images_round_trip() {
    clients::images_round_trip(&Launch::ram("32M").start());
}

#[test]
fn patterns_verify() {
    clients::patterns_verify(&Launch::ram("8M").start());
}
