//! The top of a stack whose origin another host may take over: from then on every request fails.
//!
//! The parts below learn of it when they next reach the origin. A cache that does so late would show clients what the other host has written
//! over meanwhile, and acknowledge what nobody will see.

use std::sync::Arc;

use spillway_core::sync::{AtomicBool, Ordering};
use spillway_core::{Answer, BlockDevice, ByteRange, Extent, Kind, Request, Submission, forward, mutant};

/// See the head of this file.
pub(crate) struct Fenced {
    below: Arc<dyn BlockDevice>,
    fence: Arc<AtomicBool>,
}

impl Fenced {
    /// Over `below`, until `fence` is set.
    pub(crate) fn new(below: Arc<dyn BlockDevice>, fence: Arc<AtomicBool>) -> Self {
        Self { below, fence }
    }

    fn is_fenced(&self) -> bool {
        self.fence.load(Ordering::Acquire) && !mutant::on("stack: serve what another host has taken over")
    }
}

impl BlockDevice for Fenced {
    forward!(below: geometry, verify);

    fn submit(&self, request: Request) -> Submission {
        if self.is_fenced() {
            return Answer::Done(request.answer(Err(Kind::Io)));
        }
        self.below.submit(request)
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        if self.is_fenced() {
            return Answer::Done(Err(Kind::Io));
        }
        self.below.extents(range, count_max)
    }
}
