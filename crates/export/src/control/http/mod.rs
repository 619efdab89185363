//! HTTP: the operations of the control protocol as paths, metrics for Prometheus, and a page for people.
//!
//! ```text
//!   GET    /                                   the page
//!   GET    /metrics                            OpenMetrics 1.0
//!   GET    /api/server                         which server this is
//!   GET    /api/server/attributes              what it says of itself
//!   POST   /api/server/stop                    stops every device and ends the server
//!   GET    /api/devices                        every device
//!   POST   /api/devices                        adds a compressed RAM disk without a size
//!   GET    /api/devices/NAME                   all values
//!   DELETE /api/devices/NAME                   flushes and stops it
//!   POST   /api/devices/NAME/reset             forgets all it holds
//!   POST   /api/devices/NAME/resize            {"size": BYTES}, or nothing for its origin's
//!   GET    /api/devices/NAME/attributes        the declarations
//!   GET    /api/devices/NAME/attributes/ATTR   one value; of lines those behind ?from=N
//!   PUT    /api/devices/NAME/attributes/ATTR   sets it to the body, which is JSON
//! ```
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
