//! How a part ends, where that takes more than being dropped.

use crate::env::LocalFuture;
use crate::error::Error;

/// What a part does when its device is no longer served.
pub trait Suspend: Send + Sync {
    /// Has commands of its attributes end early, those under way and later ones, with [`Kind::ShuttingDown`](crate::Kind::ShuttingDown).
    /// Requests go on, and those that fail after a time because a server cannot be reached have that time once more. A part has nothing of
    /// that unless it says so.
    fn wind_down(&self) {}

    /// Ends, after the last client and before the last flush; the parts above have ended, well or not. An error says what was left undone.
    fn suspend(&self) -> LocalFuture<Result<(), Error>>;

    /// After the last flush: ends what goes on by itself, and gives back what keeps others out. A disk that does not answer does not keep it
    /// for long: the error says what was left then. Nothing is lost by that.
    fn close(&self) -> LocalFuture<Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
