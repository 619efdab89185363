//! Models for the checker of threads: writers that are held, and flushes that end.

use std::sync::Arc;

use spillway_core::models::{Tasks, every_order, finds};
use spillway_core::sync::shuttle::future::{block_on, yield_now};
use spillway_core::sync::shuttle::thread;
use spillway_core::sync::{AtomicU64, Ordering};
use spillway_core::{
    Answer, AtRisk, Attributes, BlockDevice, BlockSize, Geometry, IoBuf, Op, Request, Submission, Value,
};

use super::{Limits, attributes};

const BLOCK: u64 = 4096;

/// Counts what it has acknowledged until a flush covers it, and what it has of writes with FUA until they end.
#[derive(Default)]
struct Store(AtomicU64, AtomicU64);

impl AtRisk for Store {
    fn at_risk_bytes(&self) -> u64 {
        self.0.load(Ordering::SeqCst) + self.1.load(Ordering::SeqCst)
    }
}

struct Device(Arc<Store>);

impl BlockDevice for Device {
    fn geometry(&self) -> Geometry {
        Geometry { volatile: false, block_size: BlockSize::PAGE, ..Geometry::in_memory(1 << 20) }
    }

    fn submit(&self, request: Request) -> Submission {
        let store = self.0.clone();
        Answer::pending(async move {
            yield_now().await;
            match request.op {
                Op::Flush => {
                    let covers = store.0.load(Ordering::SeqCst);
                    yield_now().await;
                    store.0.fetch_sub(covers, Ordering::SeqCst);
                }
                _ if request.flags.fua => {
                    store.1.fetch_add(request.range.len, Ordering::SeqCst);
                    yield_now().await;
                    store.1.fetch_sub(request.range.len, Ordering::SeqCst);
                }
                _ => {
                    let now = store.0.fetch_add(request.range.len, Ordering::SeqCst) + request.range.len;
                    assert!(now <= 2 * BLOCK, "{now} bytes are at risk");
                }
            }
            request.answer(Ok(()))
        })
    }
}

/// Three writers, of whose blocks two may be at risk.
#[test]
fn every_write_is_admitted_and_none_too_many() {
    every_order(2000, || {
        let store = Arc::new(Store::default());
        let below = Arc::new(Device(store.clone()));
        let limits = Limits::new("disk0", below, vec![store], Arc::new(Tasks)).expect("none is set");
        let set = attributes(limits.clone()).set("at_risk_bytes_max", Value::U64(2 * BLOCK)).now();
        assert_eq!(set, Ok(()));
        let writer = |writer: u64| {
            let limits = limits.clone();
            thread::spawn(move || {
                for write in 0..2 {
                    let bytes = IoBuf::new((BLOCK * (1 + (writer + write) % 2)) as usize);
                    assert_eq!(block_on(limits.submit(Request::write(0, bytes))).result, Ok(()));
                }
            })
        };
        let writers: Vec<_> = (0..3).map(writer).collect();
        writers.into_iter().for_each(|writer| writer.join().expect("a writer ends"));
    });
}

/// Two writers, of whose blocks two may be at risk, and one by the end, while a third writes what is larger than that.
#[test]
fn a_lowered_limit_and_larger_writes_keep_nobody_waiting() {
    every_order(2000, || {
        let store = Arc::new(Store::default());
        let below = Arc::new(Device(store.clone()));
        let limits = Limits::new("disk0", below, vec![store], Arc::new(Tasks)).expect("none is set");
        let set =
            |blocks| attributes(limits.clone()).set("at_risk_bytes_max", Value::U64(blocks * BLOCK)).now();
        assert_eq!(set(2), Ok(()));
        let writer = |blocks: u64| {
            let limits = limits.clone();
            thread::spawn(move || {
                let bytes = IoBuf::new((BLOCK * blocks) as usize);
                assert_eq!(block_on(limits.submit(Request::write(0, bytes))).result, Ok(()));
            })
        };
        let writers = [2, 2, 3].map(writer);
        assert_eq!(set(1), Ok(()));
        writers.into_iter().for_each(|writer| writer.join().expect("a writer ends"));
    });
}

#[test]
fn the_checker_finds_flushes_that_wake_nobody() {
    finds("limits: wake nobody when a flush ends", every_write_is_admitted_and_none_too_many);
}

#[test]
fn the_checker_finds_writes_that_are_forgotten_while_they_are_under_way() {
    finds("limits: forget what is under way", every_write_is_admitted_and_none_too_many);
}
