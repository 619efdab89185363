//! Writing back: how old blocks become, clients' reads beside it, and its end.

use super::*;

mod ages;
mod ending;
mod reads;
