//! How a cache is opened: it recovers what its device holds, or formats a blank one. Nothing is shared yet, and no request waits.

pub(super) mod blank;
pub(super) mod fitting;
pub(super) mod growing;
pub(super) mod recovery;

use std::sync::Arc;

use spillway_core::{
    BlockDevice, Budget, Charge, Env, Error, Geometry, IoBuf, Kind, Request, Seam, WorkKind, Works, mutant,
};

use super::config::{Config, OldCache, Settings};
use super::device::result_of;
use super::device::workspaces::Workspaces;
use super::format::{
    ENTRY_LEN, Entry, Found, Layout, MAGIC, OriginMark, PADDING_LEN, SUPERBLOCK_LEN, Superblock, VERSION,
};
use super::index::Index;
use super::index::block::{Blocks, CacheBlock, EPOCHS, Epoch, Stage};
use super::metadata::{Metadata, PIECE_BYTES};
use fitting::{count, enough, geometry, memory};
use recovery::Recovery;

/// Seq_counts that a cache may begin with: as many are left for commits.
const SEQ_COUNTS: u64 = EPOCHS / 2;

/// Bytes of magic and version: a word, which memory stores whole.
const MAGIC_LEN: usize = 8;

/// A cache that is being opened: its devices, and how it is to be used.
pub(super) struct Opening {
    pub(super) origin: Seam,
    pub(super) cache: Seam,
    pub(super) env: Arc<dyn Env>,
    pub(super) budget: Arc<Budget>,
    pub(super) works: Works,
    pub(super) workspaces: Workspaces,
    pub(super) settings: Settings,
    pub(super) geometry: Geometry,
}

impl Opening {
    /// Errors as of [`super::WriteCache::open`], as far as they are known before a device is read. Charges the buffers.
    pub(super) fn new(
        config: &Config,
        origin: Arc<dyn BlockDevice>,
        cache: Arc<dyn BlockDevice>,
        env: Arc<dyn Env>,
        budget: Arc<Budget>,
        works: Works,
    ) -> Result<Self, Error> {
        let settings = Settings::of(config)?;
        let (origin, cache) = (Seam::new(origin), Seam::new(cache));
        let geometry = geometry(&settings, &origin.geometry(), &cache.geometry())?;
        let workspaces = Workspaces::new(&budget)?;
        Ok(Self { origin, cache, env, workspaces, budget, works, settings, geometry })
    }

    /// Recovers what the cache device holds, or formats a blank one; returns that for people, too. Refused, nothing is written.
    pub(super) async fn read_metadata(&self) -> Result<(Opened, String), Error> {
        let (device, start) = (self.cache.geometry().size, self.settings.start_sector);
        let block_size = self.settings.block_size();
        let largest = Layout::largest(device, start, block_size)?;
        let found = {
            let first = self.read_meta(&largest, 0, block_size.bytes()).await?;
            Superblock::decode(
                first[..SUPERBLOCK_LEN].try_into().expect("a block is longer than a superblock"),
            )
        };
        match found {
            Found::Cache(superblock) => {
                self.check_origin(Some(&superblock)).await?;
                match self.settings.old_cache {
                    OldCache::Create => self.format_again(&superblock, largest).await,
                    OldCache::Open | OldCache::Recover => {
                        self.recover(superblock.accept(device, start, Some(block_size))?, superblock).await
                    }
                }
            }
            Found::Foreign { magic: MAGIC, version } if self.settings.old_cache != OldCache::Create => {
                Err(Error::invalid(format!(
                    "the cache device holds a write cache of version {version}, but only version {VERSION} is known here"
                )))
            }
            found => {
                self.check_origin(None).await?;
                if found != Found::Unfinished {
                    self.check_blank(&largest).await?;
                }
                self.format(largest).await
            }
        }
    }

    /// Formats a cache. What it holds that the origin does not, or may hold, is lost only if that was said.
    async fn format_again(&self, superblock: &Superblock, layout: Layout) -> Result<(Opened, String), Error> {
        let (kind, what) = match self.held(superblock).await {
            Ok(0) => return self.format(layout).await,
            Ok(blocks) => (Kind::Busy, format!("holds {blocks} blocks that the origin does not have")),
            Err(error) => {
                let why = error.message();
                (
                    error.kind,
                    format!("may hold blocks that the origin does not have, and cannot be read: {why}"),
                )
            }
        };
        if !self.settings.force {
            return Err(Error::new(
                kind,
                format!(
                    "the cache {what}: open it without --create and drain it; or destroy them by --create --force"
                ),
            ));
        }
        tracing::warn!("write cache: formatting over a cache, which is destroyed; it {what}");
        self.format(layout).await
    }

