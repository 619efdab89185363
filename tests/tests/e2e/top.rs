//! Views that look again and again: `spillway top` and `spillway ls --watch`, on a terminal and elsewhere.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use rustix::process::Signal;
use serde_json::Value as Json;
use spillway_tests::{Launch, Server, Terminal, behind, binary, pattern, until};

/// Exit codes as documented.
const MISSING: i32 = 3;
const PANIC: i32 = 101;

/// A command of the program beside a server, on a terminal.
fn on_terminal(server: &Server, arguments: &[&str]) -> Terminal {
    Terminal::start(&server.command(arguments), 80, 24)
}

/// The same with a pipe that it writes to.
fn piped(mut command: Command) -> (Child, BufReader<ChildStdout>) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it was built");
    let out = BufReader::new(child.stdout.take().expect("it is piped"));
    (child, out)
}

fn line(out: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    assert!(out.read_line(&mut line).expect("text") > 0, "it has ended");
    line
}

/// Lets a thread go on until it is dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes to the device until `stop`.
fn write_until(server: &Server, stop: &AtomicBool) {
    let mut client = server.client();
    while !stop.load(Ordering::Relaxed) {
        client.write(0, &pattern::half_random(1, 0, 64 << 10)).expect("a write");
    }
}

/// Runs `act` beside a client that writes all the time.
fn beside_a_writer<T>(server: &Server, act: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| write_until(server, &stop));
        act()
    })
}

/// The cells of the rows of `ram0`, a list for each table, under the titles of its columns.
fn rows_of_ram0(text: &str) -> Vec<Vec<(String, String)>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let titles = text.lines().find(|line| line.starts_with("NAME")).map(words).expect("titles");
    let rows = text.lines().filter(|line| line.starts_with("ram0")).map(words);
    rows.map(|cells| titles.iter().cloned().zip(cells).collect()).collect()
}

fn figure(row: &[(String, String)], title: &str) -> String {
    row.iter().find(|(name, _)| name == title).map(|(_, cell)| cell.clone()).expect(title)
}

#[test]
fn rates_are_printed_where_there_is_no_terminal() {
    let server = Launch::ram("64M").start();
    let rates = beside_a_writer(&server, || {
        // What a client did is published now and then.
        until("a look after which the client has written more", || {
            let said = server.spillway(&["top", "--count", "2", "--interval", "0.2"]).well();
            let rows = rows_of_ram0(&said.out);
            assert_eq!((rows.len(), figure(&rows[0], "WMiB/s")), (2, "-".to_owned()), "{said}");
            let rate = |title: &str| figure(&rows[1], title).parse::<f64>().expect("a rate");
            let rates = [rate("WMiB/s"), rate("W/s"), rate("RMiB/s")];
            (rates[0] > 0.0).then(|| (rates, figure(&rows[1], "CL")))
        })
    });
    assert!(rates.0[1] > 0.0 && rates.0[2] == 0.0 && rates.1 == "1", "{rates:?}");
    let said = server.spillway(&["top", "ram0", "--count", "1", "--sort", "write"]).well();
    assert!(said.out.starts_with("servers 1  devices 1") && said.out.contains("memory ram0 "), "{said}");
    server.spillway(&["top", "ram7"]).refused(MISSING, "there are: ram0");
}

#[test]
fn keys_select_sort_and_open() {
    let config = "[[device]]\nname = \"one\"\norigin = { kind = \"zram\", disksize = \"1M\" }\n\
                  [[device]]\nname = \"two\"\norigin = { kind = \"memory\", size = \"1M\" }\n";
    let server = Launch::serve(Default::default(), config).start();
    let mut top = on_terminal(&server, &["top", "--interval", "0.2"]);
    top.shows("> one");
    top.types("\x1b[B");
    top.shows("> two");
    top.types(">");
    top.shows("by RMiB/s (");
    top.types("<r");
    top.shows("reversed by NAME (");
    assert!(top.text().contains("> two"), "the device stays selected");
    top.types("\x1bOB\r");
    let page = top.shows("mem_used_total");
    assert!(page.starts_with("one  1M  zram") && page.contains("policy: "), "{page}");
    top.types("?");
    top.shows("PageDown");
    top.types("?");
    top.hides("PageDown");
    top.types("\x1b");
    top.shows("> one");
    top.types("q");
    assert_eq!(top.ends().code(), Some(0));
    top.is_restored();
}

