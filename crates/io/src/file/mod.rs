//! Files and block devices of the operating system: opening, locking, and the calls of [`Storage`](spillway_core::Storage) on a descriptor.
//!
//! Promises: one writer at a time, because the file or device is locked against a second one and against QEMU, and is none that a loop
//! device stands on; a call in the kernel's hands
//! keeps its buffer and its descriptor until the kernel is done, even if its future is dropped. What a device makes of the calls
//! is the business of the origin `file` above.
//!
//! Needs: a runtime of this crate on the thread that polls a call.
//!
//! Without O_DIRECT the kernel's page cache lies below, with it nothing does.

mod byte_locks;
mod claim;
mod extents;
mod footprint;
mod holders;
mod identity;
mod length;
mod lock;
mod mapped;
mod op;
mod open;
mod open_file;
mod options;
mod survey;
#[cfg(test)]
mod tests;

pub use footprint::Footprint;
pub use holders::program_of;
pub use identity::identity_of;
pub use lock::lock as lock_file;
pub use open::open;
pub use options::{Direct, FileOptions};
pub use survey::Survey;
