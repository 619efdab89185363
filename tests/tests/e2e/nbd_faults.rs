//! Servers of an origin that answer with errors or break the protocol, and connections that are cut.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;

use spillway_tests::hostile::Chance;
use spillway_tests::killed::Served;
use spillway_tests::raw::{Client, command, errno, flag};
use spillway_tests::{Fault, Proxy, Server, Upstream, pattern, text, until};

use crate::nbd_outage::{APART, Forgetful, MIB, SIZE, disk, file, is_connected_again, is_kept, lines};

/// One request of a connection at a time: nbdkit before 1.34 aborts where a connection is lost while two of its threads answer.
const ONE_AT_A_TIME: [&str; 2] = ["-t", "1"];

fn nbdkit(words: &[&str]) -> Upstream {
    Upstream::nbdkit(&[&ONE_AT_A_TIME, words].concat())
}

/// Reads a part that nobody writes to until `over` is dropped, and compares it.
fn reads(server: &Server, wanted: &[u8], over: &mpsc::Receiver<()>) {
    let mut client = server.client();
    let mut at = 0;
    while over.try_recv() != Err(TryRecvError::Disconnected) {
        let found = client.read(APART + at as u64, 64 << 10).expect("a read");
        assert!(found == wanted[at..at + (64 << 10)], "wrong bytes at {at}");
        at = (at + (64 << 10)) % wanted.len();
    }
}

/// Has each fault happen to writes and reads that are checked.
fn survives(socket: &Path, export: &str, file: &Path, faults: &[Fault]) {
    let proxy = Proxy::new(socket);
    let server = disk(&proxy.uri(export)).start();
    let apart = pattern::random(9, 0, MIB);
    server.client().write(APART, &apart).expect("a write");
    let mut served = Served::default();
    thread::scope(|scope| {
        // Dropped where a wait is in vain too.
        let (_working, over) = mpsc::channel();
        scope.spawn(|| reads(&server, &apart, &{ over }));
        served.write_during(&server, 1, || {
            for (number, fault) in (1..).zip(faults) {
                proxy.sees_writes(10);
                proxy.break_next(*fault);
                is_connected_again(&server, number);
            }
            proxy.sees_writes(10);
        });
    });
    is_kept(&mut served, &server, file);
    assert_eq!(lines(&server, "requests wait while it is connected again"), faults.len(), "{}", server.log());
    assert!(fs::read(file).expect("it exists")[APART as usize..][..MIB] == apart);
}

/// In the header, at its end, in the payload, and behind all of it; answers twice, to nothing and of nothing.
const FAULTS: [Fault; 12] = [
    Fault::CutRequest(0),
    Fault::CutRequest(13),
    Fault::CutRequest(28),
    Fault::CutRequest(28 + 1000),
    Fault::CutRequest(28 + 4096),
    Fault::CutReply(0),
    Fault::CutReply(7),
    Fault::CutReply(16),
    Fault::CutReply(20 + 8 + 1000),
    Fault::Twice,
    Fault::WrongCookie,
    Fault::WrongMagic,
];

/// The last server gets over errors by itself, a second later. nbdkit 1.32 has no filter that cuts connections.
#[test]
fn connections_that_are_cut_and_replies_that_are_wrong_cost_nothing() {
    let (filters, retry) = (["--filter=retry", "--filter=error"], ["retry-delay=1", "error-pwrite-rate=1%"]);
    let starts: [&dyn Fn(&Path) -> Upstream; 3] =
        [&|file| Upstream::qemu(file, &["-e", "8"]), &|file| nbdkit(&["file", text(file)]), &|file| {
            nbdkit(&[&filters[..], &["file", text(file)], &retry].concat())
        }];
    for upstream in starts {
        let (_folder, file) = file();
        let upstream = upstream(&file);
        survives(&upstream.socket(), "", &file, &FAULTS);
    }
    let (_folder, file) = file();
    let upstream = Forgetful::new(&file);
    survives(upstream.server.socket(), "theirs", &file, &FAULTS);
}

