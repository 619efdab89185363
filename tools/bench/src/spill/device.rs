//! A RAM disk that spills to the disk.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::medium::{Medium, text};
use crate::fio::{Contender, case, fio};
use crate::nbd::{Folder, binary, server};

pub(super) struct Device {
    pub(super) contender: Contender,
    pub(super) bytes: u64,
    spillway: PathBuf,
    sockets: Folder,
}

impl Device {
    /// One of `bytes`, with so much memory, that spills to `spill`.
    pub(super) fn start(bytes: u64, memory: u64, spill: &Medium) -> Result<Self> {
        let (sockets, spillway) = (Folder::new()?, binary()?);
        let [size, memory] = [bytes, memory].map(|bytes| bytes.to_string());
        let mut words = vec![text(&spillway)?, "ram", "--size", &size, "--memory", &memory, "--name", "ram0"];
        words.extend(["--spill", text(spill.path())?, "--socket", "SOCKET"]);
        let room = if let Medium::File(_, bytes) = spill { Some(bytes.to_string()) } else { None };
        words.extend(room.iter().flat_map(|room| ["--spill-size", room]));
        let contender = server("spillway", &sockets.0, "ram0", &words)?;
        Ok(Self { contender, spillway, bytes, sockets })
    }

    fn say(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.spillway);
        command.args(words).env("SPILLWAY_RUNTIME_DIR", &self.sockets.0);
        let output = command.stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().into())
    }

    pub(super) fn set(&self, name: &str, value: &str) -> Result<()> {
        self.say(&["set", "ram0", name, value]).map(|_| ())
    }

    pub(super) fn get(&self, name: &str) -> Result<String> {
        self.say(&["get", "ram0", name])
    }

    /// Writes random pages everywhere.
    pub(super) fn fill(&self) -> Result<()> {
        let random = format!("--size={} --offset_increment=0 --buffer_compress_percentage=0", self.bytes);
        fio(&self.contender, &case("fill", "write", 1024, 1, 8), &random).map(|_| ())
    }

    /// Forgets all that was written.
    pub(super) fn empty(&self) -> Result<()> {
        self.set("reset", "1")?;
        self.set("disksize", &self.bytes.to_string())
    }
}
