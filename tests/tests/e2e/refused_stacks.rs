//! The system refuses calls of a server with a write cache, a page cache, a spill file or a mount: what can be tried again is, errors of files
//! reach who asked, and nothing that was flushed is lost, nor anything read that was not written.
//!
//! `SPILLWAY_REFUSALS=100` draws so many single refusals for each row of a table, besides the one that refuses all calls.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use spillway_tests::refused::{PARTS, Rows, Stack, ends, examine, outlives, says_so};
use spillway_tests::{Launch, PART, Scratch};

/// Bytes of a device.
const SIZE: u64 = PARTS * PART as u64;

const CACHED: Stack = Stack { launch: cached, mounted: false, beside: &["drain", "d"], durable: true };
const PAGED: Stack = Stack { launch: paged, mounted: false, beside: &[], durable: true };
const SPILLING: Stack =
    Stack { launch: spilling, mounted: false, beside: &["set", "d", "writeback", "huge"], durable: false };
const MOUNTED: Stack = Stack { launch: mounted, mounted: true, beside: &[], durable: true };

/// Its folder keeps the files of a server that has ended.
pub(crate) fn sparse(folder: &Scratch, name: &str) -> PathBuf {
    let path = folder.join(name);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    file.and_then(|file| file.set_len(SIZE)).expect("a sparse file");
    path
}

fn cached(folder: Arc<Scratch>) -> Launch {
    let (origin, cache) = (sparse(&folder, "origin"), sparse(&folder, "cache"));
    Launch::cache(folder, &origin, &cache)
}

fn paged(folder: Arc<Scratch>) -> Launch {
    let origin = sparse(&folder, "origin");
    let launch = Launch::disk(folder, &origin).with("--page-cache", "writeback");
    launch.with("--page-cache-bytes-max", "2M")
}

/// Nothing of it outlasts its server, so that it has a folder of its own.
fn spilling(_: Arc<Scratch>) -> Launch {
    let launch = Launch::ram(&SIZE.to_string());
    let spill = launch.folder().join("spill");
    launch.with("--spill", spill).with("--spill-size", "64M")
}

fn mounted(folder: Arc<Scratch>) -> Launch {
    let origin = sparse(&folder, "origin");
    Launch::disk(folder, &origin).with("--page-cache", "none").mounted()
}

/// What a server outlives as if nothing had been.
const BOTH: Rows = &[("statx", &["ENOMEM"]), ("getpeername,getsockopt", &["ENOBUFS"])];
const IO_URING: Rows = &[("io_uring_enter", &["ENOMEM", "EAGAIN", "EBUSY", "EINTR"])];
const POLL: Rows = &[
    ("pwritev2", &["EINTR", "EAGAIN"]),
    ("pread64", &["EINTR", "EAGAIN"]),
    ("fdatasync,fallocate", &["EINTR"]),
];
const MOUNT: Rows = &[("read", &["ENOMEM", "EINTR", "EIO"]), ("writev", &["ENOMEM", "EINTR"])];

/// What its files may say.
const ERRORS: Rows = &[
    ("pwritev2", &["EIO", "ENOSPC"]),
    ("pread64", &["EIO"]),
    ("fdatasync", &["EIO", "ENOSPC"]),
    ("fallocate", &["EIO", "ENOSPC"]),
    ("ftruncate", &["EIO", "ENOSPC"]),
    ("pwritev2,fdatasync,fallocate,ftruncate", &["EIO", "ENOSPC"]),
];

/// Calls of an end.
const END: Rows = &[
    ("recvfrom", &["ENOMEM", "EINTR"]),
    ("sendto", &["ENOBUFS"]),
    ("umount2", &["EBUSY", "EINTR"]),
    ("unlink", &["EIO"]),
    ("statx,open,openat", &["EMFILE"]),
    ("read", &["ENOMEM"]),
    ("clone3", &["EAGAIN"]),
    ("mmap,mprotect,madvise", &["ENOMEM"]),
];

#[test]
fn with_io_uring_a_write_cache_outlives_what_the_system_refuses() {
    examine(&CACHED, "io_uring", &[BOTH, IO_URING], outlives);
}

#[test]
fn with_polling_a_write_cache_outlives_what_the_system_refuses() {
    examine(&CACHED, "poll", &[BOTH, POLL], outlives);
    examine(&CACHED, "poll", &[ERRORS], says_so);
}

#[test]
fn with_polling_a_page_cache_outlives_what_the_system_refuses() {
    examine(&PAGED, "poll", &[BOTH, POLL], outlives);
    examine(&PAGED, "poll", &[ERRORS], says_so);
}

#[test]
fn with_io_uring_a_spill_file_outlives_what_the_system_refuses() {
    examine(&SPILLING, "io_uring", &[BOTH, IO_URING], outlives);
}

#[test]
fn with_polling_a_spill_file_outlives_what_the_system_refuses() {
    examine(&SPILLING, "poll", &[BOTH, POLL], outlives);
    examine(&SPILLING, "poll", &[ERRORS], says_so);
}

#[test]
fn with_io_uring_a_mount_outlives_what_the_system_refuses() {
    examine(&MOUNTED, "io_uring", &[MOUNT, IO_URING], outlives);
}

#[test]
fn with_polling_a_mount_outlives_what_the_system_refuses() {
    examine(&MOUNTED, "poll", &[MOUNT, POLL], outlives);
    examine(&MOUNTED, "poll", &[ERRORS], says_so);
}

#[test]
fn a_server_ends_where_the_system_refuses_calls_of_the_end() {
    for stack in [CACHED, PAGED, SPILLING, MOUNTED] {
        examine(&stack, "io_uring", &[END, IO_URING], ends);
        examine(&stack, "poll", &[END, POLL, ERRORS], ends);
    }
}
