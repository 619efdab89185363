//! Tests of whole conversations: a scripted client and a device whose answers are released by hand.

mod chaos;
mod client;
mod fairness;
mod handshake;
mod names;
mod pressure;
mod stream;
mod transmission;

use std::sync::Arc;

use spillway_core::Aligned;

use self::client::{Client, Style};

use super::Config;
use super::wire::{cmd, cmd_flag, errno, flag, opt, rep};
use crate::test_device::TestDevice;
use crate::{Export, Exports};

/// Bytes of the test device.
const SIZE: u64 = 1 << 20;

/// One export "disk" over a fresh device.
fn one_export() -> (Arc<TestDevice>, Arc<Exports>) {
    let device = TestDevice::new(SIZE);
    let exports = Arc::new(Exports::new());
    exports.add(Export::new("disk", Aligned::new(device.clone())).unwrap()).unwrap();
    (device, exports)
}

const STYLES: [Style; 3] = [Style::Simple, Style::Structured, Style::Extended];

/// A client in transmission, with each reply style in turn.
fn each_style(test: impl Fn(Client, Arc<TestDevice>)) {
    for style in STYLES {
        let (device, exports) = one_export();
        test(Client::transmitting(&exports, style), device);
    }
}
