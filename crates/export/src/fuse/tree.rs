//! What is mounted, as numbered nodes, and who has it open.
//!
//! ```text
//!   /            the mount           node 1
//!   /NAME        a volume, its number counted from 1 and never used again
//!   /NAME/disk   the device as a file
//!   /NAME/PART/ATTRIBUTE
//!   /zram-control     where devices are added and removed, with the numbers of a part of volume 0
//! ```
//!
//! An open disk file is a client of its export: while there is one, the device is neither reset nor taken away. The kernel does not
//! close files of a mount that was aborted, nor always the last ones before an unmount: the end of the last session does.

use std::collections::HashMap;
use std::sync::Arc;

use spillway_core::session::Peer;
use spillway_core::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, RwLock};
use spillway_core::{Kind, mutant};

use super::class::ClassFolder;
use super::config::open_max;
use super::controls::{Controls, Folder, PartFolder};
use super::texts::Texts;
use super::wire::{self, errno, open_mode};
use crate::control::DeviceChanges;
use crate::export::{Connected, Export};

/// Bytes of the largest page of a kernel.
const PAGE_BYTES_MAX: u64 = 64 << 10;

/// In place of a volume's number: of a folder of the mount itself.
pub(super) const NO_VOLUME: u32 = 0;

/// `zram-control`.
pub(super) const CLASS_FOLDER: Node = Node::Part(NO_VOLUME, 0);

/// A place in the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// The mount itself.
    Root,
    /// The folder of a volume.
    Volume(u32),
    /// Its disk file.
    Disk(u32),
    /// The folder of a part, by its number in the volume, or in [`NO_VOLUME`].
    Part(u32, u16),
    /// An attribute, by its number in the part.
    Control(u32, u16, u16),
}

impl Node {
    /// The node of that number; `None` where no node ever has it.
    pub(super) fn of(number: u64) -> Option<Self> {
        let volume = (number >> 32) as u32;
        match (volume, (number >> 16) as u16, number as u16) {
            (NO_VOLUME, 0, 1) => Some(Node::Root),
            (NO_VOLUME, 0, _) => None,
            (_, 0, 0) => Some(Node::Volume(volume)),
            (_, 0, 1) => Some(Node::Disk(volume)),
            (_, 0, _) => None,
            (_, part, 0) => Some(Node::Part(volume, part - 1)),
            (_, part, control) => Some(Node::Control(volume, part - 1, control - 1)),
        }
    }

    pub(super) fn number(self) -> u64 {
        match self {
            Node::Root => wire::ROOT,
            Node::Volume(volume) => u64::from(volume) << 32,
            Node::Disk(volume) => u64::from(volume) << 32 | 1,
            Node::Part(volume, part) => u64::from(volume) << 32 | (u64::from(part) + 1) << 16,
            Node::Control(volume, part, control) => {
                Node::Part(volume, part).number() | (u64::from(control) + 1)
            }
        }
    }
}

/// A program that has something open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Name of the device.
    pub device: String,
    /// The thread that opened it, as the server sees it; 0 where it cannot.
    pub thread: u32,
}

/// A thread in a namespace that the server cannot look into.
const UNSEEN: u32 = 0;

/// A device in the mount.
pub struct Volume {
    pub(super) number: u32,
    export: Arc<Export>,
    pub(super) parts: Vec<Arc<dyn Controls>>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// No file is opened any more.
    retired: bool,
    last_handle: u64,
    files: HashMap<u64, OpenFile>,
}

struct OpenFile {
    thread: u32,
    client: Connected,
    /// Each change is durable before it returns.
    durable: bool,
}

impl Volume {
    pub(super) fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// Opens the disk file and returns its handle, or an errno. The last ones are for those who are `trusted`.
    pub(super) fn open_disk(&self, mode: u32, thread: u32, trusted: bool) -> Result<u64, i32> {
        if mode & open_mode::ACCESS != 0 && self.export.geometry().read_only {
            return Err(errno::EROFS);
        }
        if mode & open_mode::TRUNC != 0 {
            return Err(errno::EPERM);
        }
        let mut open = self.open.lock();
        if open.retired {
            return Err(errno::ENOENT);
        }
        if open.files.len() >= open_max(trusted) {
            return Err(errno::ENFILE);
        }
        let peer = if thread == UNSEEN { Peer::Unknown } else { Peer::Program(thread) };
        let client = self.export.connect(peer).ok_or_else(|| self.absence())?;
        open.last_handle += 1;
        let handle = open.last_handle;
        open.files.insert(handle, OpenFile { thread, client, durable: mode & open_mode::DSYNC != 0 });
        Ok(handle)
    }

    /// Whether the file was opened so that each change is durable before it returns.
    pub(super) fn is_durable(&self, handle: u64) -> bool {
        self.open.lock().files.get(&handle).is_some_and(|file| file.durable)
    }

    /// Why the export takes no client.
    fn absence(&self) -> i32 {
        match self.export.geometry().size {
            _ if self.export.is_closed() => Kind::ShuttingDown.errno(),
            0 => errno::ENOMEDIUM,
            _ => errno::EBUSY,
        }
    }

    pub(super) fn close(&self, handle: u64) {
        let closed = self.open.lock().files.remove(&handle);
        drop(closed);
    }

