//! A running server: started in a folder of its own, killed when the test ends.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::counted::Counts;
use crate::raw::Client;
use crate::tool::{self, Said};
use crate::{Refusal, Scratch, Vitals, binary, counted, until};

/// The folder in a test's own that is mounted.
const MOUNT: &str = "mnt";

/// Exit code as documented.
const BUSY: i32 = 4;

/// Bytes of a read that is one of many.
const PIECE: usize = 1 << 20;

/// A server about to be started.
#[derive(Clone)]
pub struct Launch {
    arguments: Vec<OsString>,
    folder: Arc<Scratch>,
    socket: PathBuf,
    /// The limit that the counting allocator keeps an eye on.
    counted: Option<u64>,
    /// Where its standard output and error go instead of the log of the test.
    stdout: Option<Arc<File>>,
    stderr: Option<Arc<File>>,
    /// The command that starts it, where it is not started at once.
    through: Vec<OsString>,
    /// The defect that the program has.
    mutant: Option<&'static str>,
}

impl Launch {
    /// Any command line; the server is expected to listen on `socket` in the folder.
    pub fn new(arguments: &[&str], folder: Arc<Scratch>, socket: PathBuf) -> Self {
        let arguments = arguments.iter().map(OsString::from).collect();
        let (stdout, stderr, through, mutant) = (None, None, Vec::new(), None);
        Self { arguments, folder, socket, counted: None, stdout, stderr, through, mutant }
    }

    /// `spillway ram` with a device of `size`.
    pub fn ram(size: &str) -> Self {
        let folder = Arc::new(Scratch::new());
        let socket = folder.join("nbd.sock");
        Self::new(&["ram", "--size", size], folder, socket.clone()).with("--socket", socket)
    }

    /// `spillway disk` over `origin`, which lies in `folder`.
    pub fn disk(folder: Arc<Scratch>, origin: &Path) -> Self {
        let socket = folder.join("disk.sock");
        Self::new(&["disk"], folder, socket.clone()).with("--origin", origin).with("--socket", socket)
    }

    /// The same over a new origin with this content, which is returned too.
    pub fn disk_with(content: impl AsRef<[u8]>) -> (Self, PathBuf) {
        let folder = Arc::new(Scratch::new());
        let origin = folder.write("origin.raw", content);
        (Self::disk(folder, &origin), origin)
    }

    /// A device `ram0` of 64 MiB whose reads take so many microseconds.
    pub fn slow(read_us: u64) -> Self {
        let text = format!(
            "[[device]]\nname = \"ram0\"\norigin = {{ kind = \"memory\", size = \"64M\" }}\n\
             layers = [{{ kind = \"delay\", read_us = {read_us} }}]\n"
        );
        Self::serve(Arc::default(), text)
    }

    /// `spillway cache` over `origin` and `cache`, which lie in `folder`.
    pub fn cache(folder: Arc<Scratch>, origin: &Path, cache: &Path) -> Self {
        let socket = folder.join("cache.sock");
        let launch = Self::new(&["cache"], folder, socket.clone()).with("--socket", socket);
        launch.with("--origin", origin).with("--cache", cache)
    }

    /// `spillway serve` with a configuration of `text`, which lies in `folder`.
    pub fn serve(folder: Arc<Scratch>, text: impl AsRef<[u8]>) -> Self {
        let (config, socket) = (folder.write("serve.toml", text), folder.join("serve.sock"));
        let config = config.to_str().expect("paths of tests are text");
        Self::new(&["serve", config], folder, socket.clone()).with("--socket", socket)
    }

    /// Shows the devices as files too; see [`Server::file`].
    pub fn mounted(self) -> Self {
        let place = self.folder.join(MOUNT);
        fs::create_dir_all(&place).expect("the folder is ours");
        self.with("--mount", place)
    }

    /// Adds an option with its value.
    pub fn with(mut self, option: &str, value: impl AsRef<OsStr>) -> Self {
        self.arguments.extend([option.into(), value.as_ref().into()]);
        self
    }

    /// Adds an option without a value.
    pub fn flag(mut self, option: &str) -> Self {
        self.arguments.push(option.into());
        self
    }

    /// Counts the server's memory, which is not to exceed `limit` bytes; see [`Server::counts`].
    pub fn counted(mut self, limit: u64) -> Self {
        self.counted = Some(limit);
        self
    }