#[test]
fn a_page_shows_what_flows() {
    let server = Launch::ram("64M").start();
    beside_a_writer(&server, || {
        let mut top = on_terminal(&server, &["top", "ram0", "--interval", "0.1"]);
        until("the client's writes flow", || {
            let text = top.text();
            let speed = text.split_once("--> clients 1  write ")?.1.split_once(" MiB/s")?.0;
            speed.parse::<f64>().ok().filter(|speed| *speed > 0.0)
        });
        until("a counter has a rate", || {
            let text = top.text();
            text.lines().find(|line| line.contains("num_writes"))?.contains(" MiB/s").then_some(())
        });
    });
}

#[test]
fn every_ending_restores_the_terminal() {
    let server = Launch::ram("16M").start();
    for view in [&["top"][..], &["top", "ram0"], &["ls", "--watch"]] {
        let endings: [fn(&mut Terminal); 5] = [
            |top| top.types("q"),
            |top| top.types("\x03"),
            |top| top.signal(Signal::INT),
            |top| top.signal(Signal::TERM),
            |top| top.signal(Signal::HUP),
        ];
        for (number, end) in endings.into_iter().enumerate() {
            let mut top = on_terminal(&server, view);
            top.shows("ram0");
            end(&mut top);
            let ended = top.ends();
            let expected =
                [(Some(0), None), (Some(0), None), (Some(0), None), (None, Some(15)), (None, Some(1))];
            assert_eq!((ended.code(), ended.signal()), expected[number], "{view:?}");
            top.is_restored();
        }
    }
    let mut top = on_terminal(&server, &["top", "--count", "2", "--interval", "0.1"]);
    assert_eq!(top.ends().code(), Some(0));
    top.is_restored();
}

#[test]
fn a_closed_terminal_ends_a_view() {
    let server = Launch::ram("16M").start();
    for ignores in [false, true] {
        let mut command = server.command(&["top"]);
        if ignores {
            command = behind("env", &["--ignore-signal=HUP"], &command);
        }
        let mut top = Terminal::start(&command, 80, 24);
        top.shows("ram0");
        top.hang_up();
        assert_ne!(top.ends().code(), Some(0));
    }
}

#[test]
fn a_panic_is_reported_on_a_restored_terminal() {
    let server = Launch::ram("16M").with_mutant("top: panic at a key").start();
    let mut command = server.command(&["top"]);
    // A backtrace would have more lines than the terminal.
    let mut top = Terminal::start(command.env("RUST_BACKTRACE", "0"), 80, 24);
    top.shows("> ram0");
    top.types("r");
    assert_eq!(top.ends().code(), Some(PANIC));
    top.shows("a deliberate defect");
    top.is_restored();
}

/// A shell that stops its foreground job, and continues it.
#[test]
fn a_view_is_stopped_and_continued_by_its_shell() {
    let server = Launch::ram("16M").start();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"]).env("PS1", "prompt> ");
    bash.env("SPILLWAY", binary::path()).env("SPILLWAY_RUNTIME_DIR", server.folder().path());
    let mut shell = Terminal::start(&bash, 80, 24);
    shell.shows("prompt>");
    shell.types("$SPILLWAY top\r");
    shell.shows("> ram0");
    shell.types("\x1a");
    let stopped = shell.shows("Stopped");
    assert!(!stopped.contains("> ram0"), "{stopped}");
    shell.types("fg\r");
    shell.shows("> ram0");
    shell.types("q");
    shell.hides("> ram0");
    shell.types("echo code $?; exit\r");
    shell.shows("code 0");
    shell.ends();
}

