//! How a spill file is opened: it begins empty, or with what it keeps.

mod examining;
mod keeping;

use std::sync::Arc;

use spillway_core::stats::Counters;
use spillway_core::sync::{AtomicBool, AtomicU32, Marks, Ordering, Semaphore, WaitList, Work};
use spillway_core::{
    BlockDevice, Budget, ByteRange, Charge, Env, Error, Kind, Op, Request, Seam, Works, Workspace, mutant,
};

use super::batch::{batch_bytes, batch_overhead};
use super::cleaner::{cleaner_bytes, cleaner_overhead};
use super::format::{CheckpointSpan, FileState, Found, Layout, Superblock, UNIT};
use super::length::Length;
use super::reading::READ_BYTES;
use super::segments::Segments;
use super::segments::space::{Space, segments_min};
use super::segments::streams::{OpenSegments, tail_bytes};
use super::settings::{Settings, codec_names};
use super::store::{RoomWait, Store, Workspaces};
use crate::file::File;
use examining::{Examined, damaged, decode, look};
use keeping::RecordVisitor;

/// Ends of segments: two that are open, one that is opened, and two that are closed meanwhile.
const TAILS: usize = 5;

/// I/Os that read for the owner at the same time.
const READS: usize = 4;

/// Bytes that are punched at once.
const PUNCH_BYTES: u64 = 1 << 30;

impl Store {
    /// Opens the spill file on `device`. Hands each record that it keeps to `keep`, where [`Settings::keep`] wants them, and otherwise empties
    /// it. Returns what was kept or given up, for people.
    ///
    /// Errors, after which nothing was written: [`Kind::Invalid`] where it holds something else, or what this device cannot have stored;
    /// [`Kind::Corrupt`] where it is not as it was written; [`Kind::Busy`] where it is another device's, or was not stopped, or keeps what is not
    /// wanted; [`Kind::NoSpace`] where it is too small, or there is no memory; [`Kind::ReadOnly`]; those of reading.
    pub async fn open(
        device: Arc<dyn BlockDevice>,
        settings: &Settings,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
        keep: RecordVisitor<'_>,
    ) -> Result<(Arc<Self>, Option<String>), Error> {
        let size = device.geometry().size;
        Self::open_as(device, size, None, settings, env, budget, keep).await
    }

    /// The same for a file that becomes longer as it is filled, up to `bytes_max`, which is not less than it has.
    pub(crate) async fn open_growing(
        file: Arc<File>,
        bytes_max: u64,
        settings: &Settings,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
        keep: RecordVisitor<'_>,
    ) -> Result<(Arc<Self>, Option<String>), Error> {
        assert!(bytes_max >= file.geometry().size, "a spill file does not shrink to {bytes_max}");
        let length = Length::new(file.clone(), bytes_max);
        Self::open_as(file, bytes_max, Some(length), settings, env, budget, keep).await
    }

    async fn open_as(
        device: Arc<dyn BlockDevice>,
        size: u64,
        length: Option<Length>,
        settings: &Settings,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
        keep: RecordVisitor<'_>,
    ) -> Result<(Arc<Self>, Option<String>), Error> {
        settings.check()?;
        let device = Seam::new(device);
        let layout = layout(&device, size, settings.segment_shift)?;
        let (charge, workspaces) = charge(&layout, settings, budget)?;
        let (superblock, kept, note) = match look(&device, &workspaces.reads, settings, &layout).await? {
            Examined::Kept(found) => {
                let in_use = Superblock {
                    layout,
                    state: FileState::InUse,
                    checkpoint: CheckpointSpan::default(),
                    codecs: codec_names(&settings.codecs),
                    ..(*found).clone()
                };
                (in_use, Some(found), None)
            }
            Examined::Empty(note) => (fresh(layout, settings, &*env), None, note),
        };
        let store = Arc::new(Self {
            segments: Segments::new(layout.segments),
            space: Space::new(&layout),
            streams: OpenSegments::default(),
            opening: [Semaphore::new(1), Semaphore::new(1)],
            cleaning: Semaphore::new(1),
            freeing: Marks::new(layout.segments.into()),
            set_aside: Marks::new(layout.segments.into()),
            stale: Marks::new(layout.segments.into()),
            upkeep: Work::default(),
            settled: WaitList::default(),
            counters: Counters::default(),
            failures: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            room_wait: RoomWait::default(),
            device,
            length,
            env,
            superblock,
            workspaces,
            _charge: charge,
        });
        let note = match kept {
            Some(found) => store.begin_with(&found, keep, &settings.works).await?,
            None => store.begin_empty().await.map(|()| note)?,
        };
        Ok((store, note))
    }

    /// Begins with what the file keeps; says so, for people.
    async fn begin_with(
        &self,
        found: &Superblock,
        keep: RecordVisitor<'_>,
        works: &Works,
    ) -> Result<Option<String>, Error> {
        let mut pages = 0_u64;
        let mut counted = |spilled| {
            pages += 1;
            keep(spilled)
        };
        self.restore(found.checkpoint, &mut counted, works).await.map_err(damaged)?;
        if !mutant::on("spill: leave a file that is in use as kept")
            && let Err(error) = self.begin_use().await
        {
            return Err(self.give_back(found, error).await);
        }
        self.punch_free().await;
        let name = &self.superblock.name;
        Ok(Some(format!("'{name}' has the {pages} pages that it stored before it was stopped")))
    }