    /// The programs that have a file of it open.
    pub fn openers(&self) -> Vec<Opener> {
        let device = || self.export.name().to_owned();
        let mut threads: Vec<u32> = self.open.lock().files.values().map(|file| file.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        threads.into_iter().map(|thread| Opener { device: device(), thread }).collect()
    }

    /// Gives the device alone to the file that `thread` opened: of one client, it is the one.
    fn hold(&self, thread: u32) -> Result<(), Kind> {
        let open = self.open.lock();
        let opened = open.files.values().find(|file| [thread, UNSEEN].contains(&file.thread));
        opened.ok_or(Kind::NotFound)?.client.export().hold()
    }

    /// Nobody will close what is open.
    fn forget_files(&self) {
        let files = std::mem::take(&mut self.open.lock().files);
        drop(files);
    }

    /// Lets no file be opened any more, unless one is open.
    fn retire(&self) -> bool {
        let mut open = self.open.lock();
        open.retired |= open.files.is_empty();
        open.retired
    }
}

/// Everything in a mount.
pub struct Tree {
    volumes: RwLock<Vec<Arc<Volume>>>,
    /// Number of the last volume.
    last: AtomicU64,
    /// Changes with the list.
    version: AtomicU64,
    sessions: AtomicUsize,
    pub(super) texts: Texts,
    pub(super) class: Option<Arc<dyn Controls>>,
    pub(super) owner: FileOwner,
    /// Whether disk files are for all users.
    pub(super) is_shared: bool,
}

/// A session that reads from the mount. With the last one the mount is gone, and what is open in it is closed by nobody else.
pub(super) struct ReaderCount(Arc<Tree>);

impl ReaderCount {
    pub(super) fn begin(tree: Arc<Tree>) -> Self {
        tree.sessions.fetch_add(1, Ordering::Relaxed);
        Self(tree)
    }

    pub(super) fn tree(&self) -> &Arc<Tree> {
        &self.0
    }
}

impl Drop for ReaderCount {
    fn drop(&mut self) {
        let before = self.0.sessions.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a session of a mount ends, and none was counted");
        if before == 1 && !mutant::on("fuse: keep what was open in a mount that is gone") {
            self.0.volumes().iter().for_each(|volume| volume.forget_files());
            self.0.texts.forget_files();
        }
    }
}

/// Whose files they are, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileOwner {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// In seconds since 1970.
    pub(super) since: u64,
}

impl Tree {
    /// An empty mount whose files belong to `uid` and `gid` and were made so many seconds after 1970.
    pub fn new(uid: u32, gid: u32, since: u64) -> Self {
        Self {
            volumes: RwLock::default(),
            last: AtomicU64::new(0),
            version: AtomicU64::new(0),
            sessions: AtomicUsize::new(0),
            texts: Texts::default(),
            class: None,
            owner: FileOwner { uid, gid, since },
            is_shared: false,
        }
    }

    /// Has all users read and write the disk files, as far as the mount lets them reach these.
    pub fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// Shows the folder [`CLASS`](super::CLASS) too, by which devices of `server` come and go.
    pub fn with_class(self, server: Arc<dyn DeviceChanges>) -> Self {
        Self { class: Some(Arc::new(ClassFolder { server })), ..self }
    }

    /// Shows a device, which takes bytes, under its export's name; nothing else in the mount has it.
    /// Its parts are folders, in this order, whose files `server` changes.
    pub fn add(&self, export: Arc<Export>, parts: Vec<Folder>, server: Arc<dyn DeviceChanges>) {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let number = u32::try_from(number).expect("nobody adds so many");
        let part =
            |folder| Arc::new(PartFolder::new(export.name(), folder, server.clone())) as Arc<dyn Controls>;
        let parts = parts.into_iter().map(part).collect();
        let volume = Arc::new(Volume { number, export, parts, open: Mutex::default() });
        let mut volumes = self.volumes.write();
        let name = volume.export.name();
        assert!(volumes.iter().all(|other| other.export.name() != name), "a mount shows {name} twice");
        volumes.push(volume);
        drop(volumes);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Takes a device out of the mount. Fails while its files are open: the error is who has opened them.
    pub fn remove(&self, name: &str) -> Result<(), Vec<Opener>> {
        let mut volumes = self.volumes.write();
        let Some(index) = volumes.iter().position(|volume| volume.export.name() == name) else {
            return Ok(());
        };
        if !volumes[index].retire() {
            return Err(volumes[index].openers());
        }
        volumes.remove(index);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Gives a device alone to the file of it that `thread` opened, until that is closed: no other client connects. [`Kind::NotFound`] where it
    /// has none open, [`Kind::Busy`] where the device has other clients too.
    pub fn hold(&self, name: &str, thread: u32) -> Result<(), Kind> {
        let volumes = self.volumes();
        let volume = volumes.iter().find(|volume| volume.export.name() == name);
        volume.ok_or(Kind::NotFound)?.hold(thread)
    }

    /// The message by which the kernel takes the size that a device has grown to from `before`. It asks for sizes by itself, and drops the
    /// answer where a write ends meanwhile; behind the size that it knows, loop devices read nothing. `None` where there is nothing to say.
    pub fn size_message(&self, name: &str, before: u64) -> Option<Vec<u8>> {
        let volumes = self.volumes();
        let volume = volumes.iter().find(|volume| volume.export.name() == name)?;
        let last = volume.export.geometry().size.checked_sub(1)?;
        // A page that the kernel may have has no byte changed.
        let in_new_page = last / PAGE_BYTES_MAX > before.saturating_sub(1) / PAGE_BYTES_MAX;
        in_new_page.then(|| wire::stored_byte(Node::Disk(volume.number).number(), last))
    }

    /// Every device in the mount.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        self.volumes.read().clone()
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}
