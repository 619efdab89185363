//! librados and librbd, loaded when first needed: the program starts without them.
//!
//! The functions are those of `rados/librados.h` and `rbd/librbd.h` of Ceph 14 (2019) and later. What each asks of its caller is said once here;
//! the other files of this folder are the only callers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use spillway_core::{Error, Kind};

use crate::memory::keep_blocks_of_ceph;

/// A client of a cluster (`rados_t`).
pub(super) type ClusterHandle = *mut c_void;
/// A pool as a client uses it (`rados_ioctx_t`).
pub(super) type PoolHandle = *mut c_void;
/// An open image (`rbd_image_t`).
pub(super) type ImageHandle = *mut c_void;
/// A call whose end is told by a callback (`rbd_completion_t`).
pub(super) type RawCompletion = *mut c_void;

/// Called by a thread of librbd once a call has ended (`rbd_callback_t`).
pub(super) type OnEnd = extern "C" fn(RawCompletion, *mut c_void);
/// Called by a thread of librbd once the header of the image has changed (`rbd_update_callback_t`).
pub(super) type OnChange = extern "C" fn(*mut c_void);
/// Called with what is done of how much; 0 goes on (`librbd_progress_fn_t`).
pub(super) type OnProgress = extern "C" fn(u64, u64, *mut c_void) -> c_int;
/// Called for each extent that is stored (1) or not (0) by the thread that asked; not 0 ends the list with that result.
pub(super) type OnExtent = extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// What `rbd_stat` says (`rbd_image_info_t`).
#[repr(C)]
pub(super) struct ImageState {
    pub(super) size: u64,
    pub(super) object_bytes: u64,
    pub(super) objects: u64,
    pub(super) order: c_int,
    pub(super) block_name_prefix: [c_char; 24],
    pub(super) parent_pool: i64,
    pub(super) parent_name: [c_char; 96],
}

/// A client that has the image open (`rbd_image_watcher_t`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Watcher {
    pub(super) address: *mut c_char,
    pub(super) id: i64,
    pub(super) cookie: u64,
}

/// An option of an image as it is in effect (`rbd_config_option_t`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConfigOption {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    /// One of `rbd_config_source_t`: see [`SOURCE_CONFIG`].
    pub(super) source: c_int,
}

/// The configuration of this client says so; 1 is the pool.
pub(super) const SOURCE_CONFIG: c_int = 0;
/// The image says so.
pub(super) const SOURCE_IMAGE: c_int = 2;

/// Bit of `rbd_get_features`: one client at a time may write.
pub(super) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// Bit of `rbd_get_features`: stripes are not whole objects.
pub(super) const FEATURE_STRIPING: u64 = 1 << 1;
/// Bit of `rbd_get_features`: the copy of a mirror by snapshots, which nobody else writes.
pub(super) const FEATURE_NON_PRIMARY: u64 = 1 << 10;
/// The mode of a lock that one client has.
pub(super) const LOCK_EXCLUSIVE: c_int = 0;
/// Flag of `rbd_aio_write_zeroes`: what is zeroed stays allocated.
pub(super) const ZEROES_ALLOCATED: c_int = 1;

/// The files, and the Debian package that has each.
const RADOS: (&CStr, &str) = (c"librados.so.2", "librados2");
const RBD: (&CStr, &str) = (c"librbd.so.1", "librbd1");

