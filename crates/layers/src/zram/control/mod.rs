//! The words of the control table: codecs and their parameters, which pages a command means, a line for each page.

pub(super) mod algorithms;
pub(super) mod block_state;
pub(super) mod scan;
