//! HTTP: the operations of the control protocol as paths, metrics for Prometheus, and a page for people.
//!
//! The paths are those of docs/http.md.
//!
//! *Upwards* it promises: bad input gets an answer with a reason, never a panic; a client is held to a head of 16 KiB, a body of 64 KiB and one
//! request at a time; [`Rights`] says who may do what, and a page of another server changes nothing through its reader's browser. *Below* it
//! needs a [`Catalog`](super::Catalog). It keeps no state between requests.

mod head;
mod metrics;
mod response;
mod rights;
mod routes;
mod session;

pub use rights::Rights;
pub use session::HttpSession;
