//! What is asked of an origin, and how its server is reached.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::session::Session;
use spillway_core::{Error, LocalFuture};

use crate::tls::Trust;

/// Makes the session of a connection, on the thread that serves it.
pub type NewSession = Box<dyn FnOnce() -> Box<dyn Session> + Send>;

/// How the server is reached.
pub trait Dial: Send + Sync {
    /// Connects, and has a driver run the session. The future ends once there is a connection; the error says why there is none, in words.
    /// Connections of different channels are best served by different threads.
    fn dial(&self, channel: usize, session: NewSession) -> LocalFuture<Result<(), Error>>;
}

/// What is asked of an [`NbdOrigin`](super::NbdOrigin).
#[derive(Clone)]
pub struct Settings {
    /// The server and the export, as people wrote it.
    pub address: String,
    /// Name of the export at the server.
    pub export: String,
    /// Nothing is written.
    pub read_only: bool,
    /// How long calls wait for a server that cannot be reached, before they fail with [`Kind::Unreachable`](spillway_core::Kind::Unreachable); without a limit where `None`.
    pub timeout: Option<Duration>,
    /// Connections at most, at least 1: more than one where the server says that a flush of one covers all.
    pub connections: usize,
    /// Whom to believe, and the name that the server has to have; without TLS where `None`.
    pub tls: Option<(Arc<Trust>, String)>,
    /// Bytes of memory for what is acknowledged and not flushed: eight blocks of the server at least.
    pub journal_bytes: usize,
}
