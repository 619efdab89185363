//! How long requests wait for the server of an origin, set while they do.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::{Client, command, errno};
use spillway_tests::{Cluster, Launch, Server, Store, Upstream, pattern, text, until};

use crate::nbd_outage::{disk, file, flush};
use crate::rbd::{self, BUSY, FAILED, MIB, SIZE, address, paged, plain, refused};
use crate::rbd_locks::{SOON, starts};

/// Exit code as documented.
const MISSING: i32 = 3;

/// Seconds that requests wait for a cluster that is silent.
const LIMIT: &str = "5";

/// Seconds that nobody waits.
const LONG: &str = "3600";

/// What the log says of 64 KiB in a page cache that nobody takes.
const LOST: &str = "65536 bytes of the page cache (";

pub(super) fn set(server: &Server, timeout: &str) {
    server.spillway(&["set", "d", "timeout", timeout]).well();
}

/// Its requests may be given up, which a device has to know from its start.
pub(super) fn limited(launch: Launch) -> Launch {
    launch.with("--origin-timeout", LONG)
}

/// From now on no OSD answers, and requests of a [`limited`] device fail soon. Not before: on a busy host what an OSD answers may take as long.
pub(super) fn falls_silent(cluster: &Cluster, server: &Server) {
    cluster.stop_osds();
    set(server, LIMIT);
}

/// Ends what [`falls_silent`] began.
pub(super) fn answers_again(cluster: &Cluster, server: &Server) {
    set(server, LONG);
    cluster.go_on_osds();
}

fn waits(server: &Server) {
    until("requests wait", || (server.value("d", "connection") == "reconnecting").then_some(()));
}

/// A read that no cache has, and that waits.
fn waiting(server: &Server) -> Client {
    let mut client = Client::open(server.socket(), "d");
    client.send(command::READ, 8 << 20, 4096).expect("it is sent");
    waits(server);
    assert!(!client.is_answered(), "{}", server.log());
    client
}

/// The other device of the server lives on.
#[test]
fn a_device_without_its_server_is_let_go_of_alone() {
    let (folder, origin) = file();
    let apart = folder.write("apart.raw", vec![0; MIB]);
    let mut upstream = Upstream::qemu(&origin, &[]);
    let text = format!(
        "[[device]]\nname = \"d\"\norigin = {{ kind = \"file\", path = {:?} }}\nlayers = [{{ kind = \"page_cache\" }}]\n\
         [[device]]\nname = \"apart\"\norigin = {{ kind = \"file\", path = {:?} }}\n",
        upstream.uri(),
        text(&apart),
    );
    let mut server = Launch::serve(folder, text).start();
    upstream.kill();
    Client::open(server.socket(), "d").write(0, &[1; 65536]).expect("a write to the cache");
    let mut waiting = waiting(&server);
    set(&server, "1");
    assert_eq!(server.value("d", "timeout"), 1);
    assert_eq!(waiting.reply().expect("an answer").0, errno::EIO, "{}", server.log());
    drop(waiting);
    server.spillway(&["stop", "d"]).refused(FAILED, LOST);
    let mut client = Client::open(server.socket(), "apart");
    client.write(0, &[2; 4096]).expect("a write");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    assert!(server.lives() && fs::read(&apart).expect("it exists")[..4096] == [2; 4096]);
    drop(client);
    server.spillway(&["stop", "apart"]);
    assert_eq!(server.ends().code(), Some(FAILED), "{}", server.log());
}

fn stop(server: &Server) -> Child {
    let mut command = server.command(&["stop", "d"]);
    let stopping = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program was built");
    until("the device ends", || (server.spillway(&["get", "d", "size"]).code == Some(MISSING)).then_some(()));
    stopping
}

/// The device is no longer there for anything else.
#[test]
fn a_stop_that_waits_for_its_server_ends_once_there_is_a_timeout() {
    for by_signal in [false, true] {
        let (_folder, file) = file();
        let mut upstream = Upstream::qemu(&file, &[]);
        let launch = Launch::disk(Arc::default(), Path::new(&upstream.uri())).with("--name", "d");
        let mut server = launch.flag("-v").start();
        upstream.kill();
        waits(&server);
        server.client().write(0, &[1; 65536]).expect("a write to the cache");
        let stopping = if by_signal {
            server.signal(Signal::TERM);
            server.says("at once from now on");
            None
        } else {
            Some(stop(&server))
        };
        assert!(server.lives(), "it did not wait: {}", server.log());
        set(&server, "1");
        assert_eq!(server.ends().code(), Some(FAILED), "{}", server.log());
        assert!(server.log().contains(LOST), "{}", server.log());
        let code = stopping.map(|mut stopping| stopping.wait().expect("it is our child").code());
        assert!(code.is_none_or(|code| code == Some(FAILED)), "{code:?}");
    }
}

#[test]
fn requests_wait_again_once_there_is_no_timeout() {
    for none in ["none", "0"] {
        let (_folder, file) = file();
        let mut upstream = Upstream::qemu(&file, &[]);
        let server = disk(&upstream.uri()).with("--origin-timeout", "1").start();
        upstream.kill();
        assert_eq!(server.client().write(0, &[1; 4096]), Err(errno::EIO));
        assert_eq!(server.value("d", "connection"), "failing");
        set(&server, none);
        assert!(server.value("d", "timeout").is_null());
        let mut waiting = waiting(&server);
        upstream.restart();
        assert_eq!(waiting.reply().expect("an answer").0, 0, "{}", server.log());
    }
}

