//! How a part becomes larger while it is in use.

use crate::env::LocalFuture;
use crate::error::Error;

/// What a part does when its device is to grow.
pub trait Grow: Send + Sync {
    /// Finds out how large what it stands on is by now, where that has to be asked for. Before [`Grow::target`].
    fn look(&self) -> LocalFuture<Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The size that it would grow to, asked of all parts from the origin up before one grows: with `size` bytes asked for, or below it.
    /// [`crate::Kind::Invalid`] where it cannot have that, [`crate::Kind::NoSpace`] where there is no memory for it, which the part has, and
    /// keeps, from then on.
    fn target(&self, size: Option<u64>) -> Result<Option<u64>, Error> {
        Ok(size)
    }

    /// Grows to `size` bytes, or to what it stands on where none is given. Requests go on meanwhile; those that came before see the
    /// old size or the new one. [`crate::Kind::Invalid`] where it cannot have that size; it is as it was then. One call at a time.
    fn grow(&self, size: Option<u64>) -> LocalFuture<Result<(), Error>>;
}
