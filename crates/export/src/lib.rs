//! Protocols as sessions without I/O.
