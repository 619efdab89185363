//! NBD servers of others, whose exports are the origins of devices under test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::{Scratch, text, until};

/// A server that can be killed and started again. Dropping it kills it.
pub struct Upstream {
    folder: Arc<Scratch>,
    program: &'static str,
    arguments: Vec<String>,
    child: Child,
}

impl Upstream {
    /// `qemu-nbd` over the raw image `file`, which discards; one client at a time unless `more` allows others.
    pub fn qemu(file: &Path, more: &[&str]) -> Self {
        Self::with("qemu-nbd", |socket, pid| {
            let image = ["-t", "-f", "raw", "--discard=unmap", "-k", socket, "--pid-file", pid];
            words(&[&image, more, &[text(file)]])
        })
    }

    /// `nbdkit` with filters, a plugin and parameters.
    pub fn nbdkit(words_of_it: &[&str]) -> Self {
        Self::with("nbdkit", |socket, pid| words(&[&["-f", "-U", socket, "-P", pid], words_of_it]))
    }

    /// `nbdkit` over the raw image `file`.
    pub fn nbdkit_file(file: &Path) -> Self {
        Self::nbdkit(&["file", text(file)])
    }

    fn with(program: &'static str, arguments: impl FnOnce(&str, &str) -> Vec<String>) -> Self {
        let folder = Arc::new(Scratch::new());
        let arguments = arguments(text(&socket(&folder)), text(&pid_file(&folder)));
        let child = start(program, &arguments, &folder);
        Self { folder, program, arguments, child }
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        socket(&self.folder)
    }

    /// The URI of its only export.
    pub fn uri(&self) -> String {
        uri(&self.socket(), "")
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("it is our child");
    }

    /// Starts it after its end.
    pub fn restart(&mut self) {
        for left in [socket(&self.folder), pid_file(&self.folder)] {
            let _ = fs::remove_file(left);
        }
        self.child = start(self.program, &self.arguments, &self.folder);
    }

    /// Waits until it has ended by itself.
    pub fn ends(&mut self) {
        let child = &mut self.child;
        until("the upstream server ends", || child.try_wait().expect("it is our child"));
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            eprintln!("{} said:\n{log}", self.program);
        }
    }
}

/// The URI of an export of the server at `socket`.
pub fn uri(socket: &Path, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

fn words(parts: &[&[&str]]) -> Vec<String> {
    parts.concat().into_iter().map(str::to_owned).collect()
}

fn socket(folder: &Scratch) -> PathBuf {
    folder.join("upstream.sock")
}

fn pid_file(folder: &Scratch) -> PathBuf {
    folder.join("upstream.pid")
}

/// Both write their pid once they listen. A client that connects only to look could be the last one that a server waits for.
fn start(program: &'static str, arguments: &[String], folder: &Scratch) -> Child {
    let log =
        fs::File::options().append(true).create(true).open(folder.join("log")).expect("the folder is ours");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut child = command.spawn().unwrap_or_else(|why| panic!("{program} is not installed: {why}"));
    until("the upstream server listens", || {
        let ended = child.try_wait().expect("it is our child");
        assert!(
            ended.is_none(),
            "{program} ended: {}",
            fs::read_to_string(folder.join("log")).unwrap_or_default()
        );
        let listens = fs::read_to_string(pid_file(folder)).is_ok_and(|pid| pid.ends_with('\n'));
        (listens && socket(folder).exists()).then_some(())
    });
    child
}
