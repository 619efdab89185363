//! Tests of whole conversations: the kernel's side is scripted, and a device's answers are released by hand.

mod attributes;
mod chaos;
mod files;
mod kernel;
mod pressure;
mod toy;

use std::sync::Arc;

use spillway_core::{Aligned, Budget};

use self::kernel::{Kernel, THREAD, portion, portion_with, words32, words64, writing};
use self::toy::{ADDED_MAX, LINES_SHOWN, Toy, ToyServer};
use super::wire::{errno, fallocate_mode, init_flag, opcode, open_mode, whence};
use super::{Config, Tree};
use crate::Export;
use crate::test_device::TestDevice;

/// Bytes of the test device.
const SIZE: u64 = 1 << 20;

/// A mount with `ram0` over a fresh device, made of one part.
fn mounted() -> (Arc<TestDevice>, Arc<Export>, Arc<Tree>, Arc<Toy>) {
    mounted_over(TestDevice::new(SIZE))
}

/// The same over this device.
fn mounted_over(device: Arc<TestDevice>) -> (Arc<TestDevice>, Arc<Export>, Arc<Tree>, Arc<Toy>) {
    let aligned = Aligned::to_bytes(device.clone(), &Budget::new(Budget::UNLIMITED)).unwrap();
    let export = Arc::new(Export::new("ram0", aligned).unwrap());
    let toy = Arc::<Toy>::default();
    let server = Arc::new(ToyServer(toy.clone()));
    let tree = Arc::new(Tree::new(1000, 100, 7).with_class(server.clone()));
    tree.add(export.clone(), vec![toy.folder()], server);
    (device, export, tree, toy)
}

/// A reader of that mount, and the node of its disk file.
fn reading() -> (Arc<TestDevice>, Arc<Export>, Arc<Tree>, Kernel, u64) {
    reading_from(TestDevice::new(SIZE))
}

fn reading_from(device: Arc<TestDevice>) -> (Arc<TestDevice>, Arc<Export>, Arc<Tree>, Kernel, u64) {
    let (device, export, tree, _) = mounted_over(device);
    let mut kernel = Kernel::new(&tree, Config::default());
    let disk = kernel.find("ram0/disk").unwrap();
    (device, export, tree, kernel, disk)
}
