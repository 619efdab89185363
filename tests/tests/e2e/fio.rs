//! fio as a client.

use spillway_tests::{Launch, clients};

#[test]
fn mixed_writes_verify_also_after_a_reconnect() {
    clients::mixed_writes_verify_also_after_a_reconnect(&Launch::ram("64M").start());
}

#[test]
fn trims_verify() {
    clients::trims_verify(&Launch::ram("64M").start());
}
