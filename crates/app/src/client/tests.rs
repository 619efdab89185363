//! Clients against a server of a few lines that speaks the protocol on a real socket.

use super::listing::{Servers, listing};
use super::ls::device_table;
use super::*;
use crate::cli::{DetachOptions, LsOptions};
use crate::exit::{self, Exit};
use crate::scratch::Scratch;
use spillway_export::control::DeviceRow;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;

fn row(name: &str) -> DeviceRow {
    DeviceRow {
        name: name.into(),
        stack: "zram".into(),
        algorithm: Some("lz4".into()),
        disksize: 4 << 30,
        data: Some(3 << 20),
        compr: Some(1 << 20),
        total: Some(1_100_000),
        ratio: Some(2.861),
        spilled: Some(5 << 20),
        spill_size: Some(1 << 30),
        streams: Some(2),
        exports: vec!["nbd+unix:///ram0?socket=/run/ram0.sock".into()],
        ..Default::default()
    }
}

/// Answers every line of every client by `reply` until the test process ends.
fn serve(folder: &RuntimeFolder, device: &str, reply: &'static str) {
    folder.create().unwrap();
    let listener = UnixListener::bind(folder.control_socket(device)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            while BufReader::new(&stream).read_line(&mut line).is_ok_and(|count| count > 0) {
                stream.write_all(reply.as_bytes()).unwrap();
            }
        }
    });
}

#[test]
fn a_listing_reads_like_zramctl() {
    let plain = DeviceRow { name: "disk0".into(), stack: "file".into(), disksize: 512, ..Default::default() };
    assert_eq!(
        device_table(&[row("ram0"), plain], &LsOptions::default()),
        "\
NAME  STACK ALGORITHM DISKSIZE DATA COMPR TOTAL RATIO SPILL STREAMS EXPORT
ram0  zram  lz4             4G   3M    1M    1M  2.86 5M/1G       2 nbd+unix:///ram0?socket=/run/ram0.sock
disk0 file  -             512B    -     -     -     -     -       - -
"
    );
}

#[test]
fn dead_sockets_are_left_out_of_a_listing() {
    let scratch = Scratch::new("listing");
    let folder = RuntimeFolder::at(&scratch.path().join("run"));
    serve(
        &folder,
        "ram0",
        "{\"v\":2,\"result\":{\"devices\":[{\"name\":\"ram0\",\"stack\":\"zram\",\"disksize\":1,\"read_only\":false,\"clients\":0}]}}\n",
    );
    drop(UnixListener::bind(folder.control_socket("dead")).unwrap());
    let names: Vec<_> = listing(&folder).unwrap().into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["ram0"]);
    let error = change(&folder, "dead", &Operation::Stop { device: "dead".into() }).unwrap_err();
    assert_eq!(exit::code_of(&error), Exit::Missing);
    assert!(error.to_string().contains("there are: ram0"), "{error}");
}

#[test]
fn a_refusal_keeps_its_errno_and_sets_the_exit_code() {
    let scratch = Scratch::new("refusal");
    let folder = RuntimeFolder::at(&scratch.path().join("run"));
    serve(
        &folder,
        "ram0",
        "{\"v\":2,\"error\":{\"errno\":\"EBUSY\",\"code\":16,\"message\":\"2 clients\"}}\n",
    );
    let error = reset(&folder, "ram0".into()).unwrap_err();
    assert_eq!((error.to_string().as_str(), exit::code_of(&error)), ("2 clients (EBUSY)", Exit::Busy));
}

#[test]
fn values_of_several_lines_stay_in_their_column() {
    let value = |name: &str, text: &str| Shown {
        name: name.into(),
        value: Json::Null,
        text: text.into(),
        next: None,
    };
    assert_eq!(
        listed(&[value("disksize", "4096"), value("debug_stat", "version: 1\n0")]),
        "disksize    4096\ndebug_stat  version: 1\n            0\n"
    );
}

