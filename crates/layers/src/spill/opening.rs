//! How a spill file is opened: what it holds is looked at, refused or given up, and it begins empty.

use std::sync::Arc;

use spillway_core::stats::Counters;
use spillway_core::sync::{AtomicBool, AtomicU32, Marks, Semaphore, WaitList, Work};
use spillway_core::{
    BlockDevice, Budget, ByteRange, Charge, Env, Error, IoBuf, Kind, Op, Request, Seam, Workspace,
};

use super::batch::{batch_bytes, batch_overhead};
use super::cleaner::{cleaner_bytes, cleaner_overhead};
use super::format::{
    CODEC_NAME_LEN, CODECS, CheckpointSpan, Found, Layout, NAME_LEN_MAX, SEGMENT_SHIFT, SEGMENT_SHIFT_MIN,
    State, Superblock, UNIT, copy_offset,
};
use super::length::Length;
use super::reading::READ_BYTES;
use super::segments::Segments;
use super::space::{Space, segments_min};
use super::store::{Store, Workspaces};
use super::streams::{Streams, tail_bytes};
use crate::blank;
use crate::file::File;
use crate::signatures::Scan;

/// Ends of segments: two that are open, one that is opened, and two that are closed meanwhile.
const TAILS: usize = 5;

/// I/Os that read for the owner at the same time.
const READS: usize = 4;

/// Bytes besides both ends that are looked at, of those that are stored, before a file is taken for blank.
const LOOKED_AT: u64 = 64 << 20;

/// Extents that are asked for at once.
const EXTENTS: usize = 64;

/// Bytes that are punched at once.
const PUNCH_BYTES: u64 = 1 << 30;

/// What a spill file is opened with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device's name, at most 256 bytes.
    pub name: String,
    /// Slots of the device.
    pub slots: u64,
    /// Names of its codecs by number, at most 8 of at most 16 bytes.
    pub codecs: Vec<String>,
    /// Take a file whatever it holds.
    pub force: bool,
    /// Take one that a device of this name has left without being stopped.
    pub retake: bool,
    /// What to do about a file that is refused, where it is not to be forced.
    pub remedy: Option<&'static str>,
    /// Buffers of a MiB for what is written: so many batches are under way at once.
    pub batches: usize,
    /// Bytes that the owner keeps for each record of a batch: charged for as many as a batch may have.
    pub kept: usize,
    /// Bytes of a segment as a power of two: 22, in tests from 14 on.
    pub segment_shift: u32,
}

impl Settings {
    /// Those of a device with this name and so many slots.
    pub fn new(name: impl Into<String>, slots: u64) -> Self {
        Self {
            name: name.into(),
            slots,
            codecs: Vec::new(),
            force: false,
            retake: false,
            remedy: None,
            batches: 4,
            kept: 0,
            segment_shift: SEGMENT_SHIFT,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let len = self.name.len();
        if len > NAME_LEN_MAX {
            return Err(Error::invalid(format!(
                "a device that spills has a name of at most {NAME_LEN_MAX} bytes, not {len}"
            )));
        }
        assert!((SEGMENT_SHIFT_MIN..=SEGMENT_SHIFT).contains(&self.segment_shift) && self.batches > 0);
        assert!(self.codecs.len() <= CODECS, "{} codecs", self.codecs.len());
        Ok(())
    }

    fn codec_names(&self) -> [[u8; CODEC_NAME_LEN]; CODECS] {
        let mut names = [[0; CODEC_NAME_LEN]; CODECS];
        for (into, name) in names.iter_mut().zip(&self.codecs) {
            into[..name.len()].copy_from_slice(name.as_bytes());
        }
        names
    }
}

impl Store {
    /// Opens the spill file on `device` and empties it. Returns what was given up, for people.
    ///
    /// Errors, after which nothing was written: [`Kind::Invalid`] where it holds something else, or is not as it was written;
    /// [`Kind::Busy`] where it is another device's, or was not stopped; [`Kind::NoSpace`] where it is too small, or there is no
    /// memory; [`Kind::ReadOnly`]; those of reading.
    pub async fn open(
        device: Arc<dyn BlockDevice>,
        settings: &Settings,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
    ) -> Result<(Arc<Self>, Option<String>), Error> {
        let size = device.geometry().size;
        Self::open_as(device, size, None, settings, env, budget).await
    }