    /// Blocks that a cache holds for its origin.
    async fn held(&self, superblock: &Superblock) -> Result<u32, Error> {
        // What is formatted anew may have had other blocks.
        let layout = superblock.accept(self.cache.geometry().size, self.settings.start_sector, None)?;
        let opened = self.empty(layout)?;
        let (index, _) = self.read_entries(&layout, superblock, opened.index).await?;
        Ok(index.held())
    }

    async fn read_meta(&self, layout: &Layout, at: u64, len: u64) -> Result<IoBuf, Error> {
        let buf = self.workspaces.pieces.take(len as usize).await;
        let reply = self.cache.submit(Request::read(layout.start + at, buf)).await;
        result_of(reply).map_err(|kind| Error::new(kind, "the metadata of the cache cannot be read"))
    }

    async fn recover(&self, layout: Layout, superblock: Superblock) -> Result<(Opened, String), Error> {
        let mut opened = self.empty(layout)?;
        let stale;
        (opened.index, stale) = self.read_entries(&layout, &superblock, opened.index).await?;
        opened.seq_count = Epoch(superblock.seq_count);
        let live = opened.index.held();
        let text = format!(
            "cache of {} blocks of {} bytes, {live} of them dirty, {stale} entries cleared, seq_count {}",
            layout.n_blocks,
            layout.block_size.bytes(),
            superblock.seq_count,
        );
        tracing::info!("write cache: found a {text}");
        opened.padding = self.padding(&superblock, live)?;
        if OriginMark::decode(&superblock.padding).is_none_or(|mark| mark.bytes != self.origin_mark().bytes) {
            self.keep_length().await?;
        }
        // What was read may not be durable, where a server was killed. After a power cut an entry that it cleared would come back,
        // and its block hold something else by then; or a superblock would not, for whose sake older versions had been cleared.
        let durable = !mutant::on("write_cache: rely on what a killed server left unflushed");
        if durable {
            self.cache.flush().await.map_err(unwritable)?;
        }
        if stale > 0 && !mutant::on("write_cache: leave stale entries at recovery") {
            self.clear_found(&opened).await.map_err(unwritable)?;
            if durable {
                self.cache.flush().await.map_err(unwritable)?;
            }
        }
        let unmarked = mutant::on("write_cache: go on without a mark of its own");
        if live > 0 && self.origin.geometry().writers.is_some() && !unmarked {
            let written = self.write_head(&opened).await.map_err(unwritable);
            if !mutant::on("write_cache: go on with a mark that was not written") {
                written?;
            }
        }
        opened.index.end_clear_found();
        Ok((opened, text))
    }

    /// Makes the superblock durable as it will be. What is written back from now on is written by whom it names.
    async fn write_head(&self, opened: &Opened) -> Result<(), Kind> {
        let metadata = self.metadata(opened);
        let buf = metadata.encoded(0..1, opened.seq_count, opened.seq_count).await;
        metadata.write(0, buf, false).await.result?;
        self.cache.flush().await
    }

    /// Frees on the device what recovery found to be stale, a piece of the metadata at a time.
    async fn clear_found(&self, opened: &Opened) -> Result<(), Kind> {
        let (metadata, layout, entries) = (self.metadata(opened), &opened.layout, opened.blocks.count());
        let all = mutant::on("write_cache: clear too much at recovery");
        let visible = if all { Epoch(0) } else { opened.seq_count };
        let step = (PIECE_BYTES / ENTRY_LEN as u64) as usize;
        for first in (0..entries).step_by(step) {
            let piece = first..entries.min(first + step as u32);
            let mut blocks = Vec::new();
            let clearing = |entry: &u32| opened.index.stage(CacheBlock(*entry)) == Stage::Clearing;
            piece.filter(clearing).for_each(|entry| layout.add_metadata_block(entry, &mut blocks));
            for run in layout.metadata_runs(blocks) {
                let buf = metadata.encoded(run.clone(), visible, visible).await;
                metadata.write(run.start, buf, false).await.result?;
            }
        }
        Ok(())
    }

