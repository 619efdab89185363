//! What a spill file, or its peer, is written to.
//!
//! A file's room is given back as it comes free, and the file system has to find it again: a peer that writes over what it has written does
//! less work. So both get a loop device each, over a file that was written and with discards turned off. This takes root; without, they are
//! files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::peers::ext4::finish;
use crate::peers::loop_device::LoopDevice;

pub(super) enum Medium {
    /// A file to be made, of so many bytes.
    File(PathBuf, u64),
    Loop(LoopDevice),
}

impl Medium {
    pub(super) fn path(&self) -> &Path {
        match self {
            Medium::File(path, _) => path,
            Medium::Loop(device) => &device.path,
        }
    }
}

/// Media of these bytes for each of two, in files of `folder`, and in words what they are.
pub(super) fn pair(folder: &Path, bytes: [u64; 2]) -> Result<([Medium; 2], String)> {
    let files = [folder.join("spill"), folder.join("peer")];
    if !rustix::process::geteuid().is_root() {
        write_zeroes(&files[1], bytes[1])?;
        let files = [0, 1].map(|nth| Medium::File(files[nth].clone(), bytes[nth]));
        return Ok((files, "files, that of fio written before: loop devices take root".into()));
    }
    let [spill, peer] = [0, 1].map(|nth| over_written(FIRST_LOOP + nth, &files[nth], bytes[nth]));
    let what = "loop devices over files that were written, without discards";
    Ok(([Medium::Loop(spill?), Medium::Loop(peer?)], what.into()))
}

/// Number of the first loop device. A limit of discards stays with the number, and cannot be lifted: one that nobody else is given.
const FIRST_LOOP: usize = 700;

/// A loop device over `file`, which is made and written, whose room stays as it is.
fn over_written(number: usize, file: &Path, bytes: u64) -> Result<LoopDevice> {
    write_zeroes(file, bytes)?;
    let device = LoopDevice::at(format!("/dev/loop{number}").into(), file)?;
    let limit = format!("/sys/block/loop{number}/queue/discard_max_bytes");
    fs::write(&limit, "0").context(limit)?;
    Ok(device)
}

/// Makes a file all of whose blocks are written.
pub(crate) fn write_zeroes(file: &Path, bytes: u64) -> Result<()> {
    let how = ["--name=zeroes", "--rw=write", "--bs=1M", "--iodepth=8", "--ioengine=libaio", "--direct=1"];
    let what = [format!("--filename={}", text(file)?), format!("--size={bytes}"), "--zero_buffers".into()];
    finish(Command::new("fio").args(how).args(what))
}

pub(super) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is text")
}
