//! vhost-user-blk: a virtual machine monitor's guest takes a device through memory that it shares.
//!
//! A front end speaks with a [`VhostUserSession`] over a unix socket, and shares the guest's memory, in which requests lie in rings. Each
//! queue is a [`Queue`](spillway_core::shared_memory::Queue) of its own, and its requests pass through the pipeline that those of NBD do.
//!
//! Promises: the guest is believed nothing. What lies in its memory is read once, then checked; a ring that breaks the rules of VIRTIO
//! stops its queue, and nothing else. An acknowledged write, flush or discard means what it means over NBD. A front end that outlives the
//! server goes on with the next one: what was in flight is carried out again, and where a former server has lost writes that it had
//! acknowledged, every flush of the guest fails, or the front end is refused where all content was lost.
//!
//! Specifications: VIRTIO 1.2, and "Vhost-user Protocol" of QEMU.

mod block;
mod inflight;
mod memory;
mod message;
mod pieces;
mod queue;
mod ring;
mod session;
mod setup;
#[cfg(test)]
mod tests;

pub use inflight::inflight_bytes_max;
pub use memory::REGIONS_MAX;
pub use message::{config_changed, protocol_feature, request};
pub use ring::QUEUE_SIZE_MAX;
pub use session::{Config, VhostUserSession};
pub use setup::{QUEUE_BYTES, TransferLimits};
