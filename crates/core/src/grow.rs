//! How a part becomes larger while it is in use.

use crate::device::LocalFuture;
use crate::error::Error;

/// What a part does when its device is to grow.
pub trait Grow: Send + Sync {
    /// Grows to `size` bytes, or to what it stands on where none is given. Requests go on meanwhile; those that came before see the
    /// old size or the new one. [`crate::Kind::Invalid`] where it cannot have that size; it is as it was then. One call at a time.
    fn grow(&self, size: Option<u64>) -> LocalFuture<Result<(), Error>>;
}
