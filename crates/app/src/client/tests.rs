//! Clients against a server of a few lines that speaks the protocol on a real socket.

use super::*;
use crate::exit;
use crate::scratch::Scratch;
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
        device_table(&[row("ram0"), plain], human),
        "\
NAME  STACK ALGORITHM DISKSIZE DATA COMPR TOTAL RATIO STREAMS EXPORT
ram0  zram  lz4             4G   3M    1M    1M  2.86       2 nbd+unix:///ram0?socket=/run/ram0.sock
disk0 file  -             512B    -     -     -     -       - -
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
        "{\"v\":1,\"result\":{\"devices\":[{\"name\":\"ram0\",\"stack\":\"zram\",\"disksize\":1,\"read_only\":false,\"clients\":0}]}}\n",
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
        "{\"v\":1,\"error\":{\"errno\":\"EBUSY\",\"code\":16,\"message\":\"2 clients\"}}\n",
    );
    let error = reset(&folder, "ram0".into()).unwrap_err();
    assert_eq!((error.to_string().as_str(), exit::code_of(&error)), ("2 clients (EBUSY)", Exit::Busy));
}

#[test]
fn values_of_several_lines_stay_in_their_column() {
    let value = |name: &str, value: &str| Value { name: name.into(), value: value.into() };
    assert_eq!(
        listed(&[value("disksize", "4096"), value("debug_stat", "version: 1\n0")]),
        "disksize    4096\ndebug_stat  version: 1\n            0\n"
    );
}
