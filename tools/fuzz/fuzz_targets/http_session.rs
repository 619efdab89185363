//! A client that says anything to an HTTP session.
//!
//! Input: a byte of choices (who may do what, and in which steps the bytes come), then what the client says. Checked: no panic, what a session
//! keeps is bounded, each answer begins with a status, nothing that changes is asked for by who may look only or has no token, and a session
//! that is told to ends.
#![no_main]

use std::sync::Arc;
use std::task::{Context, Waker};

use libfuzzer_sys::fuzz_target;
use spillway_core::session::{Intake, Session};
use spillway_core::sync::{AtomicUsize, Ordering};
use spillway_core::{Answer, Error, Kind, work};
use spillway_export::control::{
    AttributeRow, Catalog, DeviceChanges, DeviceRow, HttpSession, Operation, Rights, ServerVersion, Shown,
};

/// Devices and attributes that are there under any name.
#[derive(Default)]
struct Anything {
    changes: AtomicUsize,
}

impl Catalog for Anything {
    fn version(&self) -> ServerVersion {
        ServerVersion { version: "1".into(), pid: 1 }
    }

    fn server(&self) -> Vec<(AttributeRow, Shown)> {
        Vec::new()
    }

    fn devices(&self) -> Vec<DeviceRow> {
        vec![DeviceRow { name: "a\"\n".into(), ..DeviceRow::default() }]
    }

    fn attributes(&self, device: &str) -> Result<Vec<AttributeRow>, Error> {
        let row = AttributeRow { name: "b".into(), part: "c".into(), readable: true, ..AttributeRow::default() };
        if device.is_empty() { Err(Error::new(Kind::NotFound, "no name")) } else { Ok(vec![row]) }
    }

    fn get(&self, _: &str, attribute: &str, from: u64) -> Result<Shown, Error> {
        Ok(Shown { name: attribute.into(), value: from.into(), text: String::new(), next: from.checked_add(1) })
    }
}

impl DeviceChanges for Anything {
    fn change(&self, operation: Operation) -> Answer<Result<(), Error>> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        match operation {
            Operation::Reset { .. } => Answer::Done(Err(Error::new(Kind::Busy, "in use"))),
            _ => Answer::pending(async { Ok(()) }),
        }
    }

    fn hot_add(&self) -> Answer<Result<u32, Error>> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        Answer::Done(Ok(7))
    }

    fn hot_remove(&self, _: u32) -> Answer<Result<(), Error>> {
        unreachable!("no request means this")
    }
}

/// The most that is unsent: the limit, and the longest answer, which is the page's script.
const OUTPUT_MAX: usize = (256 << 10) + (64 << 10);

fuzz_target!(|input: &[u8]| {
    let Some((&choices, mut bytes)) = input.split_first() else { return };
    let catalog = Arc::new(Anything::default());
    let rights = match choices & 3 {
        0 => Rights::Look,
        1 => Rights::Token("0123456789abcdef".into()),
        _ => Rights::All,
    };
    let may_change = rights == Rights::All || String::from_utf8_lossy(bytes).contains("0123456789abcdef");
    let mut session = HttpSession::new(catalog.clone(), Arc::new(rights.clone()));
    let step = 1 + usize::from(choices >> 2) * 7;
    let mut context = Context::from_waker(Waker::noop());
    let mut sent: Vec<u8> = Vec::new();
    while !session.finished() && !(bytes.is_empty() && session.pending() == 0) {
        let _turn = work::turn(work::TURN);
        if matches!(session.intake(), Intake::Bytes) {
            let used = session.receive(&bytes[..step.min(bytes.len())]);
            bytes = &bytes[used..];
        }
        session.poll(&mut context);
        assert!(session.output().len() <= OUTPUT_MAX, "{} bytes are unsent", session.output().len());
        sent.extend(session.output().take());
    }
    assert!(sent.is_empty() || sent.starts_with(b"HTTP/1.1 "), "an answer begins with its status");
    assert!(may_change || rights == Rights::All || catalog.changes.load(Ordering::Relaxed) == 0, "changed without a right");
    session.wind_down();
    while !session.finished() {
        session.poll(&mut context);
    }
});
