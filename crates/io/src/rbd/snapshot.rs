//! The snapshot that an image was opened at, and whether it is still there.
//!
//! librbd does not watch an image that it only reads: what it says of snapshots is what it knew when it opened the image. What a snapshot
//! had reads as zeroes once it was removed, or as what was written since. So the cluster is asked, as librbd asks it: by the number, which
//! another snapshot of that name does not have.

use std::ffi::{CStr, CString, c_char};

use spillway_core::Error;

use super::cluster::{RbdOptions, about, check, text};
use super::image::OpenImage;
use super::library::SnapshotLibrary;

/// The call of the cluster's objects that says what snapshot has a number, with 8 bytes, the lowest first: -ENOENT if none has.
const CLASS: &CStr = c"rbd";
const METHOD: &CStr = c"snapshot_get";

/// Room for what is said of a snapshot, which is not looked at.
const ANSWER_LEN: usize = 4096;

impl OpenImage {
    /// See [`OpenImage::snapshot`]. `None` also for a library that is too old to tell the number.
    pub(super) fn find_snapshot(&self, options: &RbdOptions) -> Result<Option<(CString, u64)>, Error> {
        let (Some(name), Some(library)) = (&options.name.snapshot, SnapshotLibrary::get()) else {
            return Ok(None);
        };
        let (name, mut number) = (text("a snapshot", name)?, 0);
        // SAFETY: the image is open, the name ends with a zero, the place is ours.
        check(unsafe { (library.rbd_snap_get_id)(self.image, name.as_ptr(), &raw mut number) })
            .map_err(|errno| about(options, errno, "its snapshot has no number"))?;
        let header = text("an image", &format!("rbd_header.{}", self.id(options)?))?;
        Ok(Some((header, number)))
    }

    /// ENOENT where the snapshot that it was opened at is gone.
    pub(super) fn check_snapshot(&self) -> Result<(), i32> {
        let Some((header, number)) = &self.snapshot else { return Ok(()) };
        let (asked, mut answer) = (number.to_le_bytes(), [0 as c_char; ANSWER_LEN]);
        // SAFETY: connected, the names end with a zero, and both places have so many bytes.
        let answered = check(unsafe {
            let ((from, len), to) = ((asked.as_ptr().cast(), asked.len()), answer.as_mut_ptr());
            let (header, class, method) = (header.as_ptr(), CLASS.as_ptr(), METHOD.as_ptr());
            (self.library.rados_exec)(self.connection.pool, header, class, method, from, len, to, ANSWER_LEN)
        });
        // Another failure says nothing of it.
        if answered == Err(libc::ENOENT) { Err(libc::ENOENT) } else { Ok(()) }
    }
}
