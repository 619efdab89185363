//! A stack that is simulated, and what is known of it: its disks, its model, how it is opened.

use std::fmt;
use std::sync::Arc;

use spillway_core::{Answer, BlockSize, Budget, Env, Error, OpenStorage, Registry, SECTOR};
use spillway_layers::limits;
use spillway_layers::open_context::{BackingDevice, OpenContext};
use spillway_layers::stack::{LayerConfig, OriginConfig, Stack, StackConfig};

use super::preset;
use crate::world::remote;
use spillway_sim::disk::{Disk, Medium, Tear};
use spillway_sim::memory::VecRegions;
use spillway_sim::model::Model;
use spillway_sim::world::World;

/// An attribute that workloads change, and the values they give it.
pub type Knob = (&'static str, &'static [&'static str]);

/// Attributes that are set between a reset and the size, and their values.
pub type Setup = &'static [(&'static str, &'static str)];

/// Whether an attribute is something to be done rather than a setting.
pub fn is_command(name: &str) -> bool {
    ["message", "drain", "compact", "mem_used_max", "writeback", "idle", "recompress"].contains(&name)
}

/// A stack and what is known of it.
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its configuration, for a device of so many bytes.
    pub config: fn(u64) -> StackConfig,
    /// Bytes of the device.
    pub bytes: u64,
    /// Block of the disk below, or `None` for a stack that keeps everything in memory and promises nothing after a crash.
    pub disk: Option<u32>,
    /// Bytes of a disk to which such a stack spills: what lies there is gone after a crash too.
    pub spill: Option<u64>,
    /// That disk keeps what the device stores, from a stop to the next start.
    pub kept: bool,
    /// There is a second one like it, `OTHER`, that resets attach instead.
    pub attaches: bool,
    /// A write cache on a disk of its own above it.
    pub cache: Option<Cache>,
    /// Every write that is acknowledged survives a crash: what it is configured to promise, whatever it says of itself.
    pub commits: bool,
    /// What is acknowledged is there after a kill, flushed or not.
    pub keeps: bool,
    /// What is written through it is kept in whole blocks of so many sectors.
    pub whole: Option<u64>,
    /// A cache that is full but for small islands, as [`super::preset`] makes it.
    pub full: bool,
    /// A device of many pages of zram's table, of which stories touch what lies near the boundaries.
    pub wide: bool,
    /// Stories begin with scattering what the device holds, as [`crate::stories::scatter`] does.
    pub dense: bool,
    /// Stories have scans, as `scans` puts them in: something is read ahead.
    pub scans: bool,
    /// Its limit of acknowledged bytes that a kill may take.
    pub at_risk: Option<u64>,
    /// What workloads change while it runs.
    pub knobs: &'static [Knob],
    /// What a device is that was reset while it runs; where there is nothing, it is not reset.
    pub setups: &'static [Setup],
    /// Bytes that memory may be short of: the budget that a hard-pressed run gets.
    pub tight_budget: Option<u64>,
    /// It frees each block that is discarded or zeroed whole, and takes memory for no other reason than what it holds.
    pub exact: bool,
    /// Attributes that are 0 once the whole device is discarded.
    pub empty: &'static [&'static str],
    /// Its origin is an export of a server whose disk that is.
    pub remote: bool,
    /// Its requests fail after a short time without that server.
    pub impatient: bool,
    /// Its origin is an image of a cluster, which two hosts have one after the other.
    pub hosts: bool,
    /// Its server has a second device, one of these, and both share its memory.
    pub beside: &'static [&'static Row],
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What the phase before has left of a stack whose disk keeps what it stores.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// Bytes that the device had.
    pub bytes: u64,
    /// It was stopped in order: its content has to be there.
    pub sure: bool,
}

/// A write cache.
#[derive(Clone, Copy)]
pub struct Cache {
    /// Bytes of its disk.
    pub bytes: u64,
    /// Block of its disk.
    pub disk: u32,
    /// Its disk is persistent memory, as mode p wants it.
    pub words: bool,
}

