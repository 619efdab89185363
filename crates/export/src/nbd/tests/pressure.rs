//! Answers that come late, clients that do not read, the end of a conversation, and memory that is short.

use spillway_core::buffer::Buffers;
use spillway_core::session::{Intake, Session};
use spillway_core::sync::{AtomicBool, Ordering};
use spillway_core::{Kind, Op};

use super::super::wire::OptionHeader;
use super::client::query_payload;
use super::*;

fn paused(client: &mut Client) -> bool {
    matches!(client.session.intake(), Intake::Pause)
}

#[test]
fn late_answers_come_in_any_order_and_wake_the_task() {
    each_style(|mut client, device| {
        device.hold();
        let written = client.write(0, 0, &[1; 4096]);
        let read = client.read_at(0, 4096, 4096);
        let flushed = client.ask(cmd::FLUSH, 0, 0, 0);
        assert_eq!(client.session.pending(), 3);
        assert!(client.received.is_empty() && device.log().is_empty());
        let wakes = client.wake_count();
        device.release(3);
        assert_eq!(client.wake_count(), wakes + 1, "one wake for three answers");
        client.drive();
        let mut cookies: Vec<u64> = (0..3).map(|_| client.reply().cookie).collect();
        cookies.sort_unstable();
        let mut expected = [written, read, flushed];
        expected.sort_unstable();
        assert_eq!(cookies, expected);
        assert_eq!(client.session.pending(), 0);
    });
}

#[test]
fn late_extents_come_too() {
    let (device, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Extended);
    device.hold();
    let cookie = client.ask(cmd::BLOCK_STATUS, 0, 512, 512);
    device.release(1);
    client.drive();
    let got = client.reply();
    assert_eq!((got.cookie, got.extents), (cookie, vec![spillway_core::Extent::hole(512)]));
}

#[test]
fn slots_are_used_again() {
    let (device, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Simple);
    device.hold();
    for round in 0..50u64 {
        let cookies: Vec<u64> = (0..70).map(|index| client.read_at(0, index * 512, 512)).collect();
        for release in [1, 40, 29] {
            device.release(release);
            client.drive();
        }
        let mut seen: Vec<u64> = cookies.iter().map(|_| client.reply().cookie).collect();
        seen.sort_unstable();
        assert_eq!(seen, cookies, "round {round}");
    }
}

#[test]
fn a_hang_up_withdraws_all_that_has_not_begun() {
    each_style(|mut client, device| {
        device.hold();
        for index in 0..10 {
            client.write(0, index * 4096, &[1; 4096]);
        }
        client.send(&[0x25, 0x60]);
        client.session.hang_up();
        assert!(client.session.finished() && client.session.pending() == 0);
        device.release(100);
        client.drive();
        assert!(device.log().is_empty(), "nothing of a dead connection executes");
        assert!(client.session.output().is_empty());
    });
}

#[test]
fn a_hang_up_leaves_the_export_without_clients() {
    let (device, exports) = one_export();
    let export = exports.find(b"").unwrap().export().clone();
    let mut client = Client::transmitting(&exports, Style::Simple);
    device.hold();
    client.write(0, 0, &[1; 4096]);
    assert_eq!(export.reserve().map(|_| ()), Err(Kind::Busy));
    client.session.hang_up();
    assert!(export.reserve().is_ok());
}

#[test]
fn a_hang_up_in_mid_write_writes_nothing() {
    let (device, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Simple);
    client.ask(cmd::WRITE, 0, 0, 1 << 20);
    let Intake::Payload(mut window) = client.session.intake() else { panic!("a large payload") };
    assert!(paused(&mut client), "the window is lent");
    assert_eq!(client.session.receive(&[1; 100]), 0);
    window.fill(1);
    client.session.hang_up();
    let len = window.len();
    client.session.returned(window, len);
    assert!(device.log().is_empty() && client.session.finished());
}

