//! How many batches may be written back at a time, beside clients of the same device.

/// Batches in flight, however small.
pub const DEPTH_MAX: usize = 64;

/// Batches in flight while reads wait: the device is never idle between two of them, and a read has few writes before it.
pub const DEPTH_BESIDE_READS: usize = 2;

/// What clients wait for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiting {
    /// Reads of the device that is written back to.
    pub reads: bool,
    /// Writes, until dirty data has left and made room for theirs.
    pub room: bool,
}

/// Batches that may be in flight. Reads come first, but not before writes that wait for just these batches.
pub fn depth(waiting: Waiting) -> usize {
    match waiting {
        Waiting { reads: true, room: false } => DEPTH_BESIDE_READS,
        _ => DEPTH_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_have_few_writes_before_them_unless_writes_wait_for_room() {
        let cases = [(false, false, 64), (true, false, 2), (false, true, 64), (true, true, 64)];
        for (reads, room, expected) in cases {
            assert_eq!(depth(Waiting { reads, room }), expected, "reads {reads}, room {room}");
        }
    }
}