/// Role and path of the write cache's disk.
pub(crate) const CACHE: &str = "cache";

/// Role of the origin's disk.
const ORIGIN: &str = "origin";

/// Paths of the disks to which zram spills.
pub(crate) const SPILL: &str = "/spill";
pub(crate) const OTHER: &str = "/other";

/// Attaches one of them.
pub(crate) const BACKING: &str = "backing_dev";

/// Block of these disks.
const SPILL_BLOCK: u32 = 4096;

/// Sectors of a page of slots of zram's table, and pages of a block of it.
pub(crate) const SLOTS_SECTORS: u64 = 256 * 8;
pub(crate) const BLOCK_PAGES: u64 = 512;

/// Sectors of a piece in which a long discard goes, and of the pages that one word of a bitmap tells of.
const PIECE_SECTORS: u64 = (64 << 20) / SECTOR;
const WORD_SECTORS: u64 = 64 * SLOTS_SECTORS;

impl Row {
    /// Block of the disk below, or what the contents are compared in where there is none.
    pub fn block(&self) -> BlockSize {
        BlockSize::new(self.disk.unwrap_or(4096)).expect("the table has valid sizes")
    }

    /// Whether what it acknowledges and flushes survives a crash.
    pub fn is_durable(&self) -> bool {
        self.disk.is_some()
    }

    /// Whether it has a page cache.
    pub fn is_paged(&self) -> bool {
        let layers = (self.config)(self.bytes).layers;
        layers.iter().any(|layer| matches!(layer, LayerConfig::PageCache(_)))
    }

    /// Whether reads may wait for calls that are none for them: they join what a page cache reads ahead, or what a drive's cache lets out, or
    /// come after what is written again at a server that hangs.
    pub fn joins(&self) -> bool {
        let layers = (self.config)(self.bytes).layers;
        self.remote || self.is_paged() || layers.iter().any(|layer| matches!(layer, LayerConfig::Volatile(_)))
    }

    /// Whether it has a disk that may fail.
    pub fn has_disk(&self) -> bool {
        self.disk.is_some() || self.spill.is_some()
    }

    /// Its disks, blank: the origin's or that to which it spills, and the write cache's or the one that is attached.
    pub fn media(&self) -> Vec<Medium> {
        let origin = self.disk.map(|_| self.bytes).or(self.spill).map(Medium::new);
        let cache =
            self.cache.map(|cache| if self.full { preset::cache() } else { Medium::new(cache.bytes) });
        let other = self.spill.filter(|_| self.attaches).map(Medium::new);
        origin.into_iter().chain(cache).chain(other).collect()
    }

    /// Sectors of the device.
    pub fn sectors(&self) -> u64 {
        self.bytes / SECTOR
    }

    /// Sectors near which something changes below; workloads favour them.
    pub fn anchors(&self) -> Vec<u64> {
        match (self.full, self.wide) {
            (true, _) => preset::anchors(),
            (_, true) => {
                let pages = [0, 1, 2, BLOCK_PAGES, 2 * BLOCK_PAGES].map(|page| page * SLOTS_SECTORS);
                pages.into_iter().chain([PIECE_SECTORS, WORD_SECTORS, self.sectors() - 1]).collect()
            }
            _ => vec![],
        }
    }

    /// Sectors of the longest operation that has a payload, where not the whole device may be one's.
    pub fn long(&self) -> u64 {
        match (self.full, self.wide) {
            (true, _) => 192,
            // More pages than one slice of work stores.
            (_, true) => 80 * 8,
            _ if self.dense => 64 * 8,
            _ => self.sectors(),
        }
    }

    /// Sectors of the longest discard, where it may be longer than that.
    pub fn vast(&self) -> Option<u64> {
        self.wide.then_some(PIECE_SECTORS * 5 / 2)
    }

