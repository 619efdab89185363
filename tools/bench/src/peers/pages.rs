//! What is written: pages as users have them, and fio's.
//!
//! Zeros and repeated bytes would measure the same-filled check, so every set says how well it compresses.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use spillway_core::random::Random;

use super::lz4::lz4;
use crate::measure::results;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// A named set of pages.
pub(crate) struct Pages {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
}

impl Pages {
    pub(crate) fn count(&self) -> usize {
        self.bytes.len() / PAGE
    }

    pub(crate) fn page(&self, index: usize) -> &[u8] {
        let at = index % self.count() * PAGE;
        &self.bytes[at..at + PAGE]
    }
}

/// The set, once the report knows it: its bytes, and how well lz4 compresses each 64th of its pages.
fn noted(set: Pages) -> Result<Pages> {
    results::set(set.name, set.bytes.len(), || {
        let mut out = vec![0; 2 * PAGE];
        let pages = || set.bytes.chunks_exact(PAGE).step_by(64);
        let packed: usize = pages().map(|page| (lz4(page, &mut out) as usize).min(PAGE)).sum();
        (pages().count() * PAGE) as f64 / packed as f64
    })?;
    Ok(set)
}

/// Programs and shared libraries of this system.
pub(crate) fn elf(bytes: usize) -> Result<Pages> {
    collect("ELF files", &["/usr/bin", "/usr/lib", "/usr/sbin"], bytes, |head| head.starts_with(b"\x7fELF"))
}

/// Text of this system: scripts, documentation, headers.
pub(crate) fn text(bytes: usize) -> Result<Pages> {
    let printable = |head: &[u8]| head.iter().all(|&byte| byte >= 32 || byte == b'\n' || byte == b'\t');
    collect("text", &["/usr/share", "/usr/include", "/usr/lib/python3"], bytes, printable)
}

/// What fio writes with `buffer_compress_percentage=50`: half noise, half zeros.
pub(crate) fn half(bytes: usize) -> Result<Pages> {
    let (mut random, mut set) = (Random(1), vec![0; bytes]);
    for page in set.chunks_mut(PAGE) {
        page[..PAGE / 2].chunks_mut(8).for_each(|word| word.copy_from_slice(&random.draw().to_le_bytes()));
    }
    noted(Pages { name: "fio, 50 %", bytes: set })
}

/// The writable anonymous memory of a Python interpreter that has parsed its own library.
pub(crate) fn heap() -> Result<Pages> {
    const PROGRAM: &str = "import ast, glob, os, sys\n\
        kept = [ast.parse(open(f, errors='replace').read()) for f in sorted(glob.glob(os.path.dirname(os.__file__) + '/*.py'))[:60]]\n\
        print('ready', flush=True)\nsys.stdin.read()";
    let mut child = Command::new("python3")
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("python3 cannot be started")?;
    let mut ready = [0; 5];
    child.stdout.as_mut().context("a pipe was asked for")?.read_exact(&mut ready)?;
    let bytes = anonymous_memory(child.id());
    drop(child.stdin.take().map(|mut stdin| stdin.write_all(b"\n")));
    child.wait()?;
    noted(Pages { name: "a live heap", bytes: bytes? })
}

fn anonymous_memory(pid: u32) -> Result<Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut memory = fs::File::open(format!("/proc/{pid}/mem"))?;
    let mut bytes = Vec::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !words[1].starts_with("rw") || words.len() > 5 && words[5] != "[heap]" {
            continue;
        }
        let (start, end) = words[0].split_once('-').context("a range in /proc/PID/maps")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        memory.seek(SeekFrom::Start(start))?;
        let at = bytes.len();
        bytes.resize(at + (end - start) as usize, 0);
        if memory.read_exact(&mut bytes[at..]).is_err() {
            bytes.truncate(at);
        }
    }
    // Pages that were never touched are not in memory, and would be holes in any store.
    Ok(bytes
        .chunks_exact(PAGE)
        .filter(|page| page.iter().any(|&byte| byte != 0))
        .flatten()
        .copied()
        .collect())
}

fn collect(name: &'static str, roots: &[&str], wanted: usize, fits: impl Fn(&[u8]) -> bool) -> Result<Pages> {
    let mut bytes = Vec::new();
    let mut queue: VecDeque<PathBuf> = roots.iter().map(PathBuf::from).collect();
    while let Some(folder) = queue.pop_front() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        let mut paths: Vec<_> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        paths.sort();
        for path in paths {
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                queue.push_back(path);
            } else {
                add(&path, &fits, &mut bytes);
            }
            if bytes.len() >= wanted {
                bytes.truncate(wanted);
                return noted(Pages { name, bytes });
            }
        }
    }
    ensure!(bytes.len() >= PAGE * 1024, "this system has too few files for the set {name:?}");
    noted(Pages { name, bytes })
}

/// Appends the whole pages of a file that is larger than a page and looks right.
fn add(path: &Path, fits: &impl Fn(&[u8]) -> bool, bytes: &mut Vec<u8>) {
    let Ok(content) = fs::read(path) else { return };
    if content.len() >= PAGE && fits(&content[..256]) {
        bytes.extend(&content[..content.len() / PAGE * PAGE]);
    }
}
