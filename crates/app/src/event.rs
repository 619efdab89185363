//! What asks something of the server's own thread, and the answers that it owes.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use spillway_core::{Answer, Error, Kind};
use spillway_export::control::Change;

use crate::arrival::Arrival;

/// What happens to a server.
pub(crate) enum Event {
    /// A signal asks it to stop.
    Signal(i32),
    /// A control client asks for a change and waits for the answer.
    Change(Change, Promise),
    /// A client asks for another device and waits for its number.
    Add(Promise<u32>),
    /// Its threads fail in a way that may not pass.
    Failed(Error),
    /// It is built, or cannot be.
    Arrived(Result<Box<Arrival>, Error>, Promise<u32>),
}

/// An answer owed to a client. Dropped, it says that the server stops.
pub(crate) struct Promise<T = ()> {
    sender: oneshot::Sender<Result<T, Error>>,
    given: Instant,
}

impl<T> Promise<T> {
    /// Answers. A client that no longer waits has no use for it.
    pub(crate) fn keep(self, outcome: Result<T, Error>) {
        let _ = self.sender.send(outcome);
    }

    /// Since when it is owed.
    pub(crate) fn age(&self) -> Duration {
        self.given.elapsed()
    }
}

/// Asks the server's thread for a change.
pub(crate) fn request_change(events: &Sender<Event>, change: Change) -> Answer<Result<(), Error>> {
    request(events, |promise| Event::Change(change, promise))
}

/// Asks the server's thread for what `event` says. Where that thread ends without an answer, the answer is that the server stops.
pub(crate) fn request<T: 'static>(
    events: &Sender<Event>,
    event: impl FnOnce(Promise<T>) -> Event,
) -> Answer<Result<T, Error>> {
    let (sender, outcome) = oneshot::channel();
    let _ = events.send(event(Promise { sender, given: Instant::now() }));
    let stopping = || Err(Error::new(Kind::ShuttingDown, "the server stops"));
    Answer::pending(async move { outcome.await.unwrap_or_else(|_| stopping()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::contract::block_on;
    use std::sync::mpsc;

    fn ask(take: impl FnOnce(Promise) + Send + 'static) -> Result<(), Error> {
        let (sender, events) = mpsc::channel();
        let answer = request_change(&sender, Change::StopServer);
        let server = std::thread::spawn(move || match events.recv() {
            Ok(Event::Change(Change::StopServer, promise)) => take(promise),
            _ => panic!("another event than was sent"),
        });
        let outcome = block_on(answer);
        server.join().unwrap();
        outcome
    }

    #[test]
    fn an_answer_crosses_threads() {
        assert_eq!(ask(|promise| promise.keep(Ok(()))), Ok(()));
    }

    #[test]
    fn a_server_that_ends_says_so() {
        assert_eq!(ask(drop).unwrap_err().kind, Kind::ShuttingDown);
        let (sender, events) = mpsc::channel();
        drop(events);
        let answer = request_change(&sender, Change::StopServer);
        assert_eq!(block_on(answer).unwrap_err().kind, Kind::ShuttingDown);
    }
}