    /// What it may show, before anything is written. What its disks keep whole, it keeps whole.
    pub fn model(&self, large: bool) -> Model {
        let model = Model::new(self.bytes, self.is_durable() && !self.impatient);
        let model = if self.exact { model.freeing(self.block().bytes() / SECTOR) } else { model };
        // A server takes sectors, and after its crash they are written again one by one.
        let kept = self.is_durable() && !self.remote && self.tear(0, large) == Tear::Blocks;
        let model = model.keeping_whole(self.whole.or(kept.then_some(self.block().bytes() / SECTOR)));
        if self.full { model.with_filled(preset::cached_sectors(), preset::VALUE) } else { model }
    }

    /// What disk `number` is called.
    pub fn disk_name(&self, number: usize) -> &'static str {
        match (number, self.spill) {
            (0, None) => "disk",
            (0, Some(_)) => "spill",
            (_, Some(_)) => "other",
            _ => "cache",
        }
    }

    /// Block of disk `number`.
    pub fn disk_block(&self, number: usize) -> BlockSize {
        let origin = self.disk.or(self.spill.map(|_| SPILL_BLOCK));
        let bytes = if number == 0 || self.attaches { origin } else { self.cache.map(|cache| cache.disk) };
        BlockSize::new(bytes.expect("it has that disk")).expect("the table has valid sizes")
    }

    /// What a power cut leaves whole on disk `number`. `large`: a disk of such blocks has sectors of 4096 bytes.
    pub fn tear(&self, number: usize, large: bool) -> Tear {
        match number == 1 && self.cache.is_some_and(|cache| cache.words) {
            true => Tear::Words,
            false if large && self.disk_block(number) == BlockSize::PAGE => Tear::Blocks,
            false => Tear::Sectors,
        }
    }

    /// What the stack's memory is charged to. `tight`: as little as the row allows.
    pub fn budget(&self, tight: bool) -> Arc<Budget> {
        Budget::new(self.tight_budget.filter(|_| tight).unwrap_or(64 << 20))
    }

    /// Opens the stack in `world`, over its disks, with so many bytes of regions. `force`: a spill file is taken whatever it holds; but for what
    /// was `left` there to be taken. Fails as [`Stack::open`] does.
    pub async fn open(
        &self,
        world: &Arc<World>,
        disks: &[Arc<Disk>],
        budget: &Arc<Budget>,
        regions_bytes: u64,
        force: bool,
        left: Option<Left>,
    ) -> Result<Stack, Error> {
        let disks = disks.to_vec();
        let mut config = (self.config)(left.map_or(self.bytes, |left| left.bytes));
        if let OriginConfig::Zram(zram) = &mut config.origin {
            (zram.force, zram.keep) = (force, left.is_some());
            zram.require_kept = left.is_some_and(|left| left.sure);
        }
        let (remote, impatient, far) = (self.remote, self.impatient, (world.clone(), budget.clone()));
        let context = OpenContext {
            name: "device".into(),
            env: world.clone() as Arc<dyn Env>,
            regions: Arc::new(VecRegions::new(regions_bytes)),
            budget: budget.clone(),
            memory_nodes: Vec::new(),
            works: Registry::new(world.clone()).of("device"),
            open_file: Arc::new(move |backing: &BackingDevice| {
                if remote && backing.role == ORIGIN {
                    let (world, disk, budget) = (far.0.clone(), disks[0].clone(), far.1.clone());
                    return Answer::pending(async move {
                        let storage = remote::open(&world, &disk, &budget, impatient).await?;
                        Ok(OpenStorage { storage, notes: Vec::new() })
                    });
                }
                let number = usize::from(backing.role == CACHE || backing.path.as_os_str() == OTHER);
                let storage = disks.get(number).cloned().expect("the row has that disk");
                Answer::Done(Ok(OpenStorage { storage, notes: Vec::new() }))
            }),
        };
        let stack = Stack::open(&config, &[], &context).await?;
        stack.limit(&limits::Config { at_risk_bytes_max: self.at_risk, ..limits::Config::default() })?;
        Ok(stack)
    }
}
