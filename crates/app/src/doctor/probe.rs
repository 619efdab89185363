//! What a file in a folder can do, by a file without a name, which ends with this process at the latest; and O_DIRECT of any file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open, unlink};
use rustix::io::Errno;
use spillway_io::Survey;

use super::finding::Finding;

/// Bytes of the file.
const LEN: u64 = 1 << 20;

/// Those that are written and freed again.
static WRITTEN: [u8; 64 << 10] = [1; 64 << 10];

/// What a file in `folder` can do.
pub(super) fn folder(folder: &Path) -> Vec<Finding> {
    let remedy =
        "No spill file, cache or image can be made here: change the permissions, or name another folder.";
    let probed = without_name(folder).map_err(io::Error::from).and_then(|file| probed(&file));
    probed.unwrap_or_else(|why| vec![Finding::note("files", format!("none can be made ({why})"), remedy)])
}

fn probed(file: &File) -> io::Result<Vec<Finding>> {
    file.set_len(LEN)?;
    file.write_all_at(&WRITTEN, 0)?;
    let open = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let survey = Survey::of(&open).map_err(|error| io::Error::other(error.message().to_owned()))?;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(vec![direct(&survey), holes(fallocate(file, mode, 0, WRITTEN.len() as u64))])
}

/// A file in `folder` that is gone when it is closed. Where the file system makes none without a name, it has one for a moment.
fn without_name(folder: &Path) -> Result<File, Errno> {
    let private = Mode::RUSR | Mode::WUSR;
    match open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, private) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => named_for_a_moment(folder, private),
        outcome => outcome.map(File::from),
    }
}

fn named_for_a_moment(folder: &Path, mode: Mode) -> Result<File, Errno> {
    let path = folder.join(format!(".spillway-doctor-{}", std::process::id()));
    let file = open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC, mode)?;
    unlink(&path)?;
    Ok(file.into())
}

fn holes(punched: Result<(), Errno>) -> Finding {
    let remedy = "Discards, and pages that leave a spill file, free no space on this file system.";
    match punched {
        Ok(()) => Finding::ok("holes", "can be punched: discards free space"),
        Err(why) => Finding::note("holes", format!("cannot be punched ({})", io::Error::from(why)), remedy),
    }
}

/// Whether a server reaches a file or device past the kernel's page cache.
pub(super) fn direct(survey: &Survey) -> Finding {
    let effect =
        "The kernel's page cache lies below: data is cached twice, in memory that --memory does not count.";
    match &survey.direct {
        Ok(block) if survey.len.is_multiple_of(*block) => {
            Finding::ok("O_DIRECT", format!("works, in blocks of {block}"))
        }
        Ok(block) => {
            let found = format!("not used: {} bytes are no whole blocks of {block}", survey.len);
            Finding::note("O_DIRECT", found, format!("{effect} For whole blocks: truncate -s %{block}."))
        }
        Err(why) => Finding::note("O_DIRECT", format!("refused ({why})"), effect),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn nothing_is_left_in_a_folder() {
        let scratch = Scratch::new("probed");
        let found = folder(scratch.path());
        assert_eq!(found.iter().map(|finding| finding.check).collect::<Vec<_>>(), ["O_DIRECT", "holes"]);
        let file = named_for_a_moment(scratch.path(), Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(probed(&file).unwrap(), found, "a file without a name is like any other");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_takes_no_files_says_why() {
        let found = folder(Path::new("/proc"));
        assert!(found.len() == 1 && found[0].found.starts_with("none can be made ("), "{found:?}");
    }

    #[test]
    fn holes_that_cannot_be_punched_are_a_note() {
        assert_eq!(holes(Ok(())).status, Status::Ok);
        let refused = holes(Err(Errno::OPNOTSUPP));
        assert!(refused.status == Status::Note && refused.found.contains("not supported"), "{refused:?}");
    }

    #[test]
    fn o_direct_that_is_refused_or_not_used_says_what_follows() {
        let survey = |len, direct| Survey { len, direct, users: Vec::new() };
        assert!(
            direct(&survey(4096, Err(Errno::INVAL.into()))).remedy.expect("a note").contains("cached twice")
        );
        assert!(direct(&survey(5000, Ok(512))).remedy.expect("a note").contains("truncate -s %512"));
        assert_eq!(direct(&survey(4096, Ok(4096))), Finding::ok("O_DIRECT", "works, in blocks of 4096"));
    }
}
