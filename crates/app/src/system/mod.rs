//! What a server asks of the system for its own process, and how the kernel's texts of a process are read.

use spillway_core::Error;

use crate::exit::{Failure, refused};

pub(crate) mod cgroup;
pub(crate) mod daemon;
pub(crate) mod service;

/// Each client takes a descriptor: takes as many as the system allows.
pub(crate) fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(why) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays at {:?}: {why}", limit.current);
    }
}

/// Locks the memory of this process, with what its threads use later. Before a thread is started, as that takes room for its stack.
pub(crate) fn lock_memory() -> Result<(), Failure> {
    let named = |error: Error| Error::new(error.kind, format!("lock_memory: {}", error.message()));
    spillway_io::memory::lock().map_err(|error| refused(named(error)))
}

/// A file system of this machine may stand on a device here, by a loop device or the kernel's NBD: memory that this server asks for must not
/// wait until that file system has written something. Threads that are started later inherit it. It takes CAP_SYS_RESOURCE.
pub(crate) fn become_io_flusher() {
    if let Err(why) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(
            "the kernel may write to file systems on these devices to find memory for this server: {why}"
        );
    }
}

/// The value in a line `FIELD: VALUE`.
pub(crate) fn field_of<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
}

/// A size in such a line, in bytes.
pub(crate) fn bytes_of(text: &str, field: &str) -> Option<u64> {
    let kib: u64 = field_of(text, field)?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Capabilities by their numbers in `linux/capability.h`.
pub(crate) const CAP_IPC_LOCK: u32 = 14;
pub(crate) const CAP_SYS_ADMIN: u32 = 21;

/// With it, a server becomes an I/O flusher (PR_SET_IO_FLUSHER): memory that it asks for does not wait for I/O.
pub(crate) const CAP_SYS_RESOURCE: u32 = 24;

/// Whether a set of capabilities in the status of a process has one.
pub(crate) fn has_capability(status: &str, set: &str, capability: u32) -> bool {
    assert!(capability < 64, "a set has 64 bits, not {capability}");
    let bits = field_of(status, set).and_then(|text| u64::from_str_radix(text, 16).ok());
    bits.is_some_and(|bits| bits >> capability & 1 == 1)
}

/// The first two numbers of the version of a kernel.
pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
