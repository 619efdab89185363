//! How a mount ends that is bound to other places, covered by another mount, or aborted. As root.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::io::Errno;
use rustix::process::Signal;
use spillway_tests::{FuseConnection, Launch, Scratch, Server, WITHOUT_OTHERS, tool, until};

/// Exit code as documented.
const BUSY: i32 = 4;

fn errno<T>(outcome: std::io::Result<T>) -> Errno {
    let error = outcome.err().expect("an error");
    Errno::from_io_error(&error).expect("an errno")
}

fn both(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap_or_else(|why| panic!("{path:?}: {why}"))
}

/// Where a server's mount is.
fn place_of(server: &Server) -> PathBuf {
    server.file("ram0").ancestors().nth(2).expect("a mount").to_owned()
}

fn is_mounted(place: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel lists mounts");
    table.lines().any(|line| line.split(' ').nth(4) == place.to_str())
}

fn me() -> String {
    format!("(pid {})", std::process::id())
}

/// A mount that goes with the test.
struct Mounted(Scratch);

impl Mounted {
    fn new(arguments: &[&dyn AsRef<OsStr>]) -> Self {
        let folder = Scratch::new();
        mount(arguments, folder.path());
        Self(folder)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

fn mount(arguments: &[&dyn AsRef<OsStr>], place: &Path) {
    let arguments: Vec<&OsStr> = arguments.iter().map(|argument| argument.as_ref()).collect();
    tool::run("mount", &[&arguments[..], &[place.as_os_str()]].concat()).well();
}

#[test]
fn a_mount_that_is_bound_elsewhere_ends_with_its_server() {
    let mut server = Launch::ram("1M").mounted().start();
    let place = place_of(&server);
    let bound = Mounted::new(&[&"--bind", &place]);
    server.signal(Signal::TERM);
    assert!(server.ends().success());
    let log = server.log();
    assert!(log.contains(&format!("still bound to {}", bound.0.path().display())), "{log}");
    assert!(!is_mounted(&place));
    // The kernel gives it up when it has closed what the process had open, which may be after its end.
    let dead = || (errno(fs::metadata(bound.join("ram0/disk"))) == Errno::NOTCONN).then_some(());
    until("the kernel gives the mount up", dead);
}

#[test]
fn a_file_opened_where_a_mount_is_bound_to_holds_its_device() {
    let mut server = Launch::ram("1M").mounted().start();
    let bound = Mounted::new(&[&"--bind", &place_of(&server)]);
    let file = both(&bound.join("ram0/disk"));
    server.spillway(&["stop", "ram0"]).refused(BUSY, &me());
    file.write_all_at(&[5; 512], 0).expect("it still works");
    assert!(server.file("ram0").exists(), "nothing was unmounted");
    drop(file);
    until("the file is closed", || server.spillway(&["stop", "ram0"]).code.filter(|code| *code == 0));
    assert!(server.ends().success());
}

/// A shell in a mount namespace of its own, with a copy of its server's mount.
struct Apart {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Apart {
    fn new(server: &Server) -> Self {
        let script = r#"exec 7<"$2"; echo open; read line; exec 7<&-; echo closed; read line"#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &[WITHOUT_OTHERS, script].concat()]);
        command.arg("sh").arg(server.folder().path()).arg(server.file("ram0"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare runs");
        let orders = child.stdin.take().expect("a pipe");
        let said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, orders, said }
    }

    fn says(&mut self, word: &str) {
        let line = self.said.next().expect("it still speaks").expect("a line");
        assert_eq!(line, word);
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_mount_namespace_made_after_it_neither_holds_a_mount_nor_hides_an_open_file() {
    let mut server = Launch::ram("1M").mounted().start();
    let mut apart = Apart::new(&server);
    apart.says("open");
    let pid = apart.child.id();
    server.spillway(&["stop", "ram0"]).refused(BUSY, &format!("(pid {pid})"));
    apart.orders.write_all(b"\n").expect("it listens");
    apart.says("closed");
    until("the file is closed", || server.spillway(&["stop", "ram0"]).code.filter(|code| *code == 0));
    assert!(server.ends().success());
    let log = server.log();
    assert!(log.contains(&format!("namespace of process {pid}")), "{log}");
}

#[test]
fn what_others_mounted_over_a_mount_is_left_alone() {
    let mut server = Launch::ram("1M").mounted().start();
    let place = place_of(&server);
    mount(&[&"-t", &"tmpfs", &"none"], &place);
    fs::write(place.join("file"), "theirs").expect("a file system");
    server.spillway(&["stop", "ram0"]).refused(BUSY, &format!("a mount at {}", place.display()));
    server.signal(Signal::TERM);
    server.says("is in use");
    assert!(server.lives());
    assert_eq!(fs::read_to_string(place.join("file")).expect("it is there"), "theirs");
    tool::unmount(&place);
    assert!(server.ends().success());
    assert!(!is_mounted(&place));
}

/// What was open when a mount was aborted holds nothing, and the dead mount goes with the server.
#[test]
fn a_mount_that_was_aborted_is_unmounted_at_the_end() {
    let mut server = Launch::ram("1M").mounted().start();
    let place = place_of(&server);
    let file = both(&server.file("ram0"));
    FuseConnection::of(&place).abort();
    assert_eq!(errno(file.read_at(&mut [0; 512], 0)), Errno::NOTCONN);
    until("its files are closed", || server.spillway(&["reset", "ram0"]).code.filter(|code| *code == 0));
    assert!(is_mounted(&place));
    server.spillway(&["stop", "ram0"]).well();
    assert!(server.ends().success());
    assert!(!is_mounted(&place));
}
