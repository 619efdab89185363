//! A client of a cluster, and a pool of that: configured, connected and ended by calls that block.

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::time::Duration;

use spillway_core::sync::Mutex;
use spillway_core::{Error, Kind};

use super::library::{ClusterHandle, ImageHandle, Library, PoolHandle};
use super::name::ImageName;
use crate::mutant;

/// How long a cluster is tried to be reached where there is no `--origin-timeout`.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is opened, and how its cluster is reached.
#[derive(Clone, Debug)]
pub struct RbdOptions {
    /// The image.
    pub name: ImageName,
    /// The configuration of Ceph; where its tools look, if there is none.
    pub conf: Option<PathBuf>,
    /// The name of the client, without `client.`; `admin` if there is none.
    pub id: Option<String>,
    /// The file with its key; that of the configuration, if there is none.
    pub keyring: Option<PathBuf>,
    /// Nothing is written, and no lock is taken.
    pub read_only: bool,
    /// Takes the lock from another client, which can write no more then.
    pub take_over: bool,
    /// How long a call waits for the cluster before it fails; without a limit where `None`.
    pub timeout: Option<Duration>,
    /// Bytes of memory for calls, where they may fail so.
    pub room_bytes: usize,
}

/// What an image is opened through; ended when dropped.
pub(super) struct ClusterConnection {
    pub(super) library: &'static Library,
    pub(super) cluster: ClusterHandle,
    /// Null until there is one.
    pub(super) pool: PoolHandle,
}

impl Drop for ClusterConnection {
    fn drop(&mut self) {
        // SAFETY: the handles are ours, and no image uses them any more.
        unsafe {
            if !self.pool.is_null() {
                (self.library.rados_ioctx_destroy)(self.pool);
            }
            (self.library.rados_shutdown)(self.cluster);
        }
    }
}

/// The result of a function of Ceph: negative is an errno.
pub(super) fn check(result: c_int) -> Result<c_int, i32> {
    if result < 0 { Err(-result) } else { Ok(result) }
}

pub(super) fn text(what: &str, text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::invalid(format!("{what}: {text:?} has a zero byte")))
}

fn optional(what: &str, value: Option<&str>) -> Result<Option<CString>, Error> {
    value.map(|value| text(what, value)).transpose()
}

fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(null(), |text| text.as_ptr())
}

/// The client that words as of Ceph's tools name: its library takes the rest of them, and wants this first.
fn client_of(arguments: &str) -> Option<String> {
    let mut words = arguments.split_whitespace();
    while let Some(word) = words.next() {
        let (option, value) =
            word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)));
        let mut value = || value.or_else(|| words.next());
        match option {
            "--id" | "--user" | "-i" => return value().map(str::to_owned),
            "--name" | "-n" => return value()?.strip_prefix("client.").map(str::to_owned),
            _ => {}
        }
    }
    None
}

impl ClusterConnection {
    pub(super) fn new(options: &RbdOptions) -> Result<Self, Error> {
        // CEPH_ARGS is read into memory that all clients share.
        static CONFIGURING: Mutex<()> = Mutex::new(());
        let library = Library::get()?;
        let of_environment = || client_of(&std::env::var("CEPH_ARGS").unwrap_or_default());
        let id = optional("--ceph-id", options.id.clone().or_else(of_environment).as_deref())?;
        let _alone = CONFIGURING.lock();
        let mut cluster = null_mut();
        // SAFETY: the place is ours, the name ends with a zero or is null.
        check(unsafe { (library.rados_create)(&raw mut cluster, pointer(&id)) })
            .map_err(|errno| about(options, errno, "Ceph's client library does not start"))?;
        let connected = Self { library, cluster, pool: null_mut() };
        connected.configure(options)?;
        Ok(connected)
    }

