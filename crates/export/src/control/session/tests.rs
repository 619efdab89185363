//! The conversation against a catalog of one device that answers changes when told to.

use std::task::Waker;

use spillway_core::Registry;
use spillway_core::sync::Ordering;
use spillway_core::test_clock::Clock;

use super::super::message::decode_reply;
use super::super::test_catalog::{Toy, busy, shown};
use super::*;

fn replies(session: &mut ControlSession) -> Vec<Result<ControlReply, Error>> {
    session.output().take().split_inclusive(|&byte| byte == b'\n').map(decode_reply).collect()
}

fn poll(session: &mut ControlSession) {
    session.poll(&mut Context::from_waker(Waker::noop()));
}

#[test]
fn any_split_of_the_bytes_gives_the_same_replies() {
    let text = [
        Operation::Version {}.encode(),
        "\r\n".into(),
        Operation::Get { device: "ram0".into(), attribute: None, from: None }.encode(),
        Operation::Get { device: "ram9".into(), attribute: None, from: None }.encode(),
        "nonsense\n".into(),
        Operation::Reset { device: "ram0".into() }.encode(),
    ]
    .concat();
    for step in 1..text.len() {
        let mut session = ControlSession::new(Arc::new(Toy::default()));
        for part in text.as_bytes().chunks(step) {
            assert!(matches!(session.intake(), Intake::Bytes));
            assert_eq!(session.receive(part), part.len());
        }
        let replies = replies(&mut session);
        assert_eq!(replies.len(), 5);
        let values = vec![shown("disksize")];
        assert_eq!(
            replies[1],
            Ok(ControlReply::Values(values)),
            "write-only attributes and lines are left out"
        );
        assert_eq!(replies[2].as_ref().unwrap_err().kind, Kind::NotFound);
        assert_eq!(replies[3].as_ref().unwrap_err().kind, Kind::Invalid);
        assert_eq!(replies[4], Ok(ControlReply::Done));
        assert!(!session.finished());
    }
}

#[test]
fn lines_go_on_where_the_reply_before_has_ended() {
    let mut session = ControlSession::new(Arc::new(Toy::default()));
    let (mut places, mut from) = (Vec::new(), None);
    loop {
        let get = Operation::Get { device: "ram0".into(), attribute: Some("pages".into()), from };
        session.receive(get.encode().as_bytes());
        let Some(Ok(ControlReply::Values(values))) = replies(&mut session).pop() else { panic!("no values") };
        places.push(values[0].next);
        match values[0].next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    assert_eq!(places, [Some(1), Some(2), Some(3), None]);
}

#[test]
fn one_change_at_a_time_and_in_order() {
    let toy = Arc::new(Toy { slow: true.into(), ..Default::default() });
    let mut session = ControlSession::new(toy.clone());
    let stop = Operation::Stop { device: "ram0".into() }.encode();
    let both = [stop.clone(), Operation::List {}.encode()].concat();
    assert_eq!(session.receive(both.as_bytes()), stop.len(), "the second request waits outside");
    assert!(matches!(session.intake(), Intake::Pause));
    poll(&mut session);
    assert!(session.output().is_empty() && session.pending() == 1);
    toy.complete.store(true, Ordering::SeqCst);
    poll(&mut session);
    assert_eq!(replies(&mut session), [Err(busy())]);
    assert_eq!(session.receive(&both.as_bytes()[stop.len()..]), both.len() - stop.len());
    assert!(matches!(&replies(&mut session)[..], [Ok(ControlReply::Devices(rows))] if rows.len() == 1));
}

#[test]
fn winding_down_answers_what_is_in_progress() {
    let toy = Arc::new(Toy { slow: true.into(), ..Default::default() });
    let mut session = ControlSession::new(toy.clone());
    session.receive(Operation::StopServer {}.encode().as_bytes());
    session.wind_down();
    assert!(!session.finished(), "the change is not answered yet");
    toy.complete.store(true, Ordering::SeqCst);
    poll(&mut session);
    assert!(session.finished() && !session.output().is_empty());
}

#[test]
fn a_line_without_end_closes_the_conversation() {
    let mut session = ControlSession::new(Arc::new(Toy::default()));
    let flood = vec![b' '; 4096];
    for _ in 0..LINE_BYTES_MAX / flood.len() {
        assert_eq!(session.receive(&flood), flood.len());
    }
    assert!(!session.finished(), "a line of the full length is allowed");
    session.receive(b" ");
    assert!(session.finished());
    assert_eq!(replies(&mut session)[0].as_ref().unwrap_err().kind, Kind::TooLong);
    assert_eq!(session.receive(b"more"), 0);
}

#[test]
fn a_client_that_never_reads_is_not_listened_to() {
    let mut session = ControlSession::new(Arc::new(Toy::default()));
    let line = Operation::List {}.encode();
    let mut rounds = 0;
    while matches!(session.intake(), Intake::Bytes) {
        session.receive(line.as_bytes());
        rounds += 1;
        assert!(rounds < UNSENT_BYTES_MAX, "it must pause");
    }
    assert!(session.output().len() < UNSENT_BYTES_MAX + 4096);
    session.output().clear();
    assert!(matches!(session.intake(), Intake::Bytes));
}

#[test]
fn a_client_that_hangs_up_leaves_its_change_behind() {
    let toy = Arc::new(Toy { slow: true.into(), ..Default::default() });
    let mut session = ControlSession::new(toy.clone());
    session.receive(Operation::Reset { device: "ram0".into() }.encode().as_bytes());
    session.hang_up();
    assert!(session.finished() && session.pending() == 0);
    assert_eq!(toy.changes.lock().len(), 1);
}

#[test]
fn what_a_client_reports_lasts_until_it_reports_something_else_or_leaves() {
    let toy =
        Arc::new(Toy { registry: Some(Registry::new(Arc::new(Clock::default()))), ..Default::default() });
    let registry = toy.registry.clone().expect("it has one");
    let mut session = ControlSession::new(toy);
    let mut report = |device: &str, kind: &str, done, total| {
        let report = Operation::Report { device: device.into(), kind: kind.into(), done, total };
        session.receive(report.encode().as_bytes());
        replies(&mut session).pop().expect("a reply")
    };
    for done in [0, 5] {
        let Ok(ControlReply::Work(rows)) = report("ram0", "save", done, Some(10)) else {
            panic!("it is taken")
        };
        assert_eq!((rows.len(), rows[0].done, rows[0].total), (1, done, Some(10)));
    }
    assert_eq!(report("ram0", "drain", 5, None).unwrap_err().kind, Kind::Invalid);
    assert_eq!(registry.progress(), [], "it does something else");
    assert_eq!(report("ram9", "load", 5, None).unwrap_err().kind, Kind::NotFound);
    report("ram0", "load", 7, None).unwrap();
    assert_eq!(registry.progress().iter().map(|one| one.amount.done).collect::<Vec<_>>(), [7]);
    session.receive(Operation::Work {}.encode().as_bytes());
    assert!(matches!(&replies(&mut session)[..], [Ok(ControlReply::Work(rows))] if rows[0].kind == "load"));
    session.hang_up();
    assert_eq!(registry.progress(), []);
}
