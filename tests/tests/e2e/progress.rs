//! Progress of long work: in metrics, in lists, and as bars on a terminal.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value as Json;
use spillway_tests::{Launch, Scratch, Server, Terminal, pattern, text, tool, until};

use crate::http::{at_port, curl, parsed};

const MIB: u64 = 1 << 20;

/// The long work of a device, as `spillway ls --json` lists it.
fn works(server: &Server, device: &str) -> Vec<Json> {
    let said = server.spillway(&["ls", "--json"]).well();
    let rows: Vec<Json> = serde_json::from_str(&said.out).unwrap_or_else(|why| panic!("{why}: {}", said.out));
    let row = rows.into_iter().find(|row| row["name"] == device).expect("it is listed");
    row["work"].as_array().cloned().unwrap_or_default()
}

/// Looks until no long work of the device is listed any more; all that was listed, which is of this kind.
fn until_none(server: &Server, device: &str, kind: &str) -> Vec<Json> {
    let mut seen = Vec::new();
    until("the work ends", || {
        let listed = works(server, device);
        assert!(listed.len() < 2 && listed.iter().all(|row| row["kind"] == kind), "{listed:?}");
        let ended = listed.is_empty();
        seen.extend(listed);
        ended.then_some(())
    });
    seen
}

/// Panics unless what was listed counts up to `total`, with an estimate that falls.
#[track_caller]
fn counts_up(seen: &[Json], total: u64) {
    let done: Vec<u64> = seen.iter().map(|row| row["done"].as_u64().expect("a number")).collect();
    assert!(done.is_sorted() && done.last() > done.first(), "{seen:?}");
    assert!(seen.iter().all(|row| row["total"] == total), "of {total}: {seen:?}");
    let left: Vec<f64> = seen.iter().filter_map(|row| row["seconds_left"].as_f64()).collect();
    assert!(left.len() > 1 && left.last() < left.first(), "{seen:?}");
}

fn is_bar(shown: &str) -> bool {
    shown.contains("[#") && shown.contains(" % of ") && shown.contains("/s, ") && shown.contains(" s left")
}

fn on_terminal(server: &Server, arguments: &[&str]) -> Terminal {
    Terminal::start(&server.command(arguments), 80, 24)
}

/// A file that takes so many bytes a second, below these layers, as device `d`.
fn over_slow_file(folder: &Arc<Scratch>, bytes_per_second: u64, layers: &str) -> Launch {
    let origin = folder.join("origin.raw");
    fs::File::create(&origin).and_then(|file| file.set_len(64 * MIB)).expect("a file");
    let config = format!(
        "[[device]]\nname = \"d\"\norigin = {{ kind = \"file\", path = {:?} }}\n\
         layers = [{{ kind = \"rate\", bytes_per_second = {bytes_per_second} }}, {layers}]\n",
        text(&origin)
    );
    Launch::serve(folder.clone(), config)
}

/// A write cache over such a file.
fn write_cache(folder: &Arc<Scratch>, bytes_per_second: u64) -> Launch {
    let cache = folder.write("cache.raw", vec![0; 64 << 20]);
    over_slow_file(
        folder,
        bytes_per_second,
        &format!("{{ kind = \"write_cache\", path = {:?} }}", text(&cache)),
    )
}

fn page_cache(folder: &Arc<Scratch>, bytes_per_second: u64) -> Launch {
    let keeps = "{ kind = \"page_cache\", mode = \"writeback\", page_cache_bytes_max = \"64M\", dirty_ratio = 90, \
                 dirty_background_ratio = 90 }";
    over_slow_file(folder, bytes_per_second, keeps)
}

fn fill(server: &Server, mib: u64) {
    let mut client = spillway_tests::raw::Client::open(server.socket(), "d");
    for at in (0..mib).map(|piece| piece * MIB) {
        client.write(at, &pattern::random(at, at, MIB as usize)).expect("it is written");
    }
}

fn has(origin: &Path, mib: u64) -> bool {
    let content = fs::read(origin).expect("a file");
    (0..mib).all(|piece| {
        let at = piece * MIB;
        content[at as usize..][..MIB as usize] == pattern::random(at, at, MIB as usize)
    })
}

/// One snapshot has three readers.
#[test]
fn a_drain_is_in_metrics_lists_and_a_bar_until_it_ends() {
    let folder = Arc::new(Scratch::new());
    let (server, place) = at_port(write_cache(&folder, 4 * MIB));
    fill(&server, 24);
    let mut terminal = on_terminal(&server, &["drain", "d"]);
    until("the terminal shows a bar", || is_bar(&terminal.shows("draining d")).then_some(()));
    let metrics = || parsed(&curl(&[&format!("{place}/metrics")]).well().out);
    let samples = metrics();
    let sample = |name: &str| samples[&format!("spillway_work_{name} device=d kind=drain")];
    let listed = works(&server, "d");
    let listed = listed.first().expect("it is under way");
    assert_eq!((sample("total_bytes"), &listed["total"]), ((24 * MIB) as f64, &(24 * MIB).into()));
    assert!(sample("done_bytes") > 0.0 && sample("done_bytes") <= listed["done"].as_f64().expect("a number"));
    assert!(sample("left_seconds") > 0.0);
    counts_up(&until_none(&server, "d", "drain"), 24 * MIB);
    assert!(!metrics().keys().any(|name| name.contains("_work_")), "it has ended");
    assert!(terminal.ends().success());
    let shown = terminal.text();
    assert!(shown.contains("origin is complete") && !shown.contains("draining"), "{shown}");
    assert!(has(&folder.join("origin.raw"), 24));
}