    /// The origin as a cache remembers it.
    pub(super) fn origin_mark(&self) -> OriginMark {
        OriginMark::of(&self.origin.geometry())
    }

    /// The padding to be written from now on. A cache that holds blocks is used with its own origin only.
    fn padding(&self, superblock: &Superblock, held: u32) -> Result<[u8; PADDING_LEN], Error> {
        let mark = self.origin_mark();
        let found = OriginMark::decode(&superblock.padding);
        let minds = held > 0 && self.settings.old_cache != OldCache::Recover;
        let minds = minds && !mutant::on("write_cache: mind no other host");
        if minds && found.is_some_and(|found| found.is_outdated(&self.origin.geometry())) {
            return Err(Error::invalid(format!(
                "the origin was written to by another host since this cache was last used, and the cache holds {held} blocks of {} \
                 bytes that the origin does not have: --recover takes the cache's, over what the other wrote there; --create --force \
                 destroys them",
                self.settings.block_size().bytes(),
            )));
        }
        let recovers = self.settings.old_cache == OldCache::Recover;
        if recovers && mutant::on("write_cache: recover with the mark of before") {
            return Ok(superblock.padding);
        }
        match found.filter(|_| minds) {
            Some(found) if found.differs(&mark) => Err(Error::invalid(format!(
                "the cache holds blocks of another origin, of {} bytes: give that one; if this is the same one, moved or copied, \
                 --recover takes it",
                found.bytes
            ))),
            Some(found) if found.bytes > mark.bytes => Err(Error::invalid(format!(
                "the origin has {} bytes, and had {} when this cache was last used, which holds {held} blocks for it: give the one that \
                 they belong to, or make this one as large again; --recover takes it as it is",
                mark.bytes, found.bytes
            ))),
            // The bytes of others are left as they are.
            _ if found.is_none() && superblock.padding != [0; PADDING_LEN] => Ok(superblock.padding),
            _ => Ok(mark.encode()),
        }
    }

    /// Recovers what the entries say in an empty index; how many of them are to be cleared.
    async fn read_entries(
        &self,
        layout: &Layout,
        superblock: &Superblock,
        index: Index,
    ) -> Result<(Index, u32), Error> {
        if superblock.seq_count >= SEQ_COUNTS {
            return Err(Error::corrupt(format!(
                "the cache's superblock is damaged: seq_count {} cannot come from commits, which are below {SEQ_COUNTS}",
                superblock.seq_count
            )));
        }
        let (seq_count, origin_blocks) = (Epoch(superblock.seq_count), self.origin_blocks(layout));
        let mut recovery = Recovery::new(*layout, index, seq_count, origin_blocks, self.settings.old_cache);
        let (total, mut at, mut index) = (layout.metadata_bytes(), 0, 0);
        let work = self.works.begin(WorkKind::Recover, Some(total));
        while at < total {
            let len = PIECE_BYTES.min(total - at);
            let bytes = self.read_meta(layout, at, len).await?;
            let skip = if at == 0 { SUPERBLOCK_LEN } else { 0 };
            for chunk in bytes[skip..].chunks_exact(ENTRY_LEN) {
                if index < layout.n_blocks {
                    let forgotten =
                        at > 0 && mutant::on("write_cache: forget entries behind the first piece");
                    let entry = Entry::decode(chunk.try_into().expect("chunks are entries"));
                    recovery.take(if forgotten { Entry::BLANK } else { entry })?;
                    index += 1;
                }
            }
            at += len;
            work.reach(at);
        }
        recovery.finish()
    }

    fn charge(&self, layout: &Layout, bytes: u64) -> Result<Charge, Error> {
        self.budget.hold(bytes).map_err(|kind| {
            let (limit, used) = (self.budget.limit(), self.budget.used());
            let enough = enough(limit, used, bytes) >> 20;
            Error::new(
                kind,
                format!(
                    "the index of {} blocks of {} bytes takes {bytes} bytes of memory, but of the {limit} allowed {used} are in use: \
                     give --memory {enough}M or more, or use larger blocks",
                    layout.n_blocks,
                    layout.block_size.bytes(),
                ),
            )
        })
    }

