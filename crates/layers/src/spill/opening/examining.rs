//! What a spill file holds before it is opened: taken, given up, or refused. Nothing is written.

use spillway_core::size::human;
use spillway_core::{ByteRange, Error, Kind, Request, Seam, Workspace};

use crate::blank;
use crate::signatures::Scan;
use crate::spill::format::{CODEC_NAME_LEN, CODECS, FileState, Found, Layout, Superblock, UNIT, copy_offset};
use crate::spill::settings::{Keep, Settings, codec_names};

/// Bytes besides both ends that are looked at, of those that are stored, before a file is taken for blank.
const LOOKED_AT: u64 = 64 << 20;

/// Extents that are asked for at once.
const EXTENTS: usize = 64;

/// How a file is taken.
pub(super) enum Examined {
    /// With what it keeps.
    Kept(Box<Superblock>),
    /// Emptied; what was given up, for people.
    Empty(Option<String>),
}

/// Looks at what the device holds, and refuses what may not be given up.
pub(super) async fn look(
    device: &Seam,
    buffers: &Workspace,
    settings: &Settings,
    layout: &Layout,
) -> Result<Examined, Error> {
    let taken = take(device, buffers, settings, layout).await?;
    match &taken {
        Examined::Empty(note) if settings.keep == Keep::Always => {
            let note = note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
            let name = &settings.name;
            Err(Error::invalid(format!(
                "the spill file does not have what '{name}' stored{note}: leave --require-kept out to begin empty"
            )))
        }
        _ => Ok(taken),
    }
}

async fn take(
    device: &Seam,
    buffers: &Workspace,
    settings: &Settings,
    layout: &Layout,
) -> Result<Examined, Error> {
    let found = find(device, buffers, settings.segment_shift).await.map_err(unreadable)?;
    let gone = |had: &str| {
        let name = &settings.name;
        Ok(Examined::Empty(Some(format!("what '{name}' had {had} is gone: the spill file begins empty"))))
    };
    let reason = match found {
        // One that holds nothing is anybody's.
        Found::Superblock(found) if found.state == FileState::Stopped && found.checkpoint.segments == 0 => {
            return Ok(Examined::Empty(None));
        }
        Found::Superblock(found) if found.state == FileState::Stopped && found.name == settings.name => {
            return gone("spilled before it was stopped");
        }
        Found::Superblock(found) if found.state == FileState::Kept && found.name == settings.name => {
            match not_kept(&found, settings, layout) {
                None => return Ok(Examined::Kept(found)),
                Some(refusal) => refusal,
            }
        }
        Found::Superblock(found) if found.name == settings.name && settings.keep != Keep::Never => {
            return gone("stored before it was killed");
        }
        Found::Superblock(found) if found.name == settings.name && settings.retake => {
            return gone("spilled before it was killed");
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
            let known = crate::spill::format::VERSION;
            let what =
                format!("the spill file has version {version}, but only version {known} is known here");
            Refusal::new(Kind::Invalid, what, "--force empties it")
        }
        Found::Damaged => {
            Refusal::new(Kind::Invalid, "the spill file's superblock is damaged".into(), "--force empties it")
        }
        Found::Foreign => match foreign(device, buffers, settings.segment_shift).await? {
            Some(refusal) => refusal,
            None => return Ok(Examined::Empty(None)),
        },
    };
    if !settings.force {
        return Err(reason.error(settings.remedy));
    }
    let what = reason.what;
    tracing::warn!("{}: taking the spill file by force: {what}", settings.name);
    Ok(Examined::Empty(Some(format!("the spill file was taken by force: {what}"))))
}

/// Why what a file keeps is not taken, if it is not.
fn not_kept(found: &Superblock, settings: &Settings, layout: &Layout) -> Option<Refusal> {
    let keeps = format!("the spill file keeps what '{}' stored", found.name);
    let refuse = |what, advice| Some(Refusal::new(Kind::Invalid, format!("{keeps}{what}"), advice));
    if settings.keep == Keep::Never {
        return Some(Refusal::new(Kind::Busy, keeps, "--keep takes it, --force discards it"));
    }
    let size = |slots: u64| human(slots * UNIT as u64);
    if found.slots != settings.slots {
        let sizes = format!(" at a size of {}, not {}", size(found.slots), size(settings.slots));
        return refuse(sizes, "give the same size, or --force, which discards it");
    }
    let known = codec_names(&settings.codecs);
    if found.codecs.iter().zip(&known).any(|(needed, known)| needed[0] != 0 && needed != known) {
        let codecs = format!(" compressed by {}", words(&found.codecs));
        return refuse(codecs, "give these algorithms too, or --force, which discards it");
    }
    if found.layout.shift != layout.shift || found.layout.segments > layout.segments {
        let segments =
            format!(" in {} segments, of which {} are left", found.layout.segments, layout.segments);
        return refuse(segments, "give a spill_size as it was, or --force, which discards it");
    }
    None
}

/// The names of codecs.
fn words(codecs: &[[u8; CODEC_NAME_LEN]; CODECS]) -> String {
    let names = codecs.iter().map(|name| String::from_utf8_lossy(name.trim_ascii_end()).replace('\0', ""));
    names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ")
}

pub(super) fn damaged(kind: Kind) -> Error {
    let what = match kind {
        Kind::Corrupt => "is not as it was written: --force without --keep discards what is left of it",
        Kind::NoSpace | Kind::OutOfMemory => {
            "there is no memory for the table of its pages: give --memory more"
        }
        _ => {
            "cannot be read: the system's log may tell of its disk; if that cannot be helped, --force without --keep discards what is left"
        }
    };
    Error::new(kind, format!("the spill file keeps what the device stored, and {what}"))
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

/// The superblock, or its copy where that is not sound. A file keeps something as long as neither of them says otherwise: a write that a
/// disk has put elsewhere leaves an old one behind.
async fn find(device: &Seam, buffers: &Workspace, shift: u32) -> Result<Found, Kind> {
    let first = decode(device, buffers, 0).await?;
    let is_kept = matches!(&first, Found::Superblock(found) if found.state == FileState::Kept);
    let is_short = copy_offset(shift) + UNIT as u64 > device.geometry().size;
    if is_short || first != Found::Damaged && !is_kept {
        return Ok(first);
    }
    Ok(match decode(device, buffers, copy_offset(shift)).await? {
        found @ Found::Superblock(_) => found,
        _ => first,
    })
}

pub(super) async fn decode(device: &Seam, buffers: &Workspace, at: u64) -> Result<Found, Kind> {
    let read = async || device.submit(Request::read(at, buffers.take(UNIT).await)).await;
    let mut reply = read().await;
    if reply.result.is_err() {
        drop(reply);
        reply = read().await;
    }
    reply.result?;
    Ok(Superblock::decode(reply.buf.first_chunk().expect("a unit was read")))
}

fn unreadable(kind: Kind) -> Error {
    Error::new(kind, "the spill file cannot be read, to see what it holds")
}