macro_rules! functions {
    (
        $(#[$of:meta])* $holder:ident:
        $($library:ident { $($(#[$about:meta])* fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)* })*
    ) => {
        $(#[$of])*
        pub(super) struct $holder {
            $($($(#[$about])* pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl $holder {
            fn load() -> Result<Self, String> {
                Ok(Self {
                    $($($name: {
                        let symbol = symbol($library, stringify!($name))?;
                        // SAFETY: the library declares a function of that name with these arguments and this result.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(symbol)
                        }
                    },)*)*
                })
            }
        }
    };
}

functions! {
    /// The functions that every library has.
    Library:
    RADOS {
        /// Makes a client; the name may be null for `admin`. To be ended by `rados_shutdown`.
        fn rados_create(*mut ClusterHandle, *const c_char) -> c_int;
        /// Before `rados_connect`; null looks where Ceph's tools do.
        fn rados_conf_read_file(ClusterHandle, *const c_char) -> c_int;
        /// Before `rados_connect`, by one thread of the process at a time; null is `CEPH_ARGS`.
        fn rados_conf_parse_env(ClusterHandle, *const c_char) -> c_int;
        /// Before `rados_connect`.
        fn rados_conf_set(ClusterHandle, *const c_char, *const c_char) -> c_int;
        /// Once; blocks up to `client_mount_timeout`.
        fn rados_connect(ClusterHandle) -> c_int;
        /// Last, with no pool left. Blocks.
        fn rados_shutdown(ClusterHandle);
        /// Writes at most so many bytes, of which 37 are needed; returns how many, or an error.
        fn rados_cluster_fsid(ClusterHandle, *mut c_char, usize) -> c_int;
        /// Connected; to be ended by `rados_ioctx_destroy`.
        fn rados_ioctx_create(ClusterHandle, *const c_char, *mut PoolHandle) -> c_int;
        /// Before the pool is used.
        fn rados_ioctx_set_namespace(PoolHandle, *const c_char);
        /// Before an image is opened: where the pool is full, changes that need room fail, and others are carried out. Without it all wait.
        fn rados_set_osdmap_full_try(PoolHandle);
        /// The number of the pool.
        fn rados_ioctx_get_id(PoolHandle) -> i64;
        /// Has the object of that name make a call of that class, with so many bytes; writes at most so many, and returns how many; -ERANGE
        /// where there are more. Blocks.
        fn rados_exec(
            PoolHandle, *const c_char, *const c_char, *const c_char, *const c_char, usize, *mut c_char, usize
        ) -> c_int;
        /// With no image left.
        fn rados_ioctx_destroy(PoolHandle);
    }
    RBD {
        /// Writes the version of the library: three numbers.
        fn rbd_version(*mut c_int, *mut c_int, *mut c_int);
        /// Blocks; the snapshot may be null. To be ended by `rbd_close`.
        fn rbd_open(PoolHandle, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        /// The same, and nothing is written.
        fn rbd_open_read_only(PoolHandle, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        /// Blocks until every call has ended; gives the lock back.
        fn rbd_close(ImageHandle) -> c_int;
        /// Fills the structure, of which the size is given. May block.
        fn rbd_stat(ImageHandle, *mut ImageState, usize) -> c_int;
        /// Gives the image that size, by the client that has the lock; makes it shorter, with what is behind lost, only where told so. The
        /// function is called as it goes. Blocks.
        fn rbd_resize2(ImageHandle, u64, bool, OnProgress, *mut c_void) -> c_int;
        /// May block.
        fn rbd_get_features(ImageHandle, *mut u64) -> c_int;
        /// Writes how many bytes come from the parent; 0 without one. May block.
        fn rbd_get_overlap(ImageHandle, *mut u64) -> c_int;
        /// Writes at most so many bytes, with a zero at the end.
        fn rbd_get_id(ImageHandle, *mut c_char, usize) -> c_int;
        /// Takes the lock and keeps it. Blocks.
        fn rbd_lock_acquire(ImageHandle, c_int) -> c_int;
        /// Writes whether this client has the lock, as far as it knows. May block.
        fn rbd_is_exclusive_lock_owner(ImageHandle, *mut c_int) -> c_int;
        /// Writes the mode and at most so many names, and how many; -ERANGE where there are more. Blocks.
        fn rbd_lock_get_owners(ImageHandle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        /// Frees so many names.
        fn rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
        /// Takes the lock from that owner, who can write no more. Blocks.
        fn rbd_lock_break(ImageHandle, c_int, *const c_char) -> c_int;
        /// Writes at most so many watchers, and how many; -ERANGE where there are more. Blocks.
        fn rbd_watchers_list(ImageHandle, *mut Watcher, *mut usize) -> c_int;
        /// Frees what so many watchers hold.
        fn rbd_watchers_list_cleanup(*mut Watcher, usize);
        /// Has a function called with the argument; writes the handle of that. Blocks.
        fn rbd_update_watch(ImageHandle, *mut u64, OnChange, *mut c_void) -> c_int;
        /// The function is not called any more once this has returned. Blocks.
        fn rbd_update_unwatch(ImageHandle, u64) -> c_int;
        /// Lists extents of a range, changed since a snapshot or, if that is null, stored at all. Blocks.
        fn rbd_diff_iterate2(ImageHandle, *const c_char, u64, u64, u8, u8, OnExtent, *mut c_void) -> c_int;
        /// Writes at most so many bytes with a zero at the end, and how many; -ENOENT where there is no such key. Blocks.
        fn rbd_metadata_get(ImageHandle, *const c_char, *mut c_char, *mut usize) -> c_int;
        /// Blocks.
        fn rbd_metadata_set(ImageHandle, *const c_char, *const c_char) -> c_int;
        /// A completion, to be released once.
        fn rbd_aio_create_completion(*mut c_void, OnEnd, *mut RawCompletion) -> c_int;
        /// The result, once it has ended: bytes of a read, 0, or a negative errno.
        fn rbd_aio_get_return_value(RawCompletion) -> isize;
        /// The library may keep it until the call has ended.
        fn rbd_aio_release(RawCompletion);
        /// The memory stays as it is until the call has ended. Where this and the next ones fail, the completion never ends.
        fn rbd_aio_read(ImageHandle, u64, usize, *mut c_char, RawCompletion) -> c_int;
        /// The memory stays as it is until the call has ended.
        fn rbd_aio_write(ImageHandle, u64, usize, *const c_char, RawCompletion) -> c_int;
        /// Does nothing to what is smaller than `rbd_discard_granularity_bytes`, 64 KiB.
        fn rbd_aio_discard(ImageHandle, u64, u64, RawCompletion) -> c_int;
        /// Exact, whatever the granularity.
        fn rbd_aio_write_zeroes(ImageHandle, u64, usize, RawCompletion, c_int, c_int) -> c_int;
        /// Ends once all that was written is durable.
        fn rbd_aio_flush(ImageHandle, RawCompletion) -> c_int;
    }
}

functions! {
    /// Functions that old libraries may lack.
    ConfigLibrary:
    RBD {
        /// Writes at most so many options, and how many; -ERANGE where there are more, and then nothing but their number. Blocks.
        fn rbd_config_image_list(ImageHandle, *mut ConfigOption, *mut c_int) -> c_int;
        /// Frees what so many options hold.
        fn rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
    }
}

functions! {
    /// The same, from Ceph 15 on.
    SnapshotLibrary:
    RBD {
        /// Writes the number of the snapshot of that name, as far as the library knows. May block.
        fn rbd_snap_get_id(ImageHandle, *const c_char, *mut u64) -> c_int;
    }
}

/// Whether this program is linked statically: then it can load no library.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");

/// Loads the libraries, as the first image would. [`Kind::NotFound`] names the package that is missing, after the last colon of its text.
pub fn load() -> Result<(), Error> {
    Library::get().map(drop)
}

static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();

/// Ends the process at once by that code if the libraries are loaded. Their threads may wait for a cluster, and break down where the process
/// takes itself apart around them.
pub fn exit_if_loaded(code: u8) {
    if LIBRARY.get().is_some() {
        // SAFETY: what is left to be done at an exit is the libraries' own.
        unsafe { libc::_exit(i32::from(code)) }
    }
}

impl Library {
    /// The functions; loads them when first called. [`Kind::NotFound`] names the package that is missing.
    pub(super) fn get() -> Result<&'static Self, Error> {
        let library = LIBRARY.get_or_init(|| Library::load().inspect(|_| keep_blocks_of_ceph()));
        library.as_ref().map_err(|why| Error::new(Kind::NotFound, why.clone()))
    }
}

impl ConfigLibrary {
    /// The functions, unless the library lacks them.
    pub(super) fn get() -> Option<&'static Self> {
        static FUNCTIONS: OnceLock<Option<ConfigLibrary>> = OnceLock::new();
        FUNCTIONS.get_or_init(|| Self::load().ok()).as_ref()
    }
}

impl SnapshotLibrary {
    /// The functions, unless the library lacks them.
    pub(super) fn get() -> Option<&'static Self> {
        static FUNCTIONS: OnceLock<Option<SnapshotLibrary>> = OnceLock::new();
        FUNCTIONS.get_or_init(|| Self::load().ok()).as_ref()
    }
}

fn symbol((file, package): (&CStr, &str), name: &str) -> Result<*mut c_void, String> {
    // SAFETY: the name ends with a zero. What runs when the library is loaded is the system's own code.
    let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        return Err(absence(&file.to_string_lossy(), package, IS_STATIC));
    }
    assert!(name.starts_with("rbd_") || name.starts_with("rados_"), "{name} is no function of Ceph");
    let text = CString::new(name).expect("a name of a function has no zero");
    // SAFETY: the library is loaded, and never unloaded; the name ends with a zero.
    let symbol = unsafe { libc::dlsym(library, text.as_ptr()) };
    if symbol.is_null() {
        return Err(format!("rbd: {} has no {name}: install a newer {package}", file.to_string_lossy()));
    }
    Ok(symbol)
}

/// Why a library is not there, and the remedy.
fn absence(file: &str, package: &str, is_static: bool) -> String {
    if is_static {
        format!(
            "rbd: needs {file}, which a statically linked spillway cannot load: use a dynamically linked one, such as that of the Debian package"
        )
    } else {
        format!("rbd: needs {file}, which cannot be loaded: install {package}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_a_package_unless_no_library_can_be_loaded() {
        assert!(absence("librbd.so.1", "librbd1", false).ends_with(": install librbd1"));
        let words = absence("librbd.so.1", "librbd1", true);
        assert!(
            words.contains("librbd.so.1, which a statically linked") && !words.contains("install"),
            "{words}"
        );
    }
}
