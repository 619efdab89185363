//! Pauses of writers in front of what is written back: one token clock for all of them, and the waiting.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::Env;
use spillway_core::sync::Mutex;
use spillway_policy::throttle::{Thresholds, Throttle};

use super::Meter;

/// Bytes that a writer pauses for at a time.
const PIECE: u64 = 128 << 10;

/// The pauses of a source's writers.
pub(crate) struct Pauses {
    env: Arc<dyn Env>,
    meter: Arc<Meter>,
    clock: Mutex<Throttle>,
}

impl Pauses {
    /// Of writers to memory that empties into the device that `meter` measures.
    pub(crate) fn new(env: Arc<dyn Env>, meter: Arc<Meter>) -> Self {
        Self { env, meter, clock: Mutex::default() }
    }

    /// Pauses for `bytes` that a writer has added, a piece at a time; whether it did. `look` is asked before each piece: the thresholds and
    /// the bytes held, where writers may have to pause. `paused` hears of each pause as it begins: when that is, and its length.
    pub(crate) async fn wait(
        &self,
        bytes: u64,
        look: impl Fn() -> Option<(Thresholds, u64)>,
        paused: impl Fn(Duration, Duration),
    ) -> bool {
        let (mut left, mut any) = (bytes, false);
        while left > 0 {
            let piece = left.min(PIECE);
            left -= piece;
            let Some((thresholds, held)) = look() else { continue };
            let (now, speed) = (self.env.now(), self.meter.bytes_per_second());
            let pause = self.clock.lock().pause(now, piece, thresholds, held, speed);
            if !pause.is_zero() {
                any = true;
                paused(now, pause);
                self.env.sleep(pause).await;
            }
        }
        any
    }
}