#[test]
fn a_stop_shows_what_is_written_back_and_ends_with_its_server() {
    let folder = Arc::new(Scratch::new());
    let mut server = page_cache(&folder, 4 * MIB).start();
    fill(&server, 24);
    let mut terminal = on_terminal(&server, &["stop", "d"]);
    until("the terminal shows a bar", || is_bar(&terminal.shows("draining d")).then_some(()));
    assert!(terminal.ends().success());
    assert_eq!(terminal.text().trim(), "", "the bar is gone");
    terminal.is_restored();
    assert!(server.ends().success(), "{}", server.log());
    assert!(has(&folder.join("origin.raw"), 24));
}

/// The socket closes while the bar is drawn.
#[test]
fn a_server_that_is_killed_while_it_stops_leaves_no_bar() {
    let folder = Arc::new(Scratch::new());
    let mut server = page_cache(&folder, MIB).start();
    fill(&server, 24);
    let mut terminal = on_terminal(&server, &["stop", "d"]);
    terminal.shows("draining d");
    server.signal(Signal::KILL);
    server.ends();
    assert_eq!(terminal.ends().code(), Some(1));
    let shown = terminal.text();
    assert!(shown.contains("the server ended") && !shown.contains("draining"), "{shown}");
}

/// Scripts read standard error.
#[test]
fn without_a_terminal_there_is_no_bar() {
    let folder = Arc::new(Scratch::new());
    let server = write_cache(&folder, 8 * MIB).start();
    fill(&server, 12);
    let said = server.spillway(&["drain", "d"]).well();
    assert_eq!((said.out.lines().count(), said.err.as_str()), (1, ""));
}

#[test]
fn saves_and_loads_are_listed_by_their_server_until_they_end_or_are_killed() {
    let folder = Arc::new(Scratch::new());
    let server = over_slow_file(&folder, 8 * MIB, "{ kind = \"trace\" }").start();
    let (image, other) = (folder.join("image"), folder.join("other"));
    fs::write(&image, pattern::random(1, 0, 24 << 20)).expect("a file");
    let mut load = on_terminal(&server, &["load", "d", text(&image)]);
    until("the terminal shows a bar", || is_bar(&load.shows("loading d")).then_some(()));
    counts_up(&until_none(&server, "d", "load"), 24 * MIB);
    assert!(load.ends().success());
    assert!(load.text().contains("24M loaded") && !load.text().contains("loading d"));
    let mut save = server.command(&["save", "d", text(&other)]);
    let mut save = save.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it was built");
    until("the save is under way", || works(&server, "d").first().filter(|row| row["done"] != 0).map(drop));
    assert_eq!(works(&server, "d")[0]["total"], 64 * MIB, "the whole device");
    save.kill().expect("it runs");
    save.wait().expect("it has ended");
    assert_eq!(until_none(&server, "d", "save").iter().filter(|row| row["kind"] != "save").count(), 0);
}

/// Another program copies, and says how far it is: how much it has begun to read, at most 16 MiB ahead.
#[test]
fn a_save_as_qcow2_is_listed_and_shows_a_bar_too() {
    let folder = Arc::new(Scratch::new());
    let server = over_slow_file(&folder, 16 * MIB, "{ kind = \"trace\" }").start();
    let content = pattern::random(1, 0, 64 << 20);
    fs::File::options()
        .write(true)
        .open(folder.join("origin.raw"))
        .and_then(|origin| origin.write_all_at(&content, 0))
        .expect("it is written");
    let image = folder.join("image.qcow2");
    let mut save = on_terminal(&server, &["save", "d", text(&image)]);
    until("the terminal shows a bar", || is_bar(&save.shows("saving d")).then_some(()));
    counts_up(&until_none(&server, "d", "save"), 64 * MIB);
    assert!(save.ends().success());
    assert!(save.text().contains("saved as") && !save.text().contains("saving d"), "{}", save.text());
    tool::run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "qcow2", text(&folder.join("origin.raw")), text(&image)],
    )
    .well();
}

/// A pipe does not say how long it is.
#[test]
fn a_load_from_a_pipe_has_no_total() {
    let folder = Arc::new(Scratch::new());
    let server = over_slow_file(&folder, 4 * MIB, "{ kind = \"trace\" }").start();
    let mut load: Command = server.command(&["load", "d", "-"]);
    let mut load = load.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it was built");
    let mut pipe = load.stdin.take().expect("it is piped");
    std::io::Write::write_all(&mut pipe, &pattern::random(1, 0, 8 << 20)).expect("it is read");
    let row = until("the load is under way", || works(&server, "d").into_iter().find(|row| row["done"] != 0));
    assert!(row["total"].is_null() && row["seconds_left"].is_null(), "{row}");
    drop(pipe);
    assert!(load.wait().expect("it ends").success());
    assert!(works(&server, "d").is_empty());
}