    /// A start fails before anything else was written: the next one may have what is kept.
    async fn give_back(&self, found: &Superblock, error: Error) -> Error {
        self.stopped.store(true, Ordering::Relaxed);
        let mut written = Ok(());
        for at in self.superblocks() {
            written = written.and(self.write_superblock(at, found).await);
        }
        match written {
            Ok(()) => error,
            Err(_) => Error::new(
                error.kind,
                format!(
                    "{}, also not to say that it keeps what it did: the next start may begin empty",
                    error.message()
                ),
            ),
        }
    }

    /// Has the file say that it is in use, and looks whether it does: a disk that has put the superblock elsewhere would show what was kept, or
    /// given up, as what is stored, after a crash.
    async fn begin_use(&self) -> Result<(), Error> {
        self.write_superblocks(&self.superblock).await.map_err(unwritable)?;
        let written = Ok(Found::Superblock(Box::new(self.superblock.clone())));
        for at in self.superblocks() {
            let read = || decode(&self.device, &self.workspaces.reads, at);
            if read().await != written && read().await != written {
                let words = "the spill file does not have what was just written to it: its disk is broken";
                return Err(Error::new(Kind::Io, words));
            }
        }
        Ok(())
    }

    /// Footers that were there before are of another uuid: they are not to be taken for anything any more.
    async fn begin_empty(&self) -> Result<(), Error> {
        self.begin_use().await?;
        self.punch_all().await;
        Ok(())
    }

    /// Looks whether [`Store::open`] would take what the device holds. Errors as there; writes nothing.
    pub async fn examine(
        device: Arc<dyn BlockDevice>,
        settings: &Settings,
        budget: &Arc<Budget>,
    ) -> Result<(), Error> {
        let reads = Workspace::new("pages read from a spill file", budget, READS * READ_BYTES)?;
        let size = device.geometry().size;
        let device = Seam::new(device);
        let layout = layout(&device, size, settings.segment_shift)?;
        look(&device, &reads, settings, &layout).await.map(drop)
    }

    /// Looks whether the device is long enough for [`Store::open`], and can be written. Errors as there.
    pub fn fits(device: Arc<dyn BlockDevice>, settings: &Settings) -> Result<(), Error> {
        let size = device.geometry().size;
        layout(&Seam::new(device), size, settings.segment_shift).map(drop)
    }

    /// Gives the room of all segments that the file has back to the host. Where that fails, they are punched as they come free.
    async fn punch_all(&self) {
        let layout = self.layout();
        let end = (u64::from(layout.segments) + 1) << layout.shift;
        let (mut at, end) = (layout.segment_offset(0), end.min(self.device.geometry().size));
        while at < end {
            let len = PUNCH_BYTES.min(end - at);
            self.device.submit(Request::bare(Op::Discard, ByteRange::new(at, len))).await;
            at += len;
        }
    }
}

fn unwritable(kind: Kind) -> Error {
    Error::new(kind, "the spill file cannot be written")
}

/// The layout of a file that has or comes to have `size` bytes.
fn layout(device: &Seam, size: u64, shift: u32) -> Result<Layout, Error> {
    let geometry = device.geometry();
    if geometry.read_only {
        return Err(Error::new(Kind::ReadOnly, "the spill file is read-only: it has to be written"));
    }
    let block = geometry.block_size.bytes();
    if block > UNIT as u64 {
        return Err(Error::invalid(format!(
            "the spill file has blocks of {block} bytes: at most {UNIT} will do"
        )));
    }
    Layout::largest(size, shift, segments_min(shift))
}

/// Charges what a file takes in memory, whatever it holds.
fn charge(layout: &Layout, settings: &Settings, budget: &Arc<Budget>) -> Result<(Charge, Workspaces), Error> {
    let &Settings { batches, kept, .. } = settings;
    let bitmaps = 3 * Marks::bytes(layout.segments.into());
    let tables = Segments::bytes(layout.segments) + Space::bytes(layout.segments) + bitmaps;
    // The one more is the cleaner's.
    let overhead =
        batches * batch_overhead(layout, kept) + batch_overhead(layout, 0) + cleaner_overhead(layout);
    let bytes = tables + overhead as u64;
    let charge = budget.hold(bytes).map_err(|kind| {
        let segments = layout.segments;
        let words = format!(
            "no room for the records of a spill file of {segments} segments: {bytes} bytes are needed"
        );
        Error::new(
            kind,
            format!("{words}, {} are left of the memory budget: give --memory more", budget.room()),
        )
    })?;
    let space = |what, bytes| Workspace::new(what, budget, bytes);
    let workspaces = Workspaces {
        batches: space("batches that are spilled", batches * batch_bytes(layout))?,
        tails: space("summaries of a spill file", TAILS * tail_bytes(layout))?,
        reads: space("pages read from a spill file", READS * READ_BYTES)?,
        cleaner: space("cleaning a spill file", cleaner_bytes(layout))?,
    };
    Ok((charge, workspaces))
}

fn fresh(layout: Layout, settings: &Settings, env: &dyn Env) -> Superblock {
    let mut uuid = [0; 16];
    uuid.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&env.random().to_le_bytes()));
    Superblock {
        layout,
        uuid,
        slots: settings.slots,
        state: FileState::InUse,
        checkpoint: CheckpointSpan::default(),
        codecs: codec_names(&settings.codecs),
        name: settings.name.clone(),
    }
}