#[test]
fn a_large_payload_may_come_in_windows_of_any_size() {
    let (device, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Structured);
    let (cookie, header) = client.request(cmd::WRITE, 0, 0, 25 * 4096);
    let mut bytes = Vec::new();
    header.encode(client.header_style(), &mut bytes);
    bytes.extend([9; 10_000]);
    client.piece = usize::MAX;
    client.send(&bytes[..10_028]);
    let mut at = 10_000;
    for count in [0, 1, 4999, 50_000] {
        let Intake::Payload(mut window) = client.session.intake() else { panic!("much is missing") };
        assert_eq!(window.len(), header.length as usize - at);
        window[..count].fill(9);
        client.session.returned(window, count);
        at += count;
    }
    client.send(&[9; 25 * 4096][..header.length as usize - at]);
    assert_eq!(client.error_of(cookie), 0);
    assert_eq!(client.fetch(0, header.length), vec![9; header.length as usize]);
    assert_eq!(device.log()[0].0, Op::Write);
}

#[test]
fn a_client_that_never_reads_is_left_waiting() {
    each_style(|mut client, _| {
        client.reads = false;
        for index in 0..1000 {
            client.read_at(0, index % 2 * 65_536, 65_536 * 4);
        }
        assert!(paused(&mut client));
        assert!(client.session.output().len() <= (8 << 20) + (1 << 20));
        client.reads = true;
        client.drive();
        for _ in 0..1000 {
            assert_eq!(client.reply().data.len(), 65_536 * 4);
        }
        assert!(!paused(&mut client));
    });
}

#[test]
fn replies_worth_sending_come_before_further_requests() {
    each_style(|mut client, _| {
        let mut bytes = Vec::new();
        for _ in 0..40 {
            let (_, header) = client.request(cmd::READ, 0, 0, 8192);
            header.encode(client.header_style(), &mut bytes);
        }
        let header_len = bytes.len() / 40;
        for taken in (0..40).step_by(8) {
            assert_eq!(client.session.receive(&bytes[taken * header_len..]), 8 * header_len);
        }
    });
}

#[test]
fn short_unread_replies_are_limited_as_well() {
    let (_, exports) = one_export();
    let config = Config { held_bytes_max: 10_000, ..Config::default() };
    let mut client = Client::with_config(&exports, config).greet().into_transmission(Style::Structured);
    client.reads = false;
    for _ in 0..1000 {
        client.ask(cmd::READ, 0, 1, 512);
    }
    assert!(client.session.output().len() < 10_200);
    client.reads = true;
    client.drive();
    (0..1000).for_each(|_| assert_eq!(client.reply().error, errno::EINVAL));
}

#[test]
fn pending_requests_are_limited_in_number_and_bytes() {
    for (config, length, expected) in [
        (Config { requests_max: 10, ..Config::default() }, 512, 10),
        (Config::default(), 512, 1024),
        (Config { held_bytes_max: 100_000, ..Config::default() }, 65_536, 2),
    ] {
        let (device, exports) = one_export();
        let mut client = Client::with_config(&exports, config).greet().into_transmission(Style::Simple);
        device.hold();
        for _ in 0..1100 {
            client.read_at(0, 0, length);
        }
        assert_eq!(client.session.pending(), expected);
        assert!(paused(&mut client));
        device.release(1100);
        client.drive();
        assert_eq!(client.session.pending(), 0);
        (0..1100).for_each(|_| assert_eq!(client.reply().error, 0));
    }
}

#[test]
fn a_goodbye_waits_for_what_was_asked() {
    each_style(|mut client, device| {
        device.hold();
        let cookie = client.write(0, 0, &[1; 4096]);
        client.ask(cmd::DISC, 0, 0, 0);
        client.write(0, 4096, &[1; 4096]);
        assert!(!client.session.finished());
        device.release(9);
        client.drive();
        assert_eq!(client.error_of(cookie), 0);
        assert!(client.session.finished() && client.received.is_empty());
        assert_eq!(device.log().len(), 1, "nothing after the goodbye is heard");
    });
}

