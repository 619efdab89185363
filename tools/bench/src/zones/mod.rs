//! E5: dirty limits for each zone of memory, beside one limit for all of it: with the page cache in real time, and a model of the source's
//! machine in virtual time.

mod file;
mod file_system;
mod memory;
mod model;
mod setup;
mod stick;
mod store;
mod time;
mod watch;
mod world;

/// With the page cache.
pub(crate) use store::run;

/// In virtual time. No part of the report: it has been fitted to the table that it shows.
pub(crate) use model::run as model;
