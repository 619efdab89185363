//! Merges over a device whose writes wait until they are let through: memory, order, and who waits for whom.

use super::pieces::BARE_BYTES_MAX;
use super::*;
use crate::sync::{AtomicUsize, Mutex, Ordering, WaitList};
use std::future::Future;
use std::task::{Context, Waker};

/// A device of 1 TiB that keeps writes and zeroings waiting until they are let through, and notes what it has.
struct Slow {
    permits: AtomicUsize,
    waiters: WaitList,
    log: Mutex<Vec<(Op, ByteRange, bool)>>,
    held: AtomicUsize,
}

struct Shared(Arc<Slow>, BlockSize);

impl BlockDevice for Shared {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: self.1, ..Geometry::in_memory(1 << 40) }
    }

    fn submit(&self, request: Request) -> Submission {
        let slow = self.0.clone();
        slow.held.fetch_add(request.buf.capacity(), Ordering::SeqCst);
        Answer::pending(async move {
            let take = |permits: usize| permits.checked_sub(1);
            let permit =
                || slow.permits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).ok().map(drop);
            if request.op.writes() {
                slow.waiters.until(permit).await;
            }
            slow.held.fetch_sub(request.buf.capacity(), Ordering::SeqCst);
            slow.log.lock().push((request.op, request.range, request.flags.fua));
            request.answer(Ok(()))
        })
    }
}

impl Slow {
    fn new() -> (Arc<Self>, Aligned) {
        let slow = Arc::new(Slow {
            permits: AtomicUsize::new(0),
            waiters: WaitList::default(),
            log: Mutex::default(),
            held: AtomicUsize::new(0),
        });
        let aligned = Aligned::new(Arc::new(Shared(slow.clone(), BlockSize::PAGE)));
        (slow, aligned)
    }

    fn let_through(&self, count: usize) {
        self.permits.fetch_add(count, Ordering::SeqCst);
        self.waiters.wake_all();
    }

    fn logged(&self) -> Vec<(Op, ByteRange, bool)> {
        std::mem::take(&mut self.log.lock())
    }
}

fn poll(submission: &mut Submission) -> bool {
    std::pin::Pin::new(submission).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn merges_hold_no_more_memory_than_their_workspace() {
    let (slow, aligned) = Slow::new();
    let request = |at: u64| Request::write(at + 512, IoBuf::new(1 << 20));
    let mut writes: Vec<_> = (0..40).map(|at| aligned.submit(request(at << 21))).collect();
    for _ in 0..400 {
        writes.retain_mut(|write| !poll(write));
        let held = slow.held.load(Ordering::SeqCst);
        assert!(held <= WORKSPACE_BYTES, "merges hold {held} bytes");
        slow.let_through(1);
    }
    assert!(writes.is_empty(), "{} writes are left", writes.len());
}

#[test]
fn a_read_of_parts_waits_for_memory_with_nothing_held() {
    let (slow, aligned) = Slow::new();
    let mut write = aligned.submit(Request::write(512, IoBuf::new(4096)));
    assert!(!poll(&mut write));
    let mut reads: Vec<_> =
        (0..30).map(|at| aligned.submit(Request::read((at << 20) + 512, IoBuf::new(1 << 20)))).collect();
    for _ in 0..40 {
        reads.retain_mut(|read| !poll(read));
    }
    assert!(reads.is_empty(), "reads pass a merge that waits for its write");
    slow.let_through(1);
    assert!(poll(&mut write));
}

#[test]
fn a_write_of_whole_sectors_waits_for_a_merge_of_parts() {
    let (slow, _) = Slow::new();
    let unlimited = Budget::new(Budget::UNLIMITED);
    let device = Arc::new(Shared(slow.clone(), BlockSize::SECTOR));
    let aligned = Aligned::to_bytes(device, &unlimited).expect("there is room");
    let mut merge = aligned.submit_bytes(Request::write(100, IoBuf::new(50)));
    assert!(!poll(&mut merge), "it waits for its write");
    let mut whole = aligned.submit(Request::write(0, IoBuf::new(1024)));
    assert!(!poll(&mut whole));
    slow.let_through(1);
    assert!(!poll(&mut whole), "a write of sectors slipped between the read and the write of a merge");
    assert!(poll(&mut merge));
    slow.let_through(1);
    assert!(poll(&mut whole));
    let order: Vec<_> = slow.logged().into_iter().map(|(op, range, _)| (op, range.len)).collect();
    assert_eq!(order, [(Op::Read, 512), (Op::Write, 512), (Op::Write, 1024)]);
}

#[test]
fn a_merge_waits_for_one_piece_of_a_long_zeroing_at_most() {
    let (slow, aligned) = Slow::new();
    let long = ByteRange::new(512, 20 * BARE_BYTES_MAX);
    let mut zeroing = aligned.submit(Request::bare(Op::WriteZeroes, long).with_fua());
    slow.let_through(2);
    assert!(!poll(&mut zeroing));
    let edges = slow.logged();
    assert_eq!(edges.len(), 4, "each edge was read and written: {edges:?}");
    let mut merge = aligned.submit(Request::write(512 << 30, IoBuf::new(512)));
    for pieces in 0.. {
        assert!(pieces < 3, "a merge waits for a third piece");
        slow.let_through(1);
        let (_, done) = (poll(&mut zeroing), poll(&mut merge));
        if done {
            break;
        }
    }
    slow.let_through(30);
    assert!(poll(&mut zeroing));
    let log = slow.logged();
    let zeroed: u64 =
        log.iter().filter(|(op, ..)| *op == Op::WriteZeroes).map(|(_, range, _)| range.len).sum();
    assert_eq!(zeroed, long.len - 4096);
    let last = log.last().expect("something was done");
    assert!(last.0 == Op::Flush && log.iter().all(|entry| !entry.2), "durable by one flush");
}