#[test]
fn winding_down_finishes_refuses_and_flushes() {
    each_style(|mut client, device| {
        device.hold();
        let before = client.write(0, 0, &[1; 4096]);
        client.session.wind_down();
        let after = client.write(0, 4096, &[1; 4096]);
        assert_eq!(client.error_of(after), errno::ESHUTDOWN);
        let after = client.ask(cmd::READ, 0, 0, 512);
        assert_eq!(client.error_of(after), errno::ESHUTDOWN);
        device.release(1);
        client.drive();
        assert_eq!(client.error_of(before), 0);
        assert!(!client.session.finished(), "the flush is under way");
        device.release(1);
        client.drive();
        assert!(client.session.finished());
        assert_eq!(device.log().iter().map(|entry| entry.0).collect::<Vec<_>>(), [Op::Write, Op::Flush]);
    });
}

#[test]
fn a_closed_export_takes_no_client_and_nothing_that_comes_with_its_choice() {
    let (device, exports) = one_export();
    let mut client = Client::greeted(&exports);
    exports.find(b"disk").unwrap().export().close();
    assert_eq!(client.option(opt::GO, &query_payload("disk", &[]))[0].0, rep::ERR_UNKNOWN);
    let mut bytes = OptionHeader { option: opt::EXPORT_NAME, len: 4 }.encode().to_vec();
    bytes.extend(b"disk");
    let (_, header) = client.request(cmd::WRITE, 0, 0, 512);
    header.encode(client.header_style(), &mut bytes);
    bytes.extend([1; 512]);
    client.send(&bytes);
    assert!(client.session.finished() && client.received.is_empty() && device.log().is_empty());
}

/// A block device of the kernel would not come back by itself.
#[test]
fn a_client_that_has_the_device_alone_stays_however_long_it_is_silent() {
    let (_, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Simple);
    assert!(!client.session.stays());
    client.drive();
    let wakes = client.wake_count();
    exports.find(b"").unwrap().export().hold().unwrap();
    assert!(client.session.stays() && client.wake_count() > wakes, "it looks again");
}

/// A block device of the kernel would make an error of a refusal, and sends again what was not answered.
#[test]
fn a_client_that_comes_back_is_refused_nothing() {
    let (device, exports, awaited) =
        (TestDevice::new(SIZE), Arc::new(Exports::new()), Arc::new(AtomicBool::new(false)));
    let (export, flag) = (Export::new("disk", Aligned::new(device.clone())).unwrap(), awaited.clone());
    exports.add(export.kept_while(move || flag.load(Ordering::Relaxed))).unwrap();
    let mut client = Client::transmitting(&exports, Style::Simple);
    awaited.store(true, Ordering::Relaxed);
    device.hold();
    let pending = client.read_at(0, 0, 512);
    client.ask(cmd::WRITE, 0, 0, 512);
    client.session.wind_down();
    client.send(&[1; 512]);
    client.write(0, 4096, &[1; 4096]);
    device.release(9);
    client.drive();
    assert_eq!(client.error_of(pending), 0);
    assert!(client.session.finished() && client.received.is_empty(), "nothing else has an answer");
    assert_eq!(device.log().iter().map(|entry| entry.0).collect::<Vec<_>>(), [Op::Read, Op::Flush]);
}

#[test]
fn winding_down_does_not_wait_for_half_a_request() {
    for half in [0, 1, 28, 100, 5000] {
        let (device, exports) = one_export();
        let mut client = Client::transmitting(&exports, Style::Simple);
        let (_, header) = client.request(cmd::WRITE, 0, 0, 1 << 19);
        let mut bytes = Vec::new();
        header.encode(client.header_style(), &mut bytes);
        bytes.extend([1; 5000]);
        client.send(&bytes[..half]);
        client.session.wind_down();
        assert!(client.session.finished(), "after {half} bytes");
        assert_eq!(device.log().iter().map(|entry| entry.0).collect::<Vec<_>>(), [Op::Flush]);
    }
}

