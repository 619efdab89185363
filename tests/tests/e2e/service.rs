//! What a service manager hears of a server (sd_notify(3)).

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::Duration;

use rustix::process::Signal;
use spillway_tests::{Launch, Scratch, text, until};

/// What a manager tells a server: three words of its watchdog a tenth of a second apart are in time.
const WATCHDOG: &str = "WATCHDOG_USEC=300000";

/// What the server sends while it starts or ends.
pub(crate) const EXTENDED: &str = "EXTEND_TIMEOUT_USEC=30000000";

/// Longest wait for a word.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service supervisor.
pub(crate) struct Supervisor {
    socket: UnixDatagram,
    variable: String,
    _folder: Arc<Scratch>,
}

impl Supervisor {
    pub(crate) fn new() -> Self {
        let folder = Arc::new(Scratch::new());
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
        Self { socket, variable: format!("NOTIFY_SOCKET={}", text(&path)), _folder: folder }
    }

    pub(crate) fn runs(&self, launch: Launch) -> Launch {
        launch.through(["env", &self.variable, WATCHDOG])
    }

    /// What the server says next, but for those words.
    pub(crate) fn hears_but(&self, word: &str) -> String {
        until(&format!("the server says something else than {word:?}"), || {
            let mut bytes = [0; 4096];
            let count = self.socket.recv(&mut bytes).expect("the server says something");
            let said = String::from_utf8_lossy(&bytes[..count]).into_owned();
            (said != word).then_some(said)
        })
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

/// All that a supervisor has heard, however much is said at a time.
struct Record(Arc<Mutex<Vec<String>>>);

impl Record {
    fn new(supervisor: &Supervisor) -> Self {
        let (socket, heard) =
            (supervisor.socket.try_clone().expect("a socket"), Arc::new(Mutex::new(Vec::new())));
        let into = heard.clone();
        spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = socket.recv(&mut bytes) {
                into.lock()
                    .expect("nothing panics")
                    .push(String::from_utf8_lossy(&bytes[..count]).into_owned());
            }
        });
        Self(heard)
    }

    /// Waits for a status that begins with these words, and forgets all before it; what follows the words.
    fn status(&self, words: &str) -> String {
        let begin = format!("STATUS={words}");
        until(&format!("the service manager hears '{begin}'"), || {
            let mut heard = self.0.lock().expect("nothing panics");
            let at = heard.iter().position(|said| said.contains(&begin))?;
            let said = heard.drain(..=at).next_back().expect("it is there");
            said.split_once(&begin).map(|(_, rest)| rest.to_owned())
        })
    }
}

/// The number before the sign of percent.
fn percent(words: &str) -> u64 {
    let number = words.split_once(" %").unwrap_or_else(|| panic!("no percent in {words:?}")).0;
    number.trim().parse().unwrap_or_else(|why| panic!("{why}: {words:?}"))
}

/// The cache lies on the file of another server, which takes a MiB a second: its metadata has four.
#[test]
fn a_service_manager_hears_how_far_a_start_and_a_stop_are() {
    let (supervisor, slow_folder, folder) =
        (Supervisor::new(), Arc::new(Scratch::new()), Arc::new(Scratch::new()));
    let slow = "[[device]]\nname = \"slow\"\norigin = { kind = \"zram\", disksize = \"1G\" }\n\
                layers = [{ kind = \"rate\", bytes_per_second = \"1M\" }]\n";
    let slow = Launch::serve(slow_folder, slow).mounted().start();
    let origin = folder.write("origin.raw", vec![0; 32 << 20]);
    let config = format!(
        "[[device]]\nname = \"c\"\norigin = {{ kind = \"file\", path = {:?} }}\n\
         layers = [{{ kind = \"write_cache\", path = {:?} }}, {{ kind = \"page_cache\", mode = \"writeback\" }}]\n",
        text(&origin),
        text(&slow.file("slow"))
    );
    let record = Record::new(&supervisor);
    let start = || supervisor.runs(Launch::serve(folder.clone(), &config));
    for words in ["formatting c: ", "recovering c: "] {
        let mut server = start().start();
        while percent(&record.status(words)) == 0 {}
        record.status("serving c");
        let mut client = spillway_tests::raw::Client::open(server.socket(), "c");
        (0..4).for_each(|piece| client.write(piece << 20, &vec![7; 1 << 20]).expect("it is written"));
        drop(client);
        server.signal(Signal::TERM);
        while percent(&record.status("draining c: ")) == 0 {}
        assert!(server.ends().success(), "{}", server.log());
    }
}