    fn configure(&self, options: &RbdOptions) -> Result<(), Error> {
        let path = options.conf.as_ref().map(|path| path.to_string_lossy().into_owned());
        let conf = optional("--ceph-conf", path.as_deref())?;
        // SAFETY: not connected yet, the path ends with a zero or is null.
        let read = check(unsafe { (self.library.rados_conf_read_file)(self.cluster, pointer(&conf)) });
        read.map_err(|errno| {
            let place = path.unwrap_or_else(|| "CEPH_CONF, /etc/ceph/ceph.conf or ~/.ceph/config".to_owned());
            about(
                options,
                errno,
                &format!("no configuration of Ceph can be read ({place}): give --ceph-conf"),
            )
        })?;
        // SAFETY: not connected yet, and no other thread does this.
        check(unsafe { (self.library.rados_conf_parse_env)(self.cluster, null()) })
            .map_err(|errno| about(options, errno, "CEPH_ARGS is not understood"))?;
        // What was acknowledged has reached the cluster, and the layers above are the cache.
        if !mutant::on("rbd: leave the cache of librbd on") {
            self.set(options, "rbd_cache", "false")?;
        }
        // Before Ceph 16 there is none, and no such option.
        let _ = self.set(options, "rbd_persistent_cache_mode", "disabled");
        // What takes long is waited for, or given up by us: a call that ends so may still be done.
        self.set(options, "rados_osd_op_timeout", "0")?;
        self.set(options, "rados_mon_op_timeout", "0")?;
        // Who loses the lock to this client writes nothing more. Before Ceph 16 the option has its former name.
        let rejects = if mutant::on("rbd: break a lock and reject nobody") { "false" } else { "true" };
        let reject = |name| self.set(options, name, rejects);
        reject("rbd_blocklist_on_break_lock")
            .or_else(|error| reject("rbd_blacklist_on_break_lock").map_err(|_| error))?;
        // The server's log says what matters; the library's own goes to its `log file`, if the configuration names one.
        self.set(options, "log_to_stderr", "false")?;
        self.set(options, "err_to_stderr", "false")?;
        let patience = options.timeout.unwrap_or(PATIENCE).as_secs().max(1).to_string();
        self.set(options, "client_mount_timeout", &patience)?;
        match &options.keyring {
            Some(path) => self.set(options, "keyring", &path.to_string_lossy()),
            None => Ok(()),
        }
    }

    fn set(&self, options: &RbdOptions, name: &str, value: &str) -> Result<(), Error> {
        let (key, word) = (text("an option", name)?, text(name, value)?);
        // SAFETY: not connected yet, both end with a zero.
        let set = check(unsafe { (self.library.rados_conf_set)(self.cluster, key.as_ptr(), word.as_ptr()) });
        set.map(drop).map_err(|errno| about(options, errno, &format!("{name} cannot be {value}")))
    }

    pub(super) fn connect(&mut self, options: &RbdOptions) -> Result<(), Error> {
        assert!(self.pool.is_null(), "it connects once");
        // SAFETY: once, and it is configured.
        check(unsafe { (self.library.rados_connect)(self.cluster) })
            .map_err(|errno| about(options, errno, "cannot reach the cluster"))?;
        let (pool, namespace) =
            (text("a pool", &options.name.pool)?, text("a namespace", &options.name.namespace)?);
        // SAFETY: connected, the name ends with a zero, the place is ours.
        check(unsafe { (self.library.rados_ioctx_create)(self.cluster, pool.as_ptr(), &raw mut self.pool) })
            .map_err(|errno| about(options, errno, "no such pool"))?;
        // SAFETY: the pool is not used yet, the name ends with a zero.
        unsafe { (self.library.rados_ioctx_set_namespace)(self.pool, namespace.as_ptr()) };
        // SAFETY: the pool is there, and no image is open.
        unsafe { (self.library.rados_set_osdmap_full_try)(self.pool) };
        Ok(())
    }

    pub(super) fn open(&self, options: &RbdOptions) -> Result<ImageHandle, Error> {
        let name = text("an image", &options.name.image)?;
        let snapshot = optional("a snapshot", options.name.snapshot.as_deref())?;
        let open = if options.read_only { self.library.rbd_open_read_only } else { self.library.rbd_open };
        let mut image = null_mut();
        // SAFETY: both names end with a zero or are null, the place is ours.
        check(unsafe { open(self.pool, name.as_ptr(), &raw mut image, pointer(&snapshot)) })
            .map_err(|errno| about(options, errno, "no such image or snapshot"))?;
        Ok(image)
    }
}

/// A failure to open an image. Only what names nothing is what was looked for.
pub(super) fn about(options: &RbdOptions, errno: i32, what: &str) -> Error {
    let kind = Kind::of_errno(errno);
    let looked_for = what.starts_with("no such");
    let what = if looked_for && errno != libc::ENOENT { "it cannot be opened" } else { what };
    Error::new(kind, format!("{}: {what} ({})", options.name, kind.errno_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_found_among_words_for_tools_of_ceph() {
        for (words, client) in [
            ("--id disks --keyring /k", Some("disks")),
            ("-c /conf --id=disks", Some("disks")),
            ("--name client.disks", Some("disks")),
            ("-n client.a.b", Some("a.b")),
            ("--name osd.0", None),
            ("--keyring /k --id", None),
            ("", None),
        ] {
            assert_eq!(client_of(words).as_deref(), client, "{words}");
        }
    }
}