    /// The same for a file that becomes longer as it is filled, up to `bytes_max`, which is not less than it has.
    pub(crate) async fn open_growing(
        file: Arc<File>,
        bytes_max: u64,
        settings: &Settings,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
    ) -> Result<(Arc<Self>, Option<String>), Error> {
        assert!(bytes_max >= file.geometry().size, "a spill file does not shrink to {bytes_max}");
        let length = Length::new(file.clone(), bytes_max);
        Self::open_as(file, bytes_max, Some(length), settings, env, budget).await
    }

    async fn open_as(
        device: Arc<dyn BlockDevice>,
        size: u64,
        length: Option<Length>,
        settings: &Settings,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
    ) -> Result<(Arc<Self>, Option<String>), Error> {
        settings.check()?;
        let device = Seam::new(device);
        let layout = layout(&device, size, settings.segment_shift)?;
        let (charge, workspaces) = charge(&layout, settings, budget)?;
        let note = give_up(&device, &workspaces.reads, settings).await?;
        let superblock = fresh(layout, settings, &*env);
        let store = Arc::new(Self {
            segments: Segments::new(layout.segments),
            space: Space::new(&layout),
            streams: Streams::default(),
            opening: [Semaphore::new(1), Semaphore::new(1)],
            cleaning: Semaphore::new(1),
            freeing: Marks::new(layout.segments.into()),
            set_aside: Marks::new(layout.segments.into()),
            // Footers that were there before are of another uuid.
            stale: Marks::new(layout.segments.into()),
            upkeep: Work::default(),
            settled: WaitList::default(),
            counters: Counters::default(),
            failures: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            device,
            length,
            env,
            superblock,
            workspaces,
            _charge: charge,
        });
        // What was there before is not to be taken for anything any more.
        let begun = store.write_superblocks(&store.superblock).await;
        begun.map_err(|kind| Error::new(kind, "the spill file cannot be written"))?;
        store.punch_all().await;
        Ok((store, note))
    }

    /// Looks whether [`Store::open`] would take what the device holds. Errors as there; writes nothing.
    pub async fn examine(
        device: Arc<dyn BlockDevice>,
        settings: &Settings,
        budget: &Arc<Budget>,
    ) -> Result<(), Error> {
        let reads = Workspace::new("pages read from a spill file", budget, READS * READ_BYTES)?;
        give_up(&Seam::new(device), &reads, settings).await.map(drop)
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
        state: State::InUse,
        checkpoint: CheckpointSpan::default(),
        codecs: settings.codec_names(),
        name: settings.name.clone(),
    }
}

/// Looks at what the device holds, and refuses what may not be given up. Returns what is.
async fn give_up(device: &Seam, buffers: &Workspace, settings: &Settings) -> Result<Option<String>, Error> {
    let found = find(device, buffers, settings.segment_shift).await.map_err(unreadable)?;
    let reason = match found {
        // One that holds nothing is anybody's.
        Found::Superblock(found) if found.state == State::Stopped && found.checkpoint.segments == 0 => {
            return Ok(None);
        }
        Found::Superblock(found) if found.state == State::Stopped && found.name == settings.name => {
            return Ok(Some(format!(
                "what '{}' had spilled before it was stopped is gone: the spill file begins empty",
                found.name
            )));
        }
        Found::Superblock(found) if found.name == settings.name && settings.retake => {
            let name = found.name;
            return Ok(Some(format!(
                "what '{name}' had spilled before it was killed is gone: the spill file begins empty"
            )));
        }
        Found::Superblock(found) if found.name == settings.name => Refusal::new(
            Kind::Busy,
            format!("the spill file was not stopped: '{}' uses it, or was killed", found.name),
            "spill_retake takes it each time that the device was killed, --force once; what was spilled is lost",
        ),
        Found::Superblock(found) => Refusal::new(
            Kind::Busy,
            format!("the spill file belongs to '{}', not to '{}'", found.name, settings.name),
            "give another one, or --force, which empties it",
        ),
        Found::Version(version) => {
            let known = super::format::VERSION;
            let what =
                format!("the spill file has version {version}, but only version {known} is known here");
            Refusal::new(Kind::Invalid, what, "--force empties it")
        }
        Found::Damaged => {
            Refusal::new(Kind::Invalid, "the spill file's superblock is damaged".into(), "--force empties it")
        }
        Found::Foreign => match foreign(device, buffers, settings.segment_shift).await? {
            Some(refusal) => refusal,
            None => return Ok(None),
        },
    };
    if !settings.force {
        return Err(reason.error(settings.remedy));
    }
    let what = reason.what;
    tracing::warn!("{}: taking the spill file by force: {what}", settings.name);
    Ok(Some(format!("the spill file was taken by force: {what}")))
}

/// Why a file is not taken, and what would take it.
struct Refusal {
    kind: Kind,
    what: String,
    advice: &'static str,
}

impl Refusal {
    fn new(kind: Kind, what: String, advice: &'static str) -> Self {
        Self { kind, what, advice }
    }

