//! Who may connect to a unix socket: the rights of its file.

use std::ffi::CString;
use std::fs::Permissions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::ptr;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, chownat, fstat, open};
use rustix::process::geteuid;

/// Mode of a socket file, and its group where that is another than the process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// The bits of `chmod`; to connect takes the right to write.
    pub mode: u32,
    /// Number of the group.
    pub group: Option<u32>,
}

impl SocketAccess {
    /// For the owner: what a socket file has until it has the rights that were asked for.
    pub const OWNER_ONLY: Self = Self { mode: 0o600, group: None };
}

impl From<u32> for SocketAccess {
    fn from(mode: u32) -> Self {
        Self { mode, group: None }
    }
}

impl SocketAccess {
    /// Gives these rights to the socket file at `path`, which is the owner's alone. The group comes first, so that nobody has a right
    /// in between that was not asked for. Another file in its place is left alone.
    pub(crate) fn give(self, path: &Path) -> io::Result<()> {
        let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || stat.st_uid != geteuid().as_raw() {
            return Err(io::Error::other("another file was put in its place"));
        }
        if let Some(group) = self.group {
            chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
        }
        let file = format!("/proc/self/fd/{}", file.as_raw_fd());
        std::fs::set_permissions(file, Permissions::from_mode(self.mode))
    }
}

/// Longest entry of the list of groups in bytes.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// The number of a group by its name, or by its number. The error is the system's; `None` where there is no such group.
pub fn group_id(name: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = name.parse() {
        // The greatest number means none to chown.
        return Ok(Some(number).filter(|&number| number != u32::MAX));
    }
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut space = vec![0u8; 1024];
    loop {
        // SAFETY: all fields may be zero or null.
        let (mut group, mut found): (libc::group, _) = (unsafe { std::mem::zeroed() }, ptr::null_mut());
        // SAFETY: the name ends with a NUL, the space is as long as is said, and all of it lives during the call.
        let error = unsafe {
            libc::getgrnam_r(name.as_ptr(), &mut group, space.as_mut_ptr().cast(), space.len(), &mut found)
        };
        match error {
            0 => return Ok((!found.is_null()).then_some(group.gr_gid)),
            libc::ERANGE if space.len() < ENTRY_BYTES_MAX => space.resize(space.len() * 4, 0),
            // What some systems say of a name that they do not have.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Listener;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn groups_have_names_and_numbers() {
        assert_eq!(group_id("root").unwrap(), Some(0));
        assert_eq!(group_id("4711").unwrap(), Some(4711));
        for name in ["", "no-such-group", "4294967295", "4294967296", "-1", "a\0b"] {
            assert_eq!(group_id(name).unwrap(), None, "{name:?}");
        }
    }

    /// The group comes first: with the mode, the group that the file has by itself would have the rights meant for another.
    #[test]
    fn a_group_that_cannot_be_given_gives_no_rights_either() {
        let path = std::env::temp_dir().join(format!("spillway-{}-group.sock", std::process::id()));
        let nobody = crate::fuse::User { uid: 65534, gid: 65534 };
        let given = nobody.run(|| {
            let _socket = std::os::unix::net::UnixListener::bind(&path)?;
            std::fs::set_permissions(&path, Permissions::from_mode(SocketAccess::OWNER_ONLY.mode))?;
            Ok(SocketAccess { mode: 0o666, group: Some(0) }.give(&path).map_err(|why| why.kind()))
        });
        let found = std::fs::symlink_metadata(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(given.unwrap(), Err(io::ErrorKind::PermissionDenied));
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o600, 65534, 65534));
    }

    /// Whatever the umask is. A look at any moment sees the owner's rights alone, or what was asked for.
    #[test]
    fn a_socket_never_has_wider_rights_than_were_asked_for() {
        let path = std::env::temp_dir().join(format!("spillway-{}-access.sock", std::process::id()));
        let (ended, access) = (AtomicBool::new(false), SocketAccess { mode: 0o664, group: Some(65534) });
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut seen = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    if let Ok(found) = std::fs::symlink_metadata(&path) {
                        let rights = (found.mode() & 0o7777, found.gid());
                        seen.push(rights);
                        seen.dedup();
                    }
                }
                seen
            });
            for _ in 0..2000 {
                let listener = Listener::unix(&path, access).unwrap();
                let found = std::fs::symlink_metadata(&path).unwrap();
                assert_eq!((found.mode() & 0o7777, found.gid()), (0o664, 65534));
                drop(listener);
            }
            ended.store(true, Ordering::Relaxed);
            let seen = watch.join().unwrap();
            let allowed = |&(mode, gid): &(u32, u32)| {
                mode == SocketAccess::OWNER_ONLY.mode || (mode, gid) == (0o664, 65534)
            };
            let wrong = seen.iter().find(|rights| !allowed(rights));
            assert!(!seen.is_empty() && wrong.is_none(), "{wrong:?}");
        });
    }
}
