//! Shipped stacks in the simulated world: stories drawn from seeds, judged by the model, shortened where they break a promise.
#![forbid(unsafe_code)]

pub mod campaign;
mod dropping;
mod enlarging;
mod faults;
mod fuse;
mod growing;
mod hosts;
mod house;
pub mod mutants;
mod nbd;
pub mod network;
mod others;
mod parts;
mod power;
pub mod preset;
mod refusals;
mod remote;
mod resetting;
pub mod room;
pub mod row;
pub mod run;
mod scans;
pub mod scatter;
pub mod scenario;
mod setting_up;
pub mod shrink;
mod spill;
pub mod stacks;
mod story;
mod sweeps;
mod tides;
pub mod turn;
mod vhost;
mod visitor;
mod words;
