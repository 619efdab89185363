//! Sockets that a service manager has made: a real one in small, systemd-socket-activate, which starts a server with the first client.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};

use spillway_tests::raw::{Client, errno};
use spillway_tests::tool::{self, Said};
use spillway_tests::{Launch, Scratch, binary, text, until};

const USAGE: i32 = 2;

/// A server that gets sockets of these names, which are files of its folder, with `arguments`.
fn activated(folder: &Arc<Scratch>, names: &[&str], arguments: &[&str]) -> Launch {
    let arguments = [&["ram", "--size", "16M"], arguments].concat();
    let launch = Launch::new(&arguments, folder.clone(), folder.join(names[0]));
    let listen = names.iter().map(|name| format!("--listen={}", text(&folder.join(name))));
    let named = format!("--fdname={}", names.join(":"));
    let manager = ["systemd-socket-activate".to_owned(), "--setenv=SPILLWAY_RUNTIME_DIR".to_owned(), named];
    launch.through(manager.into_iter().chain(listen))
}

/// Connects as soon as there is a socket, of this mode, which starts the server.
fn first_client(socket: PathBuf, mode: u32) -> JoinHandle<()> {
    // Building it may take longer than the client waits.
    binary::path();
    spawn(move || {
        until("there is a socket", || {
            fs::set_permissions(&socket, fs::Permissions::from_mode(mode)).ok()?;
            UnixStream::connect(&socket).ok().map(drop)
        });
    })
}

/// What such a server says that ends at its start.
fn refused(names: &[&str], mode: u32, arguments: &[&str]) -> Said {
    let folder = Arc::new(Scratch::new());
    let launch = activated(&folder, names, arguments);
    let client = first_client(folder.join(names[0]), mode);
    let said = launch.run();
    client.join().expect("it connects");
    assert_eq!(said.code, Some(USAGE), "{said}");
    said
}

#[test]
fn a_server_serves_at_the_sockets_of_its_service_manager_and_leaves_them_there() {
    let folder = Arc::new(Scratch::new());
    let launch = activated(&folder, &["nbd", "http"], &[]);
    let (nbd, http) = (folder.join("nbd"), folder.join("http"));
    let client = first_client(nbd.clone(), 0o600);
    let (mut server, ended) = launch.attempt();
    assert!(ended.is_none(), "{}", server.log());
    client.join().expect("it connects");
    server.client().write(0, &[7; 4096]).expect("a write");
    assert!(server.uri().contains(text(&nbd)), "{}", server.uri());
    tool::run("nbdinfo", &["--size", &format!("nbd+unix:///?socket={}", text(&nbd))]).well();
    let said =
        tool::run("curl", &["--silent", "--unix-socket", text(&http), "http://localhost/api/devices"]).well();
    assert!(said.out.contains("\"write_bytes\":4096"), "{said}");
    server.spillway(&["stop", "ram0"]).well();
    assert!(server.ends().success(), "{}", server.log());
    assert!(nbd.exists() && http.exists(), "the next start has them too");
}

/// The names and limits of a server hold at a socket that it did not make.
#[test]
fn a_socket_of_the_service_manager_has_second_names_and_limits_too() {
    let folder = Arc::new(Scratch::new());
    let options = ["--hidden", "--read-only-name", "copy", "--peer-connections-max", "2"];
    let launch = activated(&folder, &["nbd"], &options);
    let client = first_client(folder.join("nbd"), 0o600);
    let (server, ended) = launch.attempt();
    assert!(ended.is_none(), "{}", server.log());
    client.join().expect("it connects");
    let socket = folder.join("nbd");
    let two = || Some([Client::try_open(&socket, "ram0").ok()?, Client::try_open(&socket, "copy").ok()?]);
    let [mut writer, mut reader] = until("the first client is gone", two);
    writer.write(0, &[7; 4096]).expect("a write");
    assert!(reader.read(0, 4096) == Ok(vec![7; 4096]));
    assert_eq!(reader.write(0, &[7; 512]), Err(errno::EPERM));
    assert!(Client::try_open(&socket, "copy").is_err(), "a third one");
    drop(writer);
    let list =
        || Some(tool::run("nbdinfo", &["--list", &server.uri_of("")])).filter(|said| said.code == Some(0));
    let listed = until("a place comes back", list);
    assert!(listed.out.contains("\"copy\"") && !listed.out.contains("\"ram0\""), "{listed}");
}

#[test]
fn what_a_service_manager_passes_must_fit_the_options_and_be_private() {
    for (names, mode, arguments, words) in [
        (&["nbd"][..], 0o600, &["--listen", "127.0.0.1:0"][..], "leave one out"),
        (&["nbd"], 0o666, &[], "SocketMode=0600"),
        (&["http"], 0o666, &[], "http_token_file"),
        (&["nbd"], 0o600, &["--background"], "leave out --background"),
        (&["nbd", "smtp"], 0o600, &[], "is nbd or http"),
    ] {
        let said = refused(names, mode, arguments);
        assert!(said.err.contains(words), "{names:?} {arguments:?}: {said}");
    }
}

#[test]
fn a_socket_for_others_is_allowed_by_its_mode() {
    let folder = Arc::new(Scratch::new());
    let launch = activated(&folder, &["nbd"], &["--socket-mode", "0666"]);
    let client = first_client(folder.join("nbd"), 0o666);
    let (server, ended) = launch.attempt();
    assert!(ended.is_none(), "{}", server.log());
    client.join().expect("it connects");
    server.client().write(0, &[7; 4096]).expect("a write");
}
