//! Who may connect to an export, and when.

use super::*;
use crate::test_device::TestDevice;

const PROGRAM: Peer = Peer::Program(7);
const OTHER: Peer = Peer::Program(8);

/// An export whose client of before is awaited until the flag says otherwise.
fn kept() -> (Arc<Export>, Arc<AtomicBool>) {
    let awaited = Arc::new(AtomicBool::new(true));
    let flag = awaited.clone();
    let export = Export::new("disk", Aligned::new(TestDevice::new(4096))).expect("the name is sound");
    (Arc::new(export.kept_while(move || flag.load(Ordering::Relaxed))), awaited)
}

#[test]
fn an_export_is_kept_for_the_client_of_before_alone() {
    let (export, _) = kept();
    assert!(export.connect(Peer::Unknown).is_none() && export.connect(PROGRAM).is_none());
    assert!(export.reserve().is_err() && export.hold().is_err() && export.clients() == 0);
    // One that was to bring it back has ended.
    export.keep_for(OTHER, true).expect("it is kept");
    export.keep_for(PROGRAM, true).expect("it still is");
    assert!(export.connect(OTHER).is_none());
    let client = export.connect(PROGRAM).expect("it is back");
    assert!(!export.is_kept() && export.connect(PROGRAM).is_none(), "it has it alone");
    assert_eq!(export.keep_for(PROGRAM, true), Err(Kind::Busy), "its connection works");
    drop(client);
    assert!(
        export.connect(Peer::Unknown).is_none() && export.clients() == 0,
        "its block device is still there"
    );
    export.keep_for(PROGRAM, false).expect("its connection was lost");
    let _client = export.connect(PROGRAM).expect("it is back");
    assert!(export.connect(Peer::Unknown).is_some(), "it is shared");
}

#[test]
fn an_export_is_kept_no_longer_than_it_is_awaited() {
    for free in [
        |export: &Arc<Export>| export.connect(Peer::Unknown).is_some(),
        |export: &Arc<Export>| export.reserve().is_ok(),
        |export: &Arc<Export>| !export.is_kept(),
    ] {
        let (export, awaited) = kept();
        assert!(!free(&export));
        awaited.store(false, Ordering::Relaxed);
        assert!(free(&export) && export.clients() == 0);
    }
    let (export, awaited) = kept();
    let guarded = || export.reserve().expect("nobody is there");
    awaited.store(false, Ordering::Relaxed);
    let guard = guarded();
    assert_eq!(export.keep_for(PROGRAM, true), Err(Kind::Busy), "a guard keeps clients away");
    drop(guard);
    drop(guarded());
}

/// Its layers end once the last client has left: no other may reach them.
#[test]
fn a_closed_export_takes_no_client_and_counts_those_that_it_has() {
    let (export, awaited) = kept();
    awaited.store(false, Ordering::Relaxed);
    let client = export.connect(PROGRAM).expect("it is kept no longer");
    export.close();
    assert!(export.connect(OTHER).is_none(), "it has found the export before");
    assert_eq!(export.clients(), 1, "a refused client is not counted");
    drop(client);
    assert!(export.connect(PROGRAM).is_none() && export.clients() == 0);
    let (export, _) = kept();
    export.keep_for(PROGRAM, true).expect("it is kept");
    export.close();
    assert!(export.connect(PROGRAM).is_none() && export.is_kept(), "it is for the next server");
}
