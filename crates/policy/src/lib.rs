//! Pure decisions: no I/O, no clock, no randomness, no state shared between threads.
#![forbid(unsafe_code)]