/// The server takes each connection, and answers all but reads.
#[test]
fn a_request_that_a_server_has_fails_once_there_is_a_timeout() {
    let upstream = Upstream::nbdkit(&["--filter=delay", "memory", "16M", "rdelay=100000"]);
    let server = disk(&upstream.uri()).start();
    let mut client = server.client();
    client.send(command::READ, 0, 4096).expect("it is sent");
    client.write(8192, &[1; 4096]).expect("writes are answered, and behind the read");
    set(&server, "1");
    assert_eq!(client.reply().expect("an answer").0, errno::EIO, "{}", server.log());
}

/// The timeout at the start is one that nobody waits for.
#[test]
fn an_image_is_let_go_of_while_no_osd_answers() {
    let cluster = Cluster::with(1, Store::Memory, &SOON);
    // What no object has is read without the cluster.
    let image = cluster.import("image", &pattern::random(1, 0, SIZE * MIB));
    let mut server = paged(&cluster, Arc::default(), &image).with("--origin-timeout", "3600").start();
    set(&server, "none");
    cluster.stop_osds();
    server.client().write(0, &[1; 65536]).expect("a write to the cache");
    let mut waiting = waiting(&server);
    set(&server, "2");
    assert_eq!(waiting.reply().expect("an answer").0, errno::EIO, "{}", server.log());
    drop(waiting);
    server.spillway(&["stop", "d"]).refused(FAILED, LOST);
    assert_eq!(server.ends().code(), Some(FAILED), "{}", server.log());
}

/// Requests that have the memory of their clients cannot be given up.
#[test]
fn an_image_has_its_first_timeout_while_the_cluster_answers() {
    let cluster = Cluster::with(1, Store::Memory, &SOON);
    let content = pattern::random(1, 0, SIZE * MIB);
    for answers in [true, false] {
        let image = cluster.import(&format!("answers {answers}"), &content);
        let server = plain(&cluster, Arc::default(), &image).start();
        if answers {
            set(&server, "2");
        }
        cluster.stop_osds();
        let mut client = server.client();
        client.send(command::READ, 0, 4096).expect("it is sent");
        if answers {
            assert_eq!(client.reply().expect("an answer").0, errno::EIO, "{}", server.log());
            cluster.go_on_osds();
            continue;
        }
        waits(&server);
        server.spillway(&["set", "d", "timeout", "2"]).refused(BUSY, "cannot be given up");
        assert!(server.value("d", "timeout").is_null() && !client.is_answered(), "{}", server.log());
        cluster.go_on_osds();
        assert_eq!(client.reply().expect("an answer").0, 0, "{}", server.log());
    }
}

/// That is for requests, and a lock that is left keeps other hosts out.
#[test]
fn an_image_may_take_longer_than_its_timeout_to_be_closed() {
    let cluster = Cluster::start(1, Store::Memory);
    // What no object has is read without the cluster.
    let content = pattern::random(1, 0, SIZE * MIB);
    let devices = ["d", "apart"].map(|name| {
        let (path, conf) = (address(&cluster.import(name, &content)), cluster.conf());
        let origin = format!("{{ kind = \"file\", path = {path:?}, ceph_conf = {conf:?}, timeout = 3600 }}");
        format!("[[device]]\nname = {name:?}\norigin = {origin}\n")
    });
    let server = Launch::serve(Arc::default(), devices.concat()).start();
    set(&server, "1");
    server.spillway(&["set", "apart", "timeout", "3"]).well();
    cluster.stop_osds();
    let mut stopping = stop(&server);
    // Once this has waited for three seconds, the image has been closing for more than one.
    assert_eq!(Client::open(server.socket(), "apart").read(0, 4096), Err(errno::EIO), "{}", server.log());
    cluster.go_on_osds();
    assert_eq!(stopping.wait().expect("it is our child").code(), Some(0), "{}", server.log());
    assert_eq!(cluster.owner("rbd/d"), None, "its lock is left behind");
}

/// Requests fail by then. A stop waits for the server once more, since what a page cache has is lost with it.
#[test]
fn a_stop_waits_once_more_for_a_server_that_has_stayed_away_for_too_long() {
    let (_folder, file) = file();
    let mut upstream = Upstream::qemu(&file, &[]);
    let launch = Launch::disk(Arc::default(), Path::new(&upstream.uri())).with("--name", "d");
    let mut server = launch.with("--origin-timeout", "4").flag("-v").start();
    let bytes = pattern::random(1, 0, MIB);
    server.client().write(0, &bytes).expect("a write to the cache");
    upstream.kill();
    assert_eq!(flush(&server), Err(errno::EIO));
    assert_eq!(server.spillway(&["get", "d", "connection"]).well().out.trim(), "failing");
    server.signal(Signal::TERM);
    server.says("at once from now on");
    upstream.restart();
    assert!(server.ends().success(), "{}", server.log());
    assert!(fs::read(&file).expect("it exists")[..MIB] == bytes, "{}", server.log());
}

#[test]
fn a_start_that_nobody_answers_is_given_up_after_the_limit() {
    let cluster = Cluster::with(1, Store::Memory, &SOON);
    let image = cluster.image("image", SIZE);
    let launch = plain(&cluster, Arc::default(), &image).with("--origin-timeout", "2");
    for daemon in ["mon.a", "osd.0"] {
        cluster.stop(daemon);
        let said = refused(launch.clone(), "the cluster");
        assert!(said.err.contains(&address(&image)), "{said}");
        cluster.go_on(daemon);
    }
    rbd::stop(&mut starts(&plain(&cluster, Arc::default(), &image)));
}