#[test]
fn connections_that_are_cut_anywhere_cost_nothing() {
    let mut chance = Chance::new(7);
    let faults: Vec<Fault> = (0..30)
        .map(|_| match chance.one_in(2) {
            true => Fault::CutRequest(chance.below(28 + 4096) as usize),
            false => Fault::CutReply(chance.below(28 + 4096) as usize),
        })
        .collect();
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &["-e", "8"]);
    survives(&upstream.socket(), "", &file, &faults);
}

/// All connections at once, many times, also in the middle of connecting again.
#[test]
fn connections_that_are_cut_while_they_are_made_cost_nothing() {
    let (_folder, file) = file();
    let mut upstream = Forgetful::new(&file);
    let proxy = Proxy::new(upstream.server.socket());
    let server = disk(&proxy.uri("theirs")).start();
    let mut served = Served::default();
    served.write_during(&server, 1, || {
        for round in 0..10 {
            let before = proxy.accepted();
            proxy.sees_writes(10);
            proxy.cut();
            // From before the first to behind the last of four.
            until("it connects", || (proxy.accepted() >= before + round % 5).then_some(()));
            proxy.cut();
            if round % 4 == 3 {
                upstream.kill();
                upstream.restart();
            }
        }
        proxy.sees_writes(60);
    });
    is_kept(&mut served, &server, &file);
}

/// Told to the first connection. What is not there is an error of each request for it, and of nothing else.
#[test]
fn an_export_that_is_smaller_than_it_says_fails_what_is_behind_its_end() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &["-e", "8"]);
    let proxy = Proxy::new(&upstream.socket());
    proxy.announce(Some(2 * SIZE as u64));
    let server = disk(&proxy.uri("")).start();
    let (mut client, bytes) = (server.client(), pattern::random(1, 0, MIB));
    for (at, len) in [(SIZE - 4096, 8192), (SIZE, 4096), (2 * SIZE - MIB, MIB)] {
        assert!(client.read(at as u64, len).is_err(), "{len} bytes at {at}: {}", server.log());
    }
    client.write(APART, &bytes).expect("a write before the end");
    assert!(client.read(APART, MIB) == Ok(bytes), "{}", server.log());
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()));
    assert_eq!(lines(&server, "requests wait"), 0, "an error is no loss of the connection: {}", server.log());
}

#[test]
fn a_smaller_export_is_not_taken_for_the_same() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &["-e", "8"]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    let mut served = Served::default();
    served.write_during(&server, 1, || {
        proxy.sees_writes(10);
        proxy.announce(Some(SIZE as u64 / 2));
        proxy.cut();
        server.says(&format!("the export has {} bytes now, it had {SIZE}", SIZE / 2));
        proxy.announce(None);
        proxy.sees_writes(10);
    });
    is_kept(&mut served, &server, &file);
}

/// Its connections are closed for that, and nothing is lost at first.
#[test]
fn a_server_that_cannot_be_used_again_once_its_size_was_asked_for_is_shown_as_lost() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &["-e", "8"]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    let shows =
        |state: &str| until("it is shown", || (server.value("d", "connection") == state).then_some(()));
    shows("up");
    proxy.announce(Some(SIZE as u64 / 2));
    thread::scope(|scope| {
        let resized = scope.spawn(|| server.spillway(&["resize", "d"]).well());
        shows("reconnecting");
        proxy.announce(None);
        resized.join().expect("no panic");
    });
    shows("up");
}

