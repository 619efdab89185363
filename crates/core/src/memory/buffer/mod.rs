//! Buffers that travel with their request.
//!
//! An [`IoBuf`] is a page-aligned piece of memory with a visible window, in power-of-two sizes. All those of an engine together
//! stay below the limit of its [`Buffers`], which each of its threads enters: a caller that can wait asks with
//! [`IoBuf::try_new`] and waits for [`room`]; what is bounded by a constant uses [`IoBuf::new`], which is counted but never
//! refused. Threads keep unused buffers, which others of the engine get when they need memory. A buffer may be dropped on any
//! thread: it counts where it was taken.
//!
//! A recycled buffer holds what its last user left: a device that answers a read fills it whole.
//!
//! Three kinds of buffers are not counted there: those of a [`Workspace`], which a layer charges for its own use,
//! [`IoBuf::zeroes`], views of one zero buffer for the whole process, and the views of a [`Shared`] buffer. No one may write
//! to a view.

mod block;
mod buffers;
mod io_buf;
mod lender;
mod page;
mod pool;
mod shared;
mod workspace;

pub use buffers::{Buffers, Reserve};
pub use io_buf::{IoBuf, ZEROES_LEN, bytes_for, room};
pub use page::{ALIGNMENT, LEN_MAX};
pub use pool::is_short;
pub use shared::Shared;
pub use workspace::Workspace;