    /// Has its standard output go to `file`: [`Server::log`] does not have it.
    pub fn stdout(mut self, file: impl Into<OwnedFd>) -> Self {
        self.stdout = Some(Arc::new(file.into().into()));
        self
    }

    /// The same for its standard error.
    pub fn stderr(mut self, file: impl Into<OwnedFd>) -> Self {
        self.stderr = Some(Arc::new(file.into().into()));
        self
    }

    /// The folder that it is found in.
    pub fn folder(&self) -> Arc<Scratch> {
        self.folder.clone()
    }

    /// Has the server started by another program, in whose place it is then.
    pub fn through(mut self, command: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.through = command.into_iter().map(Into::into).collect();
        self
    }

    /// Has system calls of the server fail from its start.
    pub fn refused(self, refusal: Refusal) -> Self {
        let command = refusal.command(&self.folder);
        self.through(command)
    }

    /// Has the server run as another user, who has no more than so many processes and threads.
    pub fn limited(self, user: u32, processes: usize) -> Self {
        chown(self.folder.path(), Some(user), Some(user)).expect("tests run as root");
        let user = [format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()];
        let limit = ["prlimit".into(), format!("--nproc={processes}")];
        self.through(["setpriv".to_owned()].into_iter().chain(user).chain(limit))
    }

    /// Runs a build with a deliberate defect instead, as server and beside it.
    pub fn with_mutant(mut self, name: &'static str) -> Self {
        self.mutant = Some(name);
        self
    }

    /// Where the server will listen.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Where the mount is, if there is one.
    pub fn mount(&self) -> PathBuf {
        self.folder.join(MOUNT)
    }

    fn command(&self) -> Command {
        let mut command = match (self.counted, self.through.split_first()) {
            (None, Some((program, arguments))) => {
                let mut command = command_in(Path::new(program), &self.folder);
                command.args(arguments).arg(binary::path());
                command
            }
            (None, None) => self.program(),
            (Some(limit), _) => {
                let mut command = command_in(&binary::counted(), &self.folder);
                command.env(counted::FILE, self.counts()).env(counted::LIMIT, limit.to_string());
                command
            }
        };
        command.args(&self.arguments);
        command
    }

    /// The program that users have, or the one with the defect.
    pub fn program(&self) -> Command {
        match self.mutant {
            None => command_in(binary::path(), &self.folder),
            Some(name) => {
                let mut command = command_in(binary::mutant(), &self.folder);
                command.env(binary::MUTANT, name);
                command
            }
        }
    }

    fn counts(&self) -> PathBuf {
        self.folder.join("counts")
    }

    /// Runs a server that is expected to end by itself.
    pub fn run(&self) -> Said {
        tool::finish(&mut self.command())
    }

    /// Starts the server and waits until its socket accepts.
    pub fn start(self) -> Server {
        let (server, ended) = self.attempt();
        assert!(ended.is_none(), "the server ended at its start: {ended:?}\n{}", server.log());
        server
    }

    /// Starts the server and waits until its socket accepts, or it has ended.
    pub fn attempt(self) -> (Server, Option<ExitStatus>) {
        let log =
            self.folder.join(&format!("{}.log", self.socket.file_name().expect("a file").to_string_lossy()));
        let file = File::create(&log).expect("the folder is ours");
        let mut command = self.command();
        let to = |other: &Option<Arc<File>>| {
            other.as_deref().unwrap_or(&file).try_clone().expect("a descriptor can be had twice")
        };
        command.stdin(Stdio::null()).stdout(to(&self.stdout)).stderr(to(&self.stderr));
        let child = command.spawn().expect("the program was built");
        // Only the server has its ends of pipes.
        let null = || File::open("/dev/null").expect("every system has it");
        let launch = Self { stdout: self.stdout.map(|_| Arc::new(null())), stderr: None, ..self };
        let mut server = Server { child, launch, log };
        let ended = until("the server accepts", || server.has_started());
        (server, ended)
    }
}

/// Takes a mount away that a test may have left.
fn detach(place: &Path) {
    if place.symlink_metadata().is_err_and(|why| why.kind() == std::io::ErrorKind::NotFound) {
        return;
    }
    let _ = Command::new("umount").arg("--lazy").arg(place).stderr(Stdio::null()).status();
}

fn command_in(program: &Path, folder: &Scratch) -> Command {
    let mut command = Command::new(program);
    command.env("SPILLWAY_RUNTIME_DIR", folder.path());
    command
}