/// Its writes were durable at once, and nothing has a copy of them: with a cache that is flushed they could be lost.
#[test]
fn an_export_that_has_a_volatile_cache_now_is_not_taken_for_the_same() {
    let (folder, file) = file();
    let cached = folder.join("cached");
    let (file_word, cached_word) = (text(&file), text(&cached));
    let upstream = Upstream::nbdkit(&[
        "eval",
        &format!("get_size=stat -Lc %s {file_word}"),
        &format!("pread=dd if={file_word} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none"),
        &format!("pwrite=dd of={file_word} conv=notrunc seek=$4 oflag=seek_bytes status=none"),
        "can_write=exit 0",
        &format!("can_flush=if [ -e {cached_word} ]; then exit 0; else exit 3; fi"),
        "flush=exit 0",
    ]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    let bytes = pattern::random(1, 0, 65536);
    let mut client = server.client();
    client.write(0, &bytes).expect("a write");
    folder.write("cached", "");
    proxy.cut();
    server.says("the export has a volatile cache now");
    fs::remove_file(&cached).expect("it is there");
    is_connected_again(&server, 1);
    client.write(65536, &bytes).expect("a write");
    assert!(client.read(0, 65536) == Ok(bytes), "{}", server.log());
}

/// Fewer connections than before are enough to go on with.
#[test]
fn a_server_that_takes_fewer_connections_than_before_is_used_with_those() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &["-e", "8"]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    assert_eq!(proxy.connections(), 4);
    let mut served = Served::default();
    served.write_during(&server, 1, || {
        for most in [1, 4, 2, 3] {
            proxy.sees_writes(10);
            proxy.limit(most);
            proxy.cut();
            proxy.sees_writes(60);
            assert!((1..=most).contains(&proxy.connections()), "{} of {most}", proxy.connections());
        }
    });
    is_kept(&mut served, &server, &file);
}

/// A write whose answer is late: what overlaps it is sent only after that, anything else at once.
#[test]
fn writes_that_overlap_are_sent_one_after_the_other() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &[]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    proxy.hold();
    let mut begin = |number: usize, at: u64, byte: u8| {
        let client = &mut clients[number];
        client.send(command::WRITE, at, 8192).expect("a request");
        client.stream.write_all(&[byte; 8192]).expect("a payload");
    };
    begin(0, 0, 1);
    proxy.holds(1);
    begin(1, 4096, 2);
    begin(1, 65536, 3);
    until("the write apart is sent", || (proxy.writes() >= 2).then_some(()));
    assert_eq!(proxy.writes(), 2, "the write that overlaps another was sent");
    proxy.release();
    for (number, answers) in [(0, 1), (1, 2)] {
        (0..answers).for_each(|_| assert_eq!(clients[number].reply().expect("an answer").0, 0));
    }
    assert_eq!(proxy.writes(), 3);
    let found = clients[2].read(0, 12288).expect("a read");
    assert!(found[..4096] == [1; 4096] && found[4096..] == [2; 8192]);
}

/// Each takes a piece out of what was zeroed, and has no part in the memory of the journal. 1 MiB of it is for 256 entries.
#[test]
fn zeroes_that_durable_writes_cut_to_pieces_are_flushed() {
    let (_folder, file) = file();
    let upstream = Upstream::qemu(&file, &[]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).with("--origin-journal", "1M").start();
    let mut client = server.client();
    client.ask(command::WRITE_ZEROES, 0, MIB as u32).expect("a zeroing");
    let before = proxy.flushes();
    (0..300).for_each(|at| client.write_with(flag::FUA, at * 2048, &[1; 512]).expect("a durable write"));
    assert!(proxy.flushes() > before, "the journal has an entry for each of them");
}

/// Replies that are lost: the server has carried out the writes, and carries them out once more.
#[test]
fn writes_whose_replies_are_lost_are_sent_again_and_answered_once() {
    let (_folder, file) = file();
    let upstream = nbdkit(&["--filter=delay", "file", text(&file), "wdelay=20ms"]);
    let proxy = Proxy::new(&upstream.socket());
    let server = disk(&proxy.uri("")).start();
    let mut served = Served::default();
    served.write_during(&server, 1, || {
        for number in 1..=5 {
            proxy.sees_writes(8);
            proxy.hold();
            proxy.holds(1);
            proxy.cut();
            proxy.release();
            is_connected_again(&server, number);
        }
        proxy.sees_writes(8);
    });
    is_kept(&mut served, &server, &file);
    assert_eq!(lines(&server, ": \n"), 0, "a line of the log says nothing: {}", server.log());
}