    fn origin_blocks(&self, layout: &Layout) -> u64 {
        self.geometry.size / layout.block_size.bytes()
    }

    /// An empty cache, its memory charged.
    fn empty(&self, layout: Layout) -> Result<Opened, Error> {
        let (count, block) = (count(&layout)?, layout.block_size.bytes());
        let origin_blocks = self.origin_blocks(&layout);
        let charge = self.charge(&layout, memory(count, origin_blocks, block))?;
        let blocks = Arc::new(Blocks::new(count));
        let index = Index::new(blocks.clone(), origin_blocks, block);
        let padding = self.origin_mark().encode();
        Ok(Opened { layout, padding, blocks, index, seq_count: Epoch(0), charge })
    }

    async fn format(&self, layout: Layout) -> Result<(Opened, String), Error> {
        let opened = self.empty(layout)?;
        self.keep_length().await?;
        let first = self.read_meta(&opened.layout, 0, opened.layout.block_size.bytes()).await?;
        self.write_fresh(&opened, first).await.map_err(unwritable)?;
        let text = format!("new cache of {} blocks of {} bytes", layout.n_blocks, layout.block_size.bytes());
        tracing::info!("write cache: formatted a {text}");
        Ok((opened, text))
    }

    /// Makes durable how long the origin is, where the cache does not know it so: its owner may just have made it longer, and a cache that
    /// held a block from behind the end that a power cut brings back could not be opened.
    async fn keep_length(&self) -> Result<(), Error> {
        let kept = self.origin.flush().await;
        kept.map_err(|kind| Error::new(kind, "the length of the origin cannot be made durable"))
    }

    /// Writes the entries first and the superblock last: a crash in between leaves a device whose formatting did not end. `first`: what the
    /// first block of the metadata holds.
    async fn write_fresh(&self, opened: &Opened, mut first: IoBuf) -> Result<(), Kind> {
        let (metadata, block) = (self.metadata(opened), opened.layout.block_size.bytes());
        // What was there before is not to be taken for a cache, nor for what it was; a crash leaves a device that may be formatted.
        let (begun, until_last) = match mutant::on("write_cache: forget that formatting has begun") {
            true => ([0; SUPERBLOCK_LEN], SUPERBLOCK_LEN),
            false => (Superblock::unfinished(), MAGIC_LEN),
        };
        // The rest of its block stays: a power cut, which may take any part of a write, leaves no other entries beside the old superblock.
        first[..SUPERBLOCK_LEN].copy_from_slice(&begun);
        metadata.write(0, first, true).await.result?;
        let total = opened.layout.metadata_bytes();
        assert!(total.is_multiple_of(block), "the metadata is whole blocks");
        let work = self.works.begin(WorkKind::Format, Some(total));
        let (mut from, blocks) = (0, total / block);
        while from < blocks {
            let to = blocks.min(from + (PIECE_BYTES / block).max(1));
            let mut buf = metadata.encoded(from..to, Epoch(0), Epoch(0)).await;
            if from == 0 {
                // Memory may tear between words: the one with the magic and the version comes last.
                buf[..until_last].copy_from_slice(&begun[..until_last]);
            }
            metadata.write(from, buf, false).await.result?;
            from = to;
            work.reach(from * block);
        }
        self.cache.flush().await?;
        let first = metadata.encoded(0..1, Epoch(0), Epoch(0)).await;
        metadata.write(0, first, true).await.result
    }

    fn metadata<'a>(&'a self, opened: &'a Opened) -> Metadata<'a> {
        let Opened { ref layout, padding, ref index, .. } = *opened;
        Metadata { device: &self.cache, pieces: &self.workspaces.pieces, layout, padding, index }
    }
}

/// A cache that was opened: what its device holds, in memory.
pub(super) struct Opened {
    pub(super) layout: Layout,
    /// Of the superblock.
    pub(super) padding: [u8; PADDING_LEN],
    pub(super) blocks: Arc<Blocks>,
    pub(super) index: Index,
    /// Of the superblock.
    pub(super) seq_count: Epoch,
    pub(super) charge: Charge,
}

fn unwritable(kind: Kind) -> Error {
    Error::new(kind, "the metadata of the cache cannot be written")
}