    fn error(&self, remedy: Option<&str>) -> Error {
        Error::new(self.kind, format!("{}: {}", self.what, remedy.unwrap_or(self.advice)))
    }
}

/// Why a device that holds no superblock is refused, unless it is blank.
async fn foreign(device: &Seam, buffers: &Workspace, shift: u32) -> Result<Option<Refusal>, Error> {
    let geometry = device.geometry();
    let mut scan = Scan::new(geometry.size);
    let copy = copy_offset(shift)..copy_offset(shift) + UNIT as u64;
    let ends = blank::ends(geometry.size, geometry.block_size.bytes());
    for range in ends.into_iter().chain(Some(copy).filter(|copy| copy.end <= geometry.size)) {
        blank::look(device, buffers, &mut scan, range).await.map_err(unreadable)?;
    }
    look_at_stored(device, buffers, &mut scan).await.map_err(unreadable)?;
    let Some(byte) = scan.nonzero else { return Ok(None) };
    let names = scan.names.join(", ");
    let what = match names.is_empty() {
        true => format!(
            "the spill file is not blank, byte {byte} is not zero, and what it belongs to is not recognised"
        ),
        false => format!("the spill file holds something else, {names}"),
    };
    let advice = "to spill to it anyway, which destroys that, use --force";
    Ok(Some(Refusal::new(Kind::Invalid, what, advice)))
}

/// Looks at what the file stores: it will be punched as a whole.
async fn look_at_stored(device: &Seam, buffers: &Workspace, scan: &mut Scan) -> Result<(), Kind> {
    let (mut at, size, mut left) = (0, device.geometry().size, LOOKED_AT);
    while at < size && left > 0 && scan.nonzero.is_none() {
        for extent in device.extents(ByteRange::new(at, size - at), EXTENTS).await? {
            let len = if extent.hole || extent.zero { 0 } else { extent.len.min(left) };
            blank::look(device, buffers, scan, at..at + len).await?;
            left -= len;
            at += extent.len;
        }
    }
    Ok(())
}

/// The superblock, or its copy where that is not sound.
async fn find(device: &Seam, buffers: &Workspace, shift: u32) -> Result<Found, Kind> {
    let first = decode(device, buffers, 0).await?;
    if first != Found::Damaged || copy_offset(shift) + UNIT as u64 > device.geometry().size {
        return Ok(first);
    }
    Ok(match decode(device, buffers, copy_offset(shift)).await? {
        found @ Found::Superblock(_) => found,
        _ => first,
    })
}

async fn decode(device: &Seam, buffers: &Workspace, at: u64) -> Result<Found, Kind> {
    let buf: IoBuf = buffers.take(UNIT).await;
    let reply = device.submit(Request::read(at, buf)).await;
    reply.result?;
    Ok(Superblock::decode(reply.buf.first_chunk().expect("a unit was read")))
}

fn unreadable(kind: Kind) -> Error {
    Error::new(kind, "the spill file cannot be read, to see what it holds")
}
