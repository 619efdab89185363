//! Shipped stacks in the simulated world: stories drawn from seeds, judged by the model, shortened where they break a promise.
//!
//! | part | holds |
//! | --- | --- |
//! | `world` | what stacks and clients run in: faults of disks, power, and the networks between them |
//! | `stacks` | the table of stacks, and what is known of each |
//! | `stories` | what happens in a story, drawn from its seed |
//! | `run` | a story that is run, and every answer held against the model |
//! | `search` | many stories, the shortest that breaks a promise, and the deliberate defects that have to be found |
//!
//! Each needs those above it. `cli` is the program's alone.
#![forbid(unsafe_code)]

pub mod run;
pub mod search;
pub mod stacks;
pub mod stories;
pub mod world;
