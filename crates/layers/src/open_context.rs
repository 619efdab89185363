//! What every kind of origin or layer shares: what it is opened with, and the open device that comes of it.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::AtomicBool;
use spillway_core::{
    Answer, AtRisk, Attributes, BlockDevice, Budget, Env, Error, Grow, OpenStorage, Regions, Suspend, Works,
};

/// What a layer stands on.
pub(crate) type Below = Arc<dyn BlockDevice>;

/// A configuration that opens a device: of an origin on `()`, of a layer on the device below.
pub trait Open<On> {
    /// The open device, ready for requests. Errors name the key, the value and what is allowed, or what was found and what to do.
    fn open(&self, below: On, context: &OpenContext) -> impl Future<Output = Result<OpenDevice, Error>>;

    /// What it opens through its context.
    fn backing_devices(&self) -> Vec<BackingDevice> {
        Vec::new()
    }
}

/// A file or block device that a kind keeps its data on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackingDevice {
    /// What it is to its kind: `origin`, `cache`, `spill`.
    pub role: &'static str,
    /// Path of a file or block device, which exists unless it may be made.
    pub path: PathBuf,
    /// Where nothing is at the path, makes a sparse file of that many bytes for its owner alone; an empty file gets that length. Anything else
    /// is opened as it is. What was made stays when the device ends.
    pub create: Option<u64>,
    /// Opened for reading only.
    pub read_only: bool,
    /// Reached through a mapping instead of I/O.
    pub mapped: bool,
    /// What a server is asked for, where the path is the address of one.
    pub remote: Remote,
}

/// How a server is used that has the data of an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// How long requests wait for a server that cannot be reached, before they fail; without a limit where `None`.
    pub timeout: Option<Duration>,
    /// Connections at most.
    pub connections: usize,
    /// Bytes of memory for what it has acknowledged and not flushed.
    pub journal_bytes: usize,
    /// The folder with certificates for TLS.
    pub tls_certificates: Option<PathBuf>,
    /// How a Ceph cluster is used.
    pub ceph: Ceph,
}

/// How a Ceph cluster is used that has the image of an origin; what is `None` its own configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ceph {
    /// The configuration.
    pub conf: Option<PathBuf>,
    /// The client's name.
    pub id: Option<String>,
    /// The file with its key.
    pub keyring: Option<PathBuf>,
    /// Takes the lock from who has it.
    pub take_over: bool,
}

impl Default for Remote {
    fn default() -> Self {
        Self {
            timeout: None,
            connections: 4,
            journal_bytes: 16 << 20,
            tls_certificates: None,
            ceph: Ceph::default(),
        }
    }
}

/// Opens what a [`BackingDevice`] names. That may take long: no thread waits for it.
pub(crate) type OpenBacking = Arc<dyn Fn(&BackingDevice) -> Answer<Result<OpenStorage, Error>> + Send + Sync>;

/// What a stack may have of the world around it.
#[derive(Clone)]
pub struct OpenContext {
    /// The name of the device that it becomes.
    pub name: String,
    /// Time, chance and tasks.
    pub env: Arc<dyn Env>,
    /// Large memory.
    pub regions: Arc<dyn Regions>,
    /// What all memory is charged to.
    pub budget: Arc<Budget>,
    /// Bytes of memory of each NUMA node; none where that is not known.
    pub memory_nodes: Vec<u64>,
    /// Opens files; a layer cannot reach the operating system.
    pub open_file: OpenBacking,
    /// Where its long work is registered.
    pub works: Works,
}

/// A device that is ready for requests, and what goes with it.
pub struct OpenDevice {
    /// Takes requests.
    pub device: Arc<dyn BlockDevice>,
    /// The control table.
    pub attributes: Arc<dyn Attributes>,
    /// Its end, where it has to do something then.
    pub suspend: Option<Arc<dyn Suspend>>,
    /// Its growing, where its size is not that of what it stands on.
    pub grow: Option<Arc<dyn Grow>>,
    /// What a crash would take of it, where it acknowledges what is not durable yet.
    pub at_risk: Option<Arc<dyn AtRisk>>,
    /// See [`fence`](spillway_core::Storage::fence).
    pub fence: Option<Arc<AtomicBool>>,
    /// What was found when it was opened, for people.
    pub notes: Vec<String>,
}

impl OpenDevice {
    /// `device` with its `attributes`.
    pub(crate) fn new<T: BlockDevice + 'static, A: Attributes + 'static>(
        device: Arc<T>,
        attributes: impl FnOnce(Arc<T>) -> A,
    ) -> Self {
        let attributes = Arc::new(attributes(device.clone()));
        Self { device, attributes, suspend: None, grow: None, at_risk: None, fence: None, notes: Vec::new() }
    }
}
