//! A small device in memory, whose answers are late where that is asked for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use spillway_core::{Answer, BlockDevice, ByteRange, Extent, Geometry, Kind, Op, Reply, Request, Submission};

/// Bytes of the device.
pub const SIZE: u64 = 128 << 10;

/// What the device holds, and whether anybody may still ask it.
pub struct Memory {
    bytes: Mutex<Vec<u8>>,
    late: bool,
    turn: AtomicU64,
    dead: AtomicBool,
}

impl Memory {
    /// From now on no request may reach it.
    pub fn bury(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    fn carry_out(&self, mut request: Request) -> Reply {
        assert!(!self.dead.load(Ordering::Relaxed), "a request of a dead connection was carried out");
        let ByteRange { offset, len } = request.range;
        let mut bytes = self.bytes.lock().expect("nobody panics here");
        let span = &mut bytes[offset as usize..(offset + len) as usize];
        match request.op {
            Op::Read => request.buf.copy_from_slice(span),
            Op::Write => span.copy_from_slice(&request.buf),
            Op::WriteZeroes | Op::Discard => span.fill(0),
            Op::Flush => {}
        }
        request.answer(if len == 8192 { Err(Kind::Io) } else { Ok(()) })
    }
}

/// What the late device keeps of itself in its answers.
struct Device(Arc<Memory>);

impl BlockDevice for Device {
    fn geometry(&self) -> Geometry {
        Geometry::in_memory(SIZE)
    }

    fn submit(&self, request: Request) -> Submission {
        let memory = self.0.clone();
        if !memory.late {
            return Answer::Done(memory.carry_out(request));
        }
        let mut request = Some(request);
        let mut turns = memory.turn.fetch_add(1, Ordering::Relaxed) % 4;
        Answer::pending(std::future::poll_fn(move |context| {
            if turns > 0 {
                turns -= 1;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(memory.carry_out(request.take().expect("polled until it is ready, not longer")))
        }))
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let mut list: Vec<Extent> = (0..range.len.div_ceil(4096))
            .map(|block| if block % 2 == 0 { Extent::stored(4096) } else { Extent::hole(4096) })
            .collect();
        list.truncate(count_max);
        Answer::Done(Ok(list))
    }
}

/// A device, and what it holds.
pub fn open(late: bool) -> (Arc<Memory>, Arc<dyn BlockDevice>) {
    let memory = Arc::new(Memory {
        bytes: Mutex::new(vec![0; SIZE as usize]),
        late,
        turn: AtomicU64::new(0),
        dead: AtomicBool::new(false),
    });
    (memory.clone(), Arc::new(Device(memory)))
}
