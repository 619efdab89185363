//! Starts that take long or fail: a program that says nothing has the socket of a server's second device, which the server finds out after a
//! while. Until then the first device has clients.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use spillway_tests::raw::Client;
use spillway_tests::{Launch, Scratch, pattern, text, until};

/// A folder with the configuration of two devices, and the origin of the first.
struct Held {
    folder: Arc<Scratch>,
    config: PathBuf,
    origin: PathBuf,
    silent: UnixListener,
}

impl Held {
    fn new() -> Self {
        let folder = Arc::new(Scratch::new());
        let origin = folder.write("origin.raw", vec![0; 1 << 20]);
        let config = format!(
            "[[device]]\nname = \"first\"\norigin = {{ kind = \"file\", path = {origin:?} }}\n\
             layers = [{{ kind = \"page_cache\" }}]\n\
             [[device]]\nname = \"second\"\norigin = {{ kind = \"zram\", disksize = \"1M\" }}\n"
        );
        let config = folder.write("two.toml", config);
        DirBuilder::new().mode(0o700).create(folder.join("spillway")).expect("the folder is ours");
        let silent = UnixListener::bind(folder.join("spillway/second.sock")).expect("it is free");
        Self { folder, config, origin, silent }
    }

    fn socket(&self, device: &str) -> PathBuf {
        self.folder.join(&format!("spillway/{device}.sock"))
    }

    fn launch(&self) -> Launch {
        Launch::new(&["serve", text(&self.config)], self.folder.clone(), self.socket("first"))
    }

    /// A client of the first device, once it has any.
    fn client(&self) -> Client {
        let socket = self.socket("first");
        until("it listens", || UnixStream::connect(&socket).ok().map(|_| Client::open(&socket, "first")))
    }
}

/// A process that ends with its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_start_that_fails_late_flushes_what_clients_wrote() {
    let held = Held::new();
    let launch = held.launch();
    let bytes = pattern::random(1, 0, 4096);
    std::thread::scope(|scope| {
        let said = scope.spawn(|| launch.run());
        held.client().write(0, &bytes).expect("a write");
        said.join().expect("it ends").refused(4, "second.sock");
    });
    assert!(fs::read(&held.origin).expect("it exists")[..4096] == bytes, "an acknowledged write is lost");
}

/// The command is not there yet, whose the keys will be.
#[test]
fn a_second_interrupt_ends_a_start_that_waits_at_once() {
    let held = Held::new();
    let mut command = held.launch().program();
    command.arg("serve").arg(&held.config).args(["--", "true"]).stdout(Stdio::null()).stdin(Stdio::null());
    let mut server = Killed(command.spawn().expect("it was built"));
    drop(held.client());
    let pid = Pid::from_child(&server.0);
    let ended = until("it ends", || {
        let _ = kill_process(pid, Signal::INT);
        server.0.try_wait().expect("it is ours")
    });
    assert_eq!(ended.code(), Some(130));
}

/// Or a script would go on as if it had run.
#[test]
fn a_signal_before_the_command_is_in_the_exit_code() {
    let held = Held::new();
    let mut command = held.launch().program();
    command.arg("serve").arg(&held.config).args(["--", "sleep", "1000"]);
    let mut server =
        Killed(command.stdout(Stdio::null()).stdin(Stdio::null()).spawn().expect("it was built"));
    drop(held.client());
    kill_process(Pid::from_child(&server.0), Signal::TERM).expect("it lives");
    drop(held.silent);
    assert_eq!(until("it ends", || server.0.try_wait().expect("it is ours")).code(), Some(143));
}

#[test]
fn signals_cut_no_wait_for_a_socket_short() {
    let held = Held::new();
    let mut command = held.launch().program();
    command.arg("serve").arg(&held.config);
    let mut server =
        Killed(command.stdout(Stdio::null()).stdin(Stdio::null()).spawn().expect("it was built"));
    let pid = Pid::from_child(&server.0);
    let signal = |signal| kill_process(pid, signal).expect("it lives");
    for _ in 0..100 {
        drop(held.client());
        signal(Signal::USR2);
    }
    let second = held.socket("second");
    drop(held.silent);
    until("the second device has its socket", || Client::try_open(&second, "second").ok());
    signal(Signal::TERM);
    assert_eq!(until("it ends", || server.0.try_wait().expect("it is ours")).code(), Some(0));
}