/// A running server. Dropping it kills it, without asking.
pub struct Server {
    child: Child,
    launch: Launch,
    log: PathBuf,
}

impl Server {
    /// Once it accepts, or has ended: how.
    fn has_started(&mut self) -> Option<Option<ExitStatus>> {
        if let Some(ended) = self.child.try_wait().expect("the server is our child") {
            return Some(Some(ended));
        }
        // The socket of a server that was killed accepts for a moment longer.
        let said = self.launch.stdout.is_some() || self.log().contains(&format!("pid {}", self.child.id()));
        let accepts = said && UnixStream::connect(&self.launch.socket).is_ok();
        accepts.then_some(None)
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("the log was created at the start")
    }

    /// Waits until it has printed `words`: its log has a writer of its own, which may be behind.
    pub fn says(&self, words: &str) {
        until(&format!("the server says '{words}'"), || self.log().contains(words).then_some(()));
    }

    /// Its NBD socket.
    pub fn socket(&self) -> &Path {
        &self.launch.socket
    }

    /// The folder with its sockets.
    pub fn folder(&self) -> Arc<Scratch> {
        self.launch.folder.clone()
    }

    /// The file of a device of [`Launch::mounted`].
    pub fn file(&self, device: &str) -> PathBuf {
        self.launch.mount().join(device).join("disk")
    }

    /// The URI of its default export.
    pub fn uri(&self) -> String {
        self.uri_of("")
    }

    /// The URI of an export by name.
    pub fn uri_of(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// A raw client of its default export.
    pub fn client(&self) -> Client {
        Client::open(self.socket(), "")
    }

    /// Runs `spillway` as a user beside the server.
    pub fn spillway(&self, arguments: &[&str]) -> Said {
        tool::finish(&mut self.command(arguments))
    }

    /// The same, to be run.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.launch.program();
        command.args(arguments);
        command
    }

    /// What its default export holds.
    pub fn content(&self) -> Vec<u8> {
        let mut client = self.client();
        let size = client.size as usize;
        let piece = |at| client.read(at as u64, PIECE.min(size - at)).expect("a read");
        (0..size).step_by(PIECE).flat_map(piece).collect()
    }

    /// Loads an image once clients that have gone are known to be gone.
    pub fn load(&self, arguments: &[&str]) {
        until("other clients have left", || {
            let said = self.spillway(&[&["load"], arguments].concat());
            (said.code != Some(BUSY)).then(|| drop(said.well()))
        });
    }

    /// An attribute of a device, typed.
    pub fn value(&self, device: &str, attribute: &str) -> Value {
        let said = self.spillway(&["get", device, attribute, "--json"]).well();
        let mut values: Value =
            serde_json::from_str(&said.out).unwrap_or_else(|why| panic!("{why}: {}", said.out));
        values[attribute].take()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the kernel says about it.
    pub fn vitals(&self) -> Vitals {
        Vitals::of(self.child.id())
    }

    /// What a counted server has counted, a look at its regions that began after this call included.
    pub fn counts(&self) -> Counts {
        let path = self.launch.counts();
        let read = || Counts::read(&path).expect("a counted server writes its counts").unwrap_or_default();
        let before = read().looks;
        until("the server looks at its regions twice", || Some(read()).filter(|now| now.looks >= before + 2))
    }

    /// Waits until the server holds no more than `count` descriptors.
    pub fn settles_at(&self, count: usize) {
        until("the server closes descriptors", || (self.vitals().descriptors <= count).then_some(()));
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("the kernel's ids fit");
        kill_process(Pid::from_raw(id).expect("an id is not 0"), signal).expect("the server is our child");
        if signal == Signal::STOP {
            until("each of its threads has stopped", || self.is_stopped().then_some(()));
        }
    }

    fn is_stopped(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("the server is our child");
        // One that has ended meanwhile runs no more.
        let status =
            |task: io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("status")).ok();
        tasks.filter_map(status).all(|status| status.contains("State:\tT"))
    }

    /// Waits for the end.
    pub fn ends(&mut self) -> ExitStatus {
        let child = &mut self.child;
        until("the server ends", || child.try_wait().expect("the server is our child"))
    }

    /// Whether it still runs.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().expect("the server is our child").is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        detach(&self.launch.mount());
        if std::thread::panicking() {
            eprintln!("the server said:\n{}", self.log());
        }
    }
}
