//! What is mounted where, as the kernel lists it, and which loop devices stand on files below a folder.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where.
    pub(super) place: PathBuf,
    /// The file system's type.
    pub(super) kind: String,
    /// What is mounted; a device for file systems that lie on one.
    pub(super) source: PathBuf,
}

/// The mounts that this process sees, in the order in which they were made; empty where the kernel does not say.
pub(super) fn entries() -> Vec<Entry> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|&byte| byte == b'\n').filter_map(entry).collect()
}

/// A line is `ID PARENT DEVICE ROOT PLACE OPTIONS [TAG...] - KIND SOURCE OPTIONS` (man 5 proc_pid_mountinfo).
fn entry(line: &[u8]) -> Option<Entry> {
    let mut words = line.split(|&byte| byte == b' ');
    let place = unescaped(words.nth(4)?);
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, source) = (words.next()?, unescaped(words.next()?));
    let kind = String::from_utf8_lossy(kind).into_owned();
    let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
    Some(Entry { place: path(place), kind, source: path(source) })
}

/// Where `device` is mounted, the last mount first.
pub fn places_of(device: &Path) -> Vec<PathBuf> {
    let on_device = |entry: Entry| (entry.source == device).then_some(entry.place);
    entries().into_iter().rev().filter_map(on_device).collect()
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, more)) = rest.split_first() {
        let octal =
            more.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match octal {
            Some(digits) => {
                let value = digits.iter().fold(0u32, |sum, digit| sum * 8 + u32::from(digit - b'0'));
                plain.push(value as u8);
                rest = &more[3..];
            }
            None => {
                plain.push(first);
                rest = more;
            }
        }
    }
    plain
}

/// Loop devices over files below `folder`, by the names that the files had when the devices were set up.
pub fn loop_devices_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(devices) = fs::read_dir("/sys/block") else { return Vec::new() };
    let mut found: Vec<PathBuf> = devices
        .filter_map(|device| {
            let name = device.ok()?.file_name();
            let file = fs::read(Path::new("/sys/block").join(&name).join("loop/backing_file")).ok()?;
            let file = Path::new(std::ffi::OsStr::from_bytes(file.trim_ascii_end()));
            file.starts_with(folder).then(|| Path::new("/dev").join(name))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood_with_and_without_tags() {
        let plain = b"36 35 98:0 /root /mnt2 rw,noatime - ext3 /dev/root rw,errors=continue";
        assert_eq!(
            entry(plain).unwrap(),
            Entry { place: "/mnt2".into(), kind: "ext3".into(), source: "/dev/root".into() }
        );
        let tagged = br"37 35 0:44 / /a\040b\134 rw shared:1 master:2 - fuse.spillway spillway rw,user_id=0";
        assert_eq!(
            entry(tagged).unwrap(),
            Entry { place: r"/a b\".into(), kind: "fuse.spillway".into(), source: "spillway".into() }
        );
        assert_eq!(entry(b""), None);
        assert_eq!(entry(b"1 2 3 4 5 6"), None);
    }

    #[test]
    fn the_kernels_own_table_is_understood() {
        let all = entries();
        assert!(all.iter().any(|entry| entry.place == Path::new("/proc") && entry.kind == "proc"), "{all:?}");
    }

    #[test]
    fn a_backslash_that_escapes_nothing_stays() {
        assert_eq!(unescaped(br"a\9\12"), br"a\9\12");
    }
}
