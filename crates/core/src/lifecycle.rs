//! How a layer begins and ends, where that takes more than being built and dropped.

use crate::device::LocalFuture;
use crate::error::Error;

/// What a part does when its device begins and ends to be served.
pub trait Lifecycle: Send + Sync {
    /// Makes ready, before the first client; returns what was found, for people. An error says that too, and what to do.
    fn open(&self) -> LocalFuture<Result<String, Error>>;

    /// Ends, after the last client and before the last flush.
    fn suspend(&self) -> LocalFuture<Result<(), Error>>;
}
