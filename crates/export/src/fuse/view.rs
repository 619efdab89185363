//! What one reader sees of the tree: nodes, their names and what they are.

use std::sync::{Arc, Weak};

use spillway_core::IoBuf;

use super::controls::{self, ControlFile, Controls};
use super::folder::Listing;
use super::stat::Stat;
use super::tree::{CLASS_FOLDER, NO_VOLUME, Node, ReaderCount, Tree, Volume};
use super::wire::{self, errno};

/// The name of a device's file.
const DISK: &str = "disk";

/// Longest list of names in one reply, in bytes.
const LISTING_LEN_MAX: usize = 16 << 10;

/// Where a control file is.
pub(super) type ControlPath = (u32, u16, u16);

/// See the head of this file. Refusals are errnos.
pub(super) struct TreeView {
    reader: ReaderCount,
    /// The volumes of the tree, by their numbers, when it had this version. A session that nobody asks keeps no device that was taken away.
    volumes: Vec<(u32, Weak<Volume>)>,
    version: Option<u64>,
}

impl TreeView {
    pub(super) fn new(tree: Arc<Tree>) -> Self {
        Self { reader: ReaderCount::begin(tree), volumes: Vec::new(), version: None }
    }

    pub(super) fn tree(&self) -> &Arc<Tree> {
        self.reader.tree()
    }

    /// The volume of that number, as long as it is mounted.
    fn volume(&mut self, number: u32) -> Result<Arc<Volume>, i32> {
        let version = self.tree().version();
        if self.version != Some(version) {
            let volumes = self.tree().volumes();
            self.volumes = volumes.iter().map(|volume| (volume.number, Arc::downgrade(volume))).collect();
            self.version = Some(version);
        }
        let found = self.volumes.iter().find(|(each, _)| *each == number);
        found.and_then(|(_, volume)| volume.upgrade()).ok_or(errno::ENOENT)
    }

    /// The volume whose disk file `node` is.
    pub(super) fn disk(&mut self, node: u64) -> Result<Arc<Volume>, i32> {
        match Node::of(node) {
            Some(Node::Disk(number)) => self.volume(number),
            Some(_) => Err(errno::EISDIR),
            None => Err(errno::ENOENT),
        }
    }

    /// A folder of control files.
    fn controls(&mut self, volume: u32, part: u16) -> Result<Arc<dyn Controls>, i32> {
        let found = match volume {
            NO_VOLUME => self.tree().class.as_ref().filter(|_| part == 0).cloned(),
            volume => self.volume(volume)?.parts.get(usize::from(part)).cloned(),
        };
        found.ok_or(errno::ENOENT)
    }

    /// A control file, by its volume, its folder and its place there.
    pub(super) fn control(
        &mut self,
        (volume, part, file): ControlPath,
    ) -> Result<(Arc<dyn Controls>, ControlFile), i32> {
        let controls = self.controls(volume, part)?;
        let file = controls.files().get(usize::from(file)).copied().ok_or(errno::ENOENT)?;
        Ok((controls, file))
    }

    pub(super) fn stat_of(&mut self, node: Node) -> Result<Stat, i32> {
        match node {
            Node::Root => Ok(Stat::folder(node)),
            Node::Volume(number) => self.volume(number).map(|_| Stat::folder(node)),
            Node::Disk(number) => {
                let geometry = self.volume(number)?.export().geometry();
                let users = if self.tree().is_shared { 0o111 } else { 0o100 };
                let permissions = users * if geometry.read_only { 4 } else { 6 };
                Ok(Stat::file(node, permissions, geometry.size, geometry.optimal_io.max(4096)))
            }
            Node::Part(number, part) => self.controls(number, part).map(|_| Stat::folder(node)),
            Node::Control(number, part, file) => {
                let (_, file) = self.control((number, part, file))?;
                Ok(Stat::file(node, file.permissions, controls::SIZE, 4096))
            }
        }
    }

    /// What is called `name` in a folder.
    pub(super) fn named(&mut self, folder: Node, name: &[u8]) -> Result<Node, i32> {
        match folder {
            Node::Root if self.tree().class.as_ref().is_some_and(|class| class.name().as_bytes() == name) => {
                Ok(CLASS_FOLDER)
            }
            Node::Root => {
                let volumes = self.tree().volumes();
                let found = volumes.iter().find(|volume| volume.export().name().as_bytes() == name);
                found.map(|volume| Node::Volume(volume.number)).ok_or(errno::ENOENT)
            }
            Node::Volume(number) if name == DISK.as_bytes() => Ok(Node::Disk(number)),
            Node::Volume(number) => {
                let volume = self.volume(number)?;
                let mut parts = volume.parts.iter();
                let place = parts.position(|part| part.name().as_bytes() == name).ok_or(errno::ENOENT)?;
                Ok(Node::Part(number, place as u16))
            }
            Node::Part(number, part) => {
                let controls = self.controls(number, part)?;
                let place = controls.files().iter().position(|file| file.name.as_bytes() == name);
                place.map(|place| Node::Control(number, part, place as u16)).ok_or(errno::ENOENT)
            }
            Node::Disk(_) | Node::Control(..) => Err(errno::ENOTDIR),
        }
    }

    /// The names in a folder from `offset` on, as many as fit in `len` bytes.
    pub(super) fn list(&mut self, node: Node, offset: u64, len: usize) -> Result<IoBuf, i32> {
        let mut listing = Listing::new(offset, LISTING_LEN_MAX.min(len));
        let here = Stat::folder(node);
        listing.add(node.number(), &here, ".");
        listing.add(wire::ROOT, &here, "..");
        match node {
            Node::Root => {
                for volume in self.tree().volumes() {
                    let node = Node::Volume(volume.number);
                    listing.add(node.number(), &Stat::folder(node), volume.export().name());
                }
                if let Some(class) = &self.tree().class {
                    listing.add(CLASS_FOLDER.number(), &Stat::folder(CLASS_FOLDER), class.name());
                }
            }
            Node::Volume(number) => {
                let disk = Node::Disk(number);
                listing.add(disk.number(), &self.stat_of(disk)?, DISK);
                for (place, part) in self.volume(number)?.parts.iter().enumerate() {
                    let node = Node::Part(number, place as u16);
                    listing.add(node.number(), &Stat::folder(node), part.name());
                }
            }
            Node::Part(number, part) => {
                for (place, file) in self.controls(number, part)?.files().iter().enumerate() {
                    let node = Node::Control(number, part, place as u16);
                    listing.add(node.number(), &Stat::file(node, 0, 0, 0), file.name);
                }
            }
            Node::Disk(_) | Node::Control(..) => return Err(errno::ENOTDIR),
        }
        Ok(listing.finish())
    }
}