#[test]
fn a_payload_that_arrives_after_the_wind_down_is_refused() {
    let (device, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Simple);
    device.hold();
    let pending = client.read_at(0, 0, 512);
    let cookie = client.ask(cmd::WRITE, 0, 0, 512);
    client.session.wind_down();
    client.send(&[1; 512]);
    assert_eq!(client.error_of(cookie), errno::ESHUTDOWN);
    device.release(9);
    client.drive();
    assert_eq!(client.error_of(pending), 0);
    assert!(client.session.finished());
}

#[test]
fn winding_down_a_read_only_export_flushes_nothing() {
    let (device, exports) = one_export();
    device.change(|geometry| geometry.read_only = true);
    let mut client = Client::transmitting(&exports, Style::Simple);
    client.session.wind_down();
    assert!(client.session.finished() && device.log().is_empty());
}

#[test]
fn short_memory_slows_clients_but_stops_none() {
    let (device, exports) = one_export();
    let mut greedy = Client::transmitting(&exports, Style::Simple);
    let mut modest = Client::transmitting(&exports, Style::Extended);
    Buffers::new(256 << 10).enter();
    device.hold();
    // The greedy client takes all there is; the rest of its requests wait, with the stream stopped behind the first.
    let reads: Vec<u64> = (0..8).map(|_| greedy.read_at(0, 0, 64 << 10)).collect();
    assert!(paused(&mut greedy) && greedy.session.pending() < 8);
    // One that holds nothing is served all the same; its second request waits.
    let first = modest.write(0, 0, &[1; 4096]);
    let second = modest.write(0, 4096, &[2; 4096]);
    assert!(paused(&mut modest) && modest.session.pending() == 1);
    device.release(100);
    for _ in 0..100 {
        greedy.drive();
        modest.drive();
    }
    assert_eq!((modest.error_of(first), modest.error_of(second)), (0, 0));
    let mut seen: Vec<u64> = reads.iter().map(|_| greedy.reply().cookie).collect();
    seen.sort_unstable();
    assert_eq!(seen, reads);
    on_memory_held_by_others(&mut modest);
    winding_down_without_memory(&mut modest, &device);
}

fn on_memory_held_by_others(client: &mut Client) {
    let mut held = Vec::new();
    while let Some(buf) = spillway_core::IoBuf::try_new(4096) {
        held.push(buf);
    }
    // Nothing will ever be given back: small requests pass one at a time, as the client reads.
    client.reads = false;
    let cookies: Vec<u64> = (0..4).map(|_| client.read_at(0, 0, 4096)).collect();
    assert!(client.session.output().len() < 8192);
    client.reads = true;
    client.drive();
    cookies.into_iter().for_each(|cookie| assert_eq!(client.error_of(cookie), 0));
    let wakes = client.wake_count();
    let large = client.read_at(0, 0, 128 << 10);
    assert!(paused(client) && client.wake_count() <= wakes + 1, "a large request waits without turning");
    drop(held);
    client.drive();
    assert_eq!(client.error_of(large), 0);
}

fn winding_down_without_memory(client: &mut Client, device: &TestDevice) {
    let mut held = Vec::new();
    while let Some(buf) = spillway_core::IoBuf::try_new(4096) {
        held.push(buf);
    }
    let cookie = client.ask(cmd::WRITE, cmd_flag::PAYLOAD_LEN, 0, 128 << 10);
    assert!(paused(client) && client.session.owed(), "who waits for a buffer is not idle");
    device.release(9);
    client.session.wind_down();
    client.drive();
    assert_eq!(client.error_of(cookie), errno::ESHUTDOWN);
    assert!(client.session.finished());
}