#[test]
fn a_write_that_the_server_refuses_is_an_error_of_that_write_alone() {
    let (folder, file) = file();
    let trigger = folder.join("fails");
    let upstream = Upstream::nbdkit(&[
        "--filter=error",
        "file",
        text(&file),
        "error-pwrite=EIO",
        "error-pwrite-rate=100%",
        &format!("error-pwrite-file={}", trigger.display()),
    ]);
    let server = disk(&upstream.uri()).start();
    let (old, new) = (pattern::random(1, 0, MIB), pattern::random(2, 0, MIB));
    let mut client = server.client();
    client.write(0, &old).expect("a write");
    folder.write("fails", "");
    assert_eq!(client.write(0, &new), Err(errno::EIO));
    assert!(client.read(0, MIB) == Ok(old.clone()), "a write that failed changed something");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()), "what was acknowledged is durable");
    fs::remove_file(&trigger).expect("it is there");
    client.write(MIB as u64, &new).expect("a write");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()));
    let found = fs::read(&file).expect("it exists");
    assert!(found[..MIB] == old && found[MIB..2 * MIB] == new);
    assert_eq!(lines(&server, "requests wait"), 0, "an error is no loss of the connection: {}", server.log());
}

/// One write of three fails, for a while.
#[test]
fn random_errors_of_a_server_reach_only_the_writes_that_they_are_of() {
    let (_folder, file) = file();
    let upstream = Upstream::nbdkit(&[
        "--filter=error",
        "--filter=delay",
        "file",
        text(&file),
        "error-pwrite=ENOSPC",
        "error-pwrite-rate=33%",
        "delay-write=1ms",
    ]);
    let server = disk(&upstream.uri()).start();
    let mut client = server.client();
    let mut expected = vec![0; 2 * MIB];
    let (mut failed, mut written) = (0, 0);
    for number in 0..200u64 {
        let at = (number * 37 % 512) as usize * 4096;
        let bytes = pattern::random(number, 0, 4096);
        match client.write(at as u64, &bytes) {
            Ok(()) => {
                expected[at..at + 4096].copy_from_slice(&bytes);
                written += 1;
            }
            Err(error) => {
                assert_eq!(error, errno::ENOSPC);
                failed += 1;
            }
        }
    }
    assert!(failed > 10 && written > 10, "{failed} failed, {written} written");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Ok(()));
    assert!(fs::read(&file).expect("it exists")[..2 * MIB] == expected);
}

/// A plugin of a few lines of shell, whose flush fails while there is a file. What it was to cover may be lost, as it is after a failed
/// fsync, whatever later flushes say.
#[test]
fn after_a_flush_that_the_server_refuses_all_others_fail() {
    let (folder, file) = file();
    let fails = folder.join("fails");
    let (file_word, fails_word) = (text(&file), text(&fails));
    let upstream = Upstream::nbdkit(&[
        "eval",
        &format!("get_size=stat -Lc %s {file_word}"),
        &format!("pread=dd if={file_word} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none"),
        &format!("pwrite=dd of={file_word} conv=notrunc seek=$4 oflag=seek_bytes status=none"),
        "can_write=exit 0",
        "can_flush=exit 0",
        &format!("flush=if [ -e {fails_word} ]; then echo EIO no disk >&2; exit 1; fi"),
    ]);
    let server = disk(&upstream.uri()).start();
    let bytes = pattern::random(1, 0, 65536);
    let mut client = server.client();
    client.write(0, &bytes).expect("a write");
    folder.write("fails", "");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Err(errno::EIO));
    fs::remove_file(&fails).expect("it is there");
    client.write(65536, &bytes).expect("a write");
    assert_eq!(client.ask(command::FLUSH, 0, 0), Err(errno::EIO));
    server.says("flushes fail");
    assert_eq!(lines(&server, "flushes fail"), 1, "{}", server.log());
    assert!(client.read(65536, 65536) == Ok(bytes), "reads and writes go on");
}