#[test]
fn a_value_as_json_keeps_its_type() {
    let value = |name: &str, value: Json| Shown { name: name.into(), value, text: "text".into(), next: None };
    let stat = serde_json::json!({"mem_used_total": 12288});
    let values = [value("disksize", 4096.into()), value("initstate", true.into()), value("io_stat", stat)];
    let object = Json::Object(object(&values)).to_string();
    assert_eq!(object, r#"{"disksize":4096,"initstate":true,"io_stat":{"mem_used_total":12288}}"#);
}

#[test]
fn a_description_says_what_is_declared() {
    let row = AttributeRow {
        name: "level".into(),
        role: "knob".into(),
        unit: "percent".into(),
        allowed: Some("a whole number from 1 to 9".into()),
        default: Some("5".into()),
        when: Some("at any time".into()),
        readable: true,
        writable: true,
        help: "How much".into(),
        columns: vec![ColumnRow { name: "a".into(), unit: "bytes".into() }],
        ..Default::default()
    };
    assert_eq!(
        descriptions(&[row]),
        "level (knob; percent; read, write; a whole number from 1 to 9; default: 5; set at any time)\n    How much\n    a bytes\n"
    );
}

fn rows() -> String {
    let row = |name: &str, part: &str| {
        format!(
            "{{\"name\":\"{name}\",\"part\":\"{part}\",\"role\":\"fact\",\"type\":\"choice\",\"readable\":true,\"writable\":false,\"help\":\"\"}}"
        )
    };
    let rows = [row("drain_state", "write_cache"), row("write_cache2.drain_state", "write_cache2")].join(",");
    format!("{{\"v\":2,\"result\":{{\"attributes\":[{rows}]}}}}\n")
}

fn state(value: &str) -> String {
    format!(
        "{{\"v\":2,\"result\":{{\"values\":[{{\"name\":\"a\",\"value\":\"{value}\",\"text\":\"\"}}]}}}}\n"
    )
}

const DONE: &str = "{\"v\":2,\"result\":\"done\"}\n";

/// Of two caches, one of which is looked at once more while it is drained.
#[test]
fn a_drain_is_waited_for() {
    let scratch = Scratch::new("drain");
    let folder = RuntimeFolder::at(&scratch.path().join("run"));
    for (states, outcome) in [
        (&["running", "running", "complete", "running", "complete", "complete"][..], Ok(())),
        (&["running", "complete", "complete", "complete"], Ok(())),
        (&["complete", "running", "complete", "failed"], Err(Exit::Failed)),
        (&["running", "failed"], Err(Exit::Failed)),
        (&["off"], Err(Exit::Failed)),
    ] {
        let states: Vec<_> = states.iter().map(|value| state(value)).collect();
        let replies = [&[rows(), DONE.into()], &states[..]].concat();
        let asked = serve_in_turn(&folder, "c0", vec![replies]);
        let result = drain(&folder, "c0".into());
        assert_eq!(result.map_err(|error| exit::code_of(&error)), outcome);
        let asked = asked.join().unwrap();
        assert_eq!(asked.len(), 2 + states.len(), "each answer is asked for");
        assert!(asked[2].contains("write_cache.drain_state"), "{}", asked[2]);
    }
}

/// Another client may have turned cleaner off since the look.
#[test]
fn a_device_that_is_handed_over_writes_back_what_came_since_its_drain() {
    let scratch = Scratch::new("hand-over");
    let folder = RuntimeFolder::at(&scratch.path().join("run"));
    let refused = "{\"v\":2,\"error\":{\"errno\":\"EIO\",\"code\":5,\"message\":\"not written back\"}}\n";
    for (stopped, outcome) in [(DONE, Ok(())), (refused, Err(Exit::Failed))] {
        let drained = [rows(), DONE.into(), state("complete"), state("complete"), DONE.into(), DONE.into()];
        let asked = serve_in_turn(&folder, "c0", vec![drained.into(), vec![stopped.into()]]);
        let result = hand_over(&folder, "c0".into());
        assert_eq!(result.map_err(|error| exit::code_of(&error)), outcome);
        let asked = asked.join().unwrap();
        for (line, cache) in asked[4..6].iter().zip(["write_cache.", "write_cache2."]) {
            assert!(line.contains(&format!("{cache}message")) && line.contains("flush_on_suspend"), "{line}");
        }
        assert!(asked[6].contains("stop"), "{}", asked[6]);
    }
}

/// Answers the lines of some clients by their replies, one after the other; returns the lines.
fn serve_in_turn(
    folder: &RuntimeFolder,
    device: &str,
    clients: Vec<Vec<String>>,
) -> thread::JoinHandle<Vec<String>> {
    folder.create().unwrap();
    let path = folder.control_socket(device);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let mut asked = Vec::new();
        for replies in clients {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for reply in replies {
                asked.push(lines.next().expect("a question").unwrap());
                stream.write_all(reply.as_bytes()).unwrap();
            }
        }
        asked
    })
}

