//! What the server's own thread is asked for.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use spillway_core::{Error, Job, Kind, Report};

use crate::exit::Exit;
use crate::server::building::{Built, DeviceClaim};
use crate::server::device::Device;

/// Sends the answer to a client. Dropped, it says that the server stops.
pub(crate) type ReplySender<T = ()> = Report<Result<T, Error>>;

/// What happens to a server.
pub(crate) enum Event {
    /// A signal asks it to stop.
    Signal(i32),
    /// It stops for a signal or the end of its command, unless one of these devices is still attached.
    Leave(Option<i32>, Vec<Arc<Device>>),
    /// A signal asks it to read its certificates again.
    ReadAgain,
    /// The program that runs beside it has ended.
    CommandEnded,
    /// Its threads fail in a way that may not pass.
    Failed(Error),
    /// A client asks it to stop, and is answered once that begins: the devices tell how they end.
    Stop(ReplySender),
    /// A client asks for the end of a device.
    StopDevice(String, ReplySender),
    /// The same, of a device that has no client and is not the last one.
    RemoveDevice(String, ReplySender),
    /// A client asks for a device alone; by the thread that opened its file, or as its one client.
    Hold(String, Option<u32>, ReplySender),
    /// A device has grown, from so many bytes.
    Grew(String, u64, ReplySender),
    /// A client asks for another device, and waits for its number.
    Add(ReplySender<u32>),
    /// It is built, or cannot be.
    Built(Result<Box<(DeviceClaim, Built)>, Error>, ReplySender<u32>),
}

impl Event {
    /// The exit code of a command that it keeps from running, where it asks for the end of the whole server, or is the cause of that.
    pub(crate) fn ends_the_server(&self) -> Option<u8> {
        match self {
            Self::Signal(number) => u8::try_from(128 + number).ok(),
            Self::Failed(_) | Self::Stop(_) => Some(Exit::Failed as u8),
            _ => None,
        }
    }
}

/// Asks the server's thread for what `event` says, and waits for the answer.
pub(crate) async fn ask<T>(
    events: &Sender<Event>,
    event: impl FnOnce(ReplySender<T>) -> Event,
) -> Result<T, Error> {
    let (job, reply) = Job::new();
    // Where nobody listens any more, the sender of the reply is dropped.
    let _ = events.send(event(reply));
    outcome(job).await
}

/// The outcome of a job, which only the end of the server drops.
pub(crate) async fn outcome<T>(job: Job<Result<T, Error>>) -> Result<T, Error> {
    job.await.unwrap_or_else(|| Err(Error::new(Kind::ShuttingDown, "the server stops")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::block_on;
    use std::sync::mpsc;

    fn asked(take: impl FnOnce(ReplySender) + Send + 'static) -> Result<(), Error> {
        let (sender, events) = mpsc::channel();
        let server = std::thread::spawn(move || match events.recv() {
            Ok(Event::Stop(reply)) => take(reply),
            _ => panic!("another event than was sent"),
        });
        let outcome = block_on(ask(&sender, Event::Stop));
        server.join().unwrap();
        outcome
    }

    #[test]
    fn an_answer_crosses_threads() {
        assert_eq!(asked(|reply| reply.done(Ok(()))), Ok(()));
    }

    #[test]
    fn a_server_that_ends_says_so() {
        assert_eq!(asked(drop).unwrap_err().kind, Kind::ShuttingDown);
        let (sender, events) = mpsc::channel();
        drop(events);
        assert_eq!(block_on(ask(&sender, Event::Stop)).unwrap_err().kind, Kind::ShuttingDown);
    }
}
