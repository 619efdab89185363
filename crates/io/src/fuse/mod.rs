//! FUSE mounts: getting one, reading its requests on the workers, and giving it up.
//!
//! What it is: [`Mount`] is a mount point with the descriptor behind it; [`serve_mount`] has several workers read from it, each
//! by a descriptor of its own where the system allows that, so that requests spread over the workers and each is answered on the
//! thread that read it.
//!
//! What it promises upwards: a mount point that a dead server left is cleaned up, one that lives is left alone, and so is what others
//! have mounted at the same place; while a file is open, [`MountServing::unmount`] refuses. A reader always
//! has a buffer for the next message, whatever devices keep. What the readers hold is counted: their buffers by the workspace that they
//! get, the rest by [`READER_BYTES`].
//!
//! What it needs below: `/dev/fuse`, and either the right to mount or `fusermount3`.
//!
//! | file | holds |
//! | --- | --- |
//! | `mount` | mounting and unmounting, with that right |
//! | `fusermount` | the same without it |
//! | `mount_table` | what is mounted where, as the kernel lists it |
//! | `as_user` | work in the name of another user |
//! | `loop_device` | loop devices |
//! | `reader` | the loop of one reader |
//! | `readers` | all readers of a mount |
//! | `serve` | a mount with its readers |
//! | `shown_file` | a file in a mount, seen by clients, and the loop devices over it |

mod as_user;
mod fusermount;
mod loop_device;
mod mount;
mod mount_table;
mod reader;
mod readers;
mod serve;
mod shown_file;
#[cfg(test)]
mod tests;

pub use as_user::User;
pub(crate) use loop_device::{LoopBacking, file_shown_in, loop_devices, open_as_far_as_allowed};
pub use loop_device::{LoopDevice, backing_file};
pub use mount::Mount;
pub(crate) use mount_table::is_away;
pub use mount_table::{Bound, MountPoint, file_system_at, loop_devices_below, mounts_below, places_of};
pub use reader::READER_BYTES;
pub use serve::{MountServing, NewExchange, READERS_MAX, serve_mount};
pub use shown_file::ShownFile;