#[test]
fn a_view_takes_the_size_that_its_terminal_has() {
    let server = Launch::ram("16M").start();
    let mut top = on_terminal(&server, &["top", "--interval", "3600"]);
    assert!(top.shows("q end").lines().nth(23).is_some_and(|last| last.contains("q end")));
    for (columns, rows) in [(132, 43), (40, 10), (3, 2), (80, 24)] {
        top.resize(columns, rows);
        let whole = if columns < 80 { "  N" } else { "q end" };
        let text = top.shows(whole);
        assert_eq!(text.lines().count(), usize::from(rows), "{text}");
    }
    let mut list = on_terminal(&server, &["ls", "--watch", "3600"]);
    list.shows("Ctrl-C ends");
    list.resize(30, 5);
    assert!(list.shows("q or Ctrl-C ends").lines().nth(4).is_some_and(|last| last.contains("ends")));
}

#[test]
fn a_list_is_printed_again_until_its_reader_leaves() {
    let server = Launch::ram("16M").start();
    let (child, mut out) = piped(server.command(&["ls", "--watch", "0.1"]));
    let once = server.spillway(&["ls"]).well().out;
    let mut tables = String::new();
    while tables.len() < 3 * once.len() {
        tables.push_str(&line(&mut out));
    }
    assert!(tables.starts_with(&format!("{once}\n{once}\n")), "{tables}");
    drop(out);
    ends_quietly(child);
    // A reader that leaves between two looks is noticed at once.
    let (child, mut out) = piped(server.command(&["ls", "--watch", "3600"]));
    line(&mut out);
    drop(out);
    ends_quietly(child);
}

fn ends_quietly(mut child: Child) {
    let status = until("it ends", || child.try_wait().expect("it is our child"));
    let mut words = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut words).expect("text");
    assert_eq!((status.code(), words.as_str()), (Some(0), ""));
}

/// The names in a line of JSON.
fn names(out: &mut BufReader<ChildStdout>) -> Vec<String> {
    let list: Vec<Json> = serde_json::from_str(&line(out)).expect("a list on one line");
    list.iter().map(|device| device["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_server_that_comes_or_stops_between_two_looks_is_there_or_not() {
    let mut first = Launch::ram("16M").start();
    let (mut child, mut out) = piped(first.command(&["ls", "--watch", "0.1", "--json"]));
    assert_eq!(names(&mut out), ["ram0"]);
    let mut top = on_terminal(&first, &["top", "--interval", "0.1"]);
    top.shows("> ram0");
    let socket = first.folder().join("second.sock");
    let launch = Launch::new(&["ram", "--size", "1M", "--name", "second"], first.folder(), socket.clone());
    let second = launch.with("--socket", socket).start();
    until("the second is listed", || (names(&mut out) == ["ram0", "second"]).then_some(()));
    top.shows("  second");
    top.types("\r");
    top.shows("ram0  16M  zram");
    first.spillway(&["stop", "ram0"]).well();
    assert!(first.ends().success());
    until("the first is gone", || (names(&mut out) == ["second"]).then_some(()));
    top.shows("ram0: it has ended, or its server");
    top.types("\x1b");
    top.shows("> second");
    drop(second);
    until("no device is left", || names(&mut out).is_empty().then_some(()));
    top.shows("none of your servers is running");
    top.types("q");
    assert_eq!(top.ends().code(), Some(0));
    top.is_restored();
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
}

#[test]
fn a_server_that_does_not_answer_is_silent_and_freezes_no_view() {
    let server = Launch::ram("16M").start();
    let mut top = on_terminal(&server, &["top", "--interval", "0.1"]);
    let mut list = on_terminal(&server, &["ls", "--watch", "0.1"]);
    top.shows("> ram0");
    list.shows("ram0");
    server.signal(Signal::STOP);
    top.shows("silent for 2 s");
    list.shows("ram0: its server does not answer");
    top.types("\r");
    top.shows("this is old");
    server.signal(Signal::CONT);
    top.hides("this is old");
    list.hides("does not answer");
    server.signal(Signal::STOP);
    top.shows("this is old");
    top.types("q");
    list.types("q");
    assert_eq!((top.ends().code(), list.ends().code()), (Some(0), Some(0)));
    let said = server.spillway(&["top", "--count", "2", "--interval", "0.1"]).well();
    assert!(said.out.contains("silent for"), "{said}");
    server.signal(Signal::CONT);
}
