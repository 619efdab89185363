//! What all that writes back has in common: when to begin and to end, how much at a time, and who waits for it.

pub mod ages;
pub mod backoff;
pub mod bandwidth;
pub mod depth;
pub mod exposure;
pub mod throttle;
pub mod watermarks;
