//! Memory that is short: what a device spills by itself, what its requests wait for, and what devices free for each other.

use super::*;

pub(in crate::zram) mod pressure;
mod relief;
mod shared_budget;
