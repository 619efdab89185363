//! What happens in a story, drawn from its seed: `scenario` draws it whole, phase by phase, and puts in what the other parts draw,
//! each of which is about one kind of step.
//!
//! Where such steps allow what is a broken promise elsewhere, the same part says so to those who judge: `growing` and `spill`.

pub(crate) mod growing;
mod races;
mod scans;
pub mod scatter;
pub mod scenario;
pub(crate) mod spill;
mod sweeps;
mod tides;
pub mod turn;
mod words;
