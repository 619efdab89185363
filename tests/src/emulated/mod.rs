//! A machine that needs neither root nor KVM: QEMU emulates it, and it boots what `system` puts together.

mod machine;
mod system;

pub(crate) use machine::Machine;
pub use system::{Recipe, System};
