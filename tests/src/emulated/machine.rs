//! An emulated machine whose first program says lines.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::system::System;

/// How long it may say nothing. A boot takes some seconds where nothing else runs.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// A running machine. Dropping it kills it.
pub(crate) struct Machine {
    qemu: Child,
    lines: Receiver<String>,
    console: String,
}

impl Machine {
    /// Boots `system` with `disks`, in whose order it knows them, and these words.
    pub(crate) fn boot(system: &System, disks: &[&Path], words: &str) -> Self {
        let drive = |disk: &&Path| ["-drive".into(), format!("file={},if=virtio,format=raw", disk.display())];
        Self::boot_with(system, &disks.iter().flat_map(drive).collect::<Vec<_>>(), words)
    }

    /// Boots `system` with further `arguments` of the emulator, and these words.
    pub(crate) fn boot_with(system: &System, arguments: &[String], words: &str) -> Self {
        let console = system.folder().join("console.log").display().to_string();
        let mut command = Command::new("qemu-system-x86_64");
        // One thread for both processors: where each has its own, a kernel that patches its code while it boots may run a half of it.
        let accel = "tcg,thread=single";
        command.args(["-accel", accel, "-m", "512", "-smp", "2", "-no-reboot", "-display", "none"]);
        command.args(["-monitor", "none", "-serial", &format!("file:{console}"), "-serial", "stdio"]);
        command.arg("-kernel").arg(system.kernel()).arg("-initrd").arg(system.initramfs());
        command.args(["-append", &format!("console=ttyS0 quiet panic=-1 no_timer_check {words}")]);
        command.args(arguments);
        let qemu = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut qemu = qemu.expect("qemu-system-x86_64 starts: cargo xtask tools installs it");
        let lines = read(qemu.stdout.take().expect("it is a pipe"));
        Self { qemu, lines, console }
    }

    /// The next line that it says; none once it is off.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(SILENCE_MAX) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("the kernel has said nothing for {SILENCE_MAX:?}: see {}", self.console)
            }
        }
    }

    /// Waits for the line that begins with `word`, and gives the rest of it.
    pub(crate) fn says(&self, word: &str) -> String {
        while let Some(line) = self.line() {
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
            assert!(!line.starts_with("failed"), "the kernel's side {line}: see {}", self.console);
        }
        panic!("the machine is off before it said `{word}`: see {}", self.console)
    }

    /// Ends it at once, whatever it does. Gives what it still said.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.qemu.kill().expect("it is our child");
        self.qemu.wait().expect("it is our child");
        self.lines.iter().collect()
    }

    /// Waits until it is off.
    pub(crate) fn ends(mut self) {
        while self.line().is_some() {}
        let status = self.qemu.wait().expect("it is our child");
        assert!(status.success(), "qemu ended with {status}: see {}", self.console);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Whole lines only: the last one may be cut off.
fn read(stdout: ChildStdout) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        while stdout.read_line(&mut line).is_ok_and(|count| count > 0) && line.ends_with('\n') {
            if sender.send(line.trim().to_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    lines
}
