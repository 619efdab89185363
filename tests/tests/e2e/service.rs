//! What a service manager hears of a server (sd_notify(3)).

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use spillway_tests::{Launch, Scratch, text};

/// What a manager tells a server: three words of its watchdog a tenth of a second apart are in time.
const WATCHDOG: &str = "WATCHDOG_USEC=300000";

/// What the server sends while it starts or ends.
const EXTENDED: &str = "EXTEND_TIMEOUT_USEC=30000000";

/// Longest wait for a word.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service supervisor.
struct Supervisor {
    socket: UnixDatagram,
    variable: String,
    _folder: Arc<Scratch>,
}

impl Supervisor {
    fn new() -> Self {
        let folder = Arc::new(Scratch::new());
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
        Self { socket, variable: format!("NOTIFY_SOCKET={}", text(&path)), _folder: folder }
    }

    fn runs(&self, launch: Launch) -> Launch {
        launch.through(["env", &self.variable, WATCHDOG])
    }

    /// What the server says next, but for those words.
    fn hears_but(&self, word: &str) -> String {
        loop {
            let mut bytes = [0; 4096];
            let count = self.socket.recv(&mut bytes).expect("the server says something");
            let said = String::from_utf8_lossy(&bytes[..count]).into_owned();
            if said != word {
                return said;
            }
        }
    }
}

#[test]
fn a_service_manager_hears_that_a_server_serves_lives_and_ends() {
    let supervisor = Supervisor::new();
    let mut server = supervisor.runs(Launch::ram("1M").mounted()).start();
    assert_eq!(supervisor.hears_but(EXTENDED), "READY=1\nSTATUS=serving ram0");
    (0..3).for_each(|_| assert_eq!(supervisor.hears_but(""), "WATCHDOG=1"));
    let held = File::open(server.file("ram0")).expect("its file");
    server.signal(Signal::TERM);
    let ends = format!("STOPPING=1\nSTATUS=stopping\n{EXTENDED}");
    assert_eq!(supervisor.hears_but("WATCHDOG=1"), ends);
    let waits = supervisor.hears_but(EXTENDED);
    assert!(waits.starts_with("STATUS=") && waits.contains("the server ends after that"), "{waits}");
    (0..3).for_each(|_| assert_eq!(supervisor.hears_but(""), EXTENDED, "the end goes on"));
    drop(held);
    assert!(server.ends().success(), "{}", server.log());
}

#[test]
fn a_command_beside_a_server_is_not_its_service_manager_s() {
    let supervisor = Supervisor::new();
    let script = "test -z \"$NOTIFY_SOCKET$WATCHDOG_USEC\"";
    supervisor.runs(Launch::ram("1M")).with("--", "sh").with("-c", script).run().well();
    assert_eq!(supervisor.hears_but(EXTENDED), "READY=1\nSTATUS=serving ram0");
}

#[test]
fn a_service_manager_that_cannot_be_told_costs_a_warning() {
    let far = format!("NOTIFY_SOCKET=/{}", "x".repeat(200));
    let mut server = Launch::ram("1M").through(["env", &far]).start();
    assert!(server.log().contains("no service manager is told"), "{}", server.log());
    server.spillway(&["stop", "ram0"]).well();
    assert!(server.ends().success());
}