/// Each byte comes in time, and no end ever does.
#[test]
fn an_answer_that_trickles_is_not_waited_for_longer_than_one_that_does_not_come() {
    let scratch = Scratch::new("trickle");
    let folder = RuntimeFolder::at(&scratch.path().join("run"));
    folder.create().unwrap();
    let listener = UnixListener::bind(folder.control_socket("ram0")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let mut connection = Connection::to_device(&folder, "ram0").unwrap();
    connection.wait_at_most(std::time::Duration::from_millis(100));
    let error = connection.ask(&Operation::List {}).unwrap_err();
    assert!(connection::is_silence(&error), "{error:#}");
}

/// Both sockets are one process's, which answers nothing until it may.
#[test]
fn a_server_that_does_not_answer_is_silent_until_it_does() {
    let scratch = Scratch::new("silent");
    let folder = RuntimeFolder::at(&scratch.path().join("run"));
    folder.create().unwrap();
    let listener = UnixListener::bind(folder.control_socket("ram0")).unwrap();
    let _other = UnixListener::bind(folder.control_socket("ram1")).unwrap();
    let (shut, gate) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let row = |name| {
            format!(
                "{{\"name\":\"{name}\",\"stack\":\"zram\",\"disksize\":1,\"read_only\":false,\"clients\":0}}"
            )
        };
        let reply = format!("{{\"v\":2,\"result\":{{\"devices\":[{},{}]}}}}\n", row("ram1"), row("ram0"));
        for mut stream in listener.incoming().flatten() {
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            gate.recv().unwrap_err();
            // A client that waits no longer is no failure.
            let _ = stream.write_all(reply.as_bytes());
        }
    });
    let mut servers = Servers::new(&folder, std::time::Duration::from_millis(20));
    let (devices, first) = servers.devices().unwrap();
    assert_eq!(
        (devices.len(), first.len(), &first[0].devices[..]),
        (0, 1, &["ram0", "ram1"].map(String::from)[..])
    );
    assert_eq!((servers.devices().unwrap().1, first[0].server), (first, std::process::id()));
    drop(shut);
    let devices = loop {
        let (devices, silences) = servers.devices().unwrap();
        if silences.is_empty() {
            break devices;
        }
    };
    assert_eq!(devices.into_iter().map(|row| row.name).collect::<Vec<_>>(), ["ram0", "ram1"]);
}

/// Anybody may make a folder in a temporary folder, and answer in it what a command run by root would believe.
#[test]
fn nothing_that_answers_in_a_folder_open_to_others_is_believed() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("open-to-others");
    let folder = RuntimeFolder::at(&scratch.path().join("spillway-0"));
    serve(&folder, "ram0", "{\"reply\":\"done\"}\n");
    std::fs::set_permissions(scratch.path().join("spillway-0"), PermissionsExt::from_mode(0o755)).unwrap();
    let options = crate::cli::AttachOptions {
        device: "ram0".into(),
        mountpoint: None,
        mkfs: None,
        swap: false,
        force: false,
        shared: false,
        via: None,
        timeout: None,
        reconnect: false,
    };
    let refusals = [
        listing(&folder).map(drop),
        Connection::to_device(&folder, "ram0").map(drop),
        detach(&folder, &DetachOptions { device: "ram0".into(), force: false }),
        attach(&folder, &options),
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err().to_string();
        assert!(error.contains("open to others"), "{error}");
    }
}
