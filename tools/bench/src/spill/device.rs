//! A RAM disk that spills to the disk.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::medium::{Medium, text};
use crate::peers::fio::{Contender, case, fio};
use crate::peers::servers::{Folder, binary, server};

pub(super) struct Device {
    pub(super) contender: Contender,
    pub(super) bytes: u64,
    spillway: PathBuf,
    sockets: Folder,
}

impl Device {
    /// One of `bytes`, with so much memory, that spills to `spill`, with so many I/Os of write-back in flight.
    pub(super) fn start(bytes: u64, memory: u64, spill: &Medium, depth: usize) -> Result<Self> {
        let (sockets, spillway) = (Folder::new()?, binary()?);
        let room = if let Medium::File(_, bytes) = spill {
            format!(", spill_size = {bytes}")
        } else {
            String::new()
        };
        // The device before was killed, and has left the file.
        let spill = format!("spill = \"{}\", spill_retake = true{room}", text(spill.path())?);
        let device = format!(
            "memory = {memory}\n[[device]]\nname = \"ram0\"\n\
             origin = {{ kind = \"zram\", disksize = {bytes}, writeback_depth = {depth}, {spill} }}\n"
        );
        let config = sockets.0.join("serve.toml");
        fs::write(&config, device)?;
        let words = [text(&spillway)?, "serve", text(&config)?, "--socket", "SOCKET"];
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

    /// Writes random pages to the first `bytes`.
    pub(super) fn fill(&self, bytes: u64) -> Result<()> {
        let random = format!("--size={bytes} --offset_increment=0 --buffer_compress_percentage=0");
        fio(&self.contender, &case("fill", "write", 1024, 1, 8), &random).map(|_| ())
    }
}
