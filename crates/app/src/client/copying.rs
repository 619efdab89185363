//! From an image to a device or back, in pieces, without what reads as zero.
//!
//! A thread of its own reads ahead of who writes, by a few pieces.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::sync_channel;
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use spillway_core::ByteRange;

use super::nbd::Nbd;

/// Bytes read and written at once.
const PIECE: usize = 1 << 20;

/// Pieces read ahead.
const AHEAD: usize = 8;

/// Bytes that are looked at for zeroes together.
const BLOCK: usize = 4096;

/// The longest range of a request that carries no data.
const BARE: u64 = 1 << 30;

/// Where bytes come from.
pub(super) trait CopySource: Send {
    /// All of them.
    fn size(&self) -> u64;

    /// Bytes from the start of a range on that are alike, and whether they read as zero.
    fn extent(&mut self, range: ByteRange) -> Result<(u64, bool)>;

    /// What lies from `offset` on.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// Where bytes go.
pub(super) trait Target {
    /// Stores `bytes`.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes a range read as zero.
    fn zero(&mut self, range: ByteRange) -> Result<()>;
}

impl CopySource for Nbd {
    fn size(&self) -> u64 {
        Nbd::size(self)
    }

    fn extent(&mut self, range: ByteRange) -> Result<(u64, bool)> {
        Nbd::extent(self, ByteRange { len: range.len.min(BARE), ..range })
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        Nbd::read(self, offset, into)
    }
}

/// A device: requests of whole sectors, so that what ends within one is filled up with zeroes.
impl Target for Nbd {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.len().is_multiple_of(SECTOR) {
            return Nbd::write(self, offset, bytes);
        }
        let mut whole = bytes.to_vec();
        whole.resize(bytes.len().next_multiple_of(SECTOR), 0);
        Nbd::write(self, offset, &whole)
    }

    fn zero(&mut self, range: ByteRange) -> Result<()> {
        let end = (range.offset + range.len).next_multiple_of(SECTOR as u64);
        for at in (range.offset..end).step_by(BARE as usize) {
            self.write_zeroes(ByteRange::new(at, BARE.min(end - at)))?;
        }
        Ok(())
    }
}

const SECTOR: usize = spillway_core::SECTOR as usize;

/// A raw image to be read.
pub(super) struct RawImage {
    file: File,
    size: u64,
}

impl RawImage {
    pub(super) fn new(file: File) -> Result<Self> {
        let size = seek(&file, SeekFrom::End(0)).context("an image has a length")?;
        Ok(Self { file, size })
    }
}

impl CopySource for RawImage {
    fn size(&self) -> u64 {
        self.size
    }

    /// Where the system does not know holes, everything is data.
    fn extent(&mut self, range: ByteRange) -> Result<(u64, bool)> {
        let end = range.offset + range.len;
        let data = match seek(&self.file, SeekFrom::Data(range.offset)) {
            Ok(data) => data.min(end),
            Err(Errno::NXIO) => end,
            Err(_) => return Ok((range.len, false)),
        };
        if data > range.offset {
            return Ok((data - range.offset, true));
        }
        let hole = seek(&self.file, SeekFrom::Hole(range.offset)).unwrap_or(end).min(end);
        Ok((hole - range.offset, false))
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, offset).context("the image cannot be read")
    }
}

/// A new file: what is not written is a hole.
impl Target for &File {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_all_at(bytes, offset).context("the image cannot be written")
    }

    fn zero(&mut self, _: ByteRange) -> Result<()> {
        Ok(())
    }
}

/// A pipe: every byte goes there, in order.
pub(super) struct PipeTarget(pub(super) File);

impl Target for PipeTarget {
    fn write(&mut self, _: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).context("standard output takes no more of the image")
    }

    fn zero(&mut self, range: ByteRange) -> Result<()> {
        let (end, zeroes) = (range.offset + range.len, vec![0; range.len.min(PIECE as u64) as usize]);
        (range.offset..end)
            .step_by(PIECE)
            .try_for_each(|at| self.write(at, &zeroes[..(end - at).min(PIECE as u64) as usize]))
    }
}

/// Something of a source, from an offset on.
enum Part {
    Bytes(u64, Vec<u8>),
    Zeroes(ByteRange),
}

impl Part {
    fn range(&self) -> ByteRange {
        match self {
            Part::Bytes(offset, bytes) => ByteRange::new(*offset, bytes.len() as u64),
            Part::Zeroes(range) => *range,
        }
    }
}

/// Copies all of `source`, and says at each part how many bytes were `copied`; returns how many bytes are not zero, in blocks.
pub(super) fn copy(
    source: &mut dyn CopySource,
    target: &mut dyn Target,
    mut copied: impl FnMut(u64),
) -> Result<u64> {
    let (size, mut end, mut stored) = (source.size(), 0, 0);
    let (sender, parts) = sync_channel(AHEAD);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            // Nobody takes a part any more where writing failed.
            read(source, |part| sender.send(part).is_ok())
        });
        for part in parts {
            let ByteRange { offset, len } = part.range();
            assert_eq!(offset, end, "a part of a copy begins where the last one ended");
            match part {
                Part::Zeroes(range) => target.zero(range)?,
                Part::Bytes(offset, bytes) => stored += write(target, offset, &bytes)?,
            }
            end += len;
            copied(end);
        }
        reader.join().expect("a reader does not panic")
    })?;
    assert_eq!(end, size, "a copy ends with its source");
    Ok(stored)
}

/// Copies what `stream` has to the start of `target`, which has room for `room` bytes; returns how many these are, and how many of them are
/// not zero, in blocks. Says at each part how many were `copied`. Nothing is read ahead: who writes to it may never end.
pub(super) fn copy_stream(
    stream: &mut impl Read,
    room: u64,
    target: &mut dyn Target,
    mut copied: impl FnMut(u64),
) -> Result<(u64, u64)> {
    let (mut end, mut stored, mut piece) = (0, 0, Vec::with_capacity(PIECE));
    loop {
        piece.clear();
        let read = stream.by_ref().take(PIECE as u64).read_to_end(&mut piece);
        let len = read.context("the image cannot be read")?;
        ensure!(
            len as u64 <= room - end,
            "the image is longer than the device, which has {room} bytes and a part of it now: spillway resize makes it larger"
        );
        stored += write(target, end, &piece)?;
        end += len as u64;
        copied(end);
        if len < PIECE {
            return Ok((end, stored));
        }
    }
}

/// Shows the parts of a source in order, as long as they are taken.
fn read(source: &mut dyn CopySource, mut take: impl FnMut(Part) -> bool) -> Result<()> {
    let (size, mut at) = (source.size(), 0);
    while at < size {
        let (len, zero) = source.extent(ByteRange::new(at, size - at))?;
        assert!(len <= size - at, "an extent of {len} bytes at {at} of {size}");
        if zero {
            if !take(Part::Zeroes(ByteRange::new(at, len))) {
                return Ok(());
            }
        } else {
            for start in (at..at + len).step_by(PIECE) {
                let mut bytes = vec![0; (at + len - start).min(PIECE as u64) as usize];
                source.read(start, &mut bytes)?;
                if !take(Part::Bytes(start, bytes)) {
                    return Ok(());
                }
            }
        }
        at += len;
    }
    Ok(())
}

/// Stores a piece, its blocks of zeroes as zeroes; returns how many bytes the others have.
fn write(target: &mut dyn Target, offset: u64, bytes: &[u8]) -> Result<u64> {
    let mut stored = 0;
    for (run, zero) in runs(bytes) {
        let (at, len) = (offset + run.start as u64, run.len() as u64);
        if zero {
            target.zero(ByteRange::new(at, len))?;
        } else {
            target.write(at, &bytes[run])?;
            stored += len;
        }
    }
    Ok(stored)
}

/// Runs of blocks that are zero or not.
fn runs(bytes: &[u8]) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    for (at, block) in (0..).step_by(BLOCK).zip(bytes.chunks(BLOCK)) {
        let (zero, end) = (block == &[0; BLOCK][..block.len()], at + block.len());
        match runs.last_mut() {
            Some((run, like)) if *like == zero => run.end = end,
            _ => runs.push((at..end, zero)),
        }
    }
    assert_eq!(runs.last().map_or(0, |(run, _)| run.end), bytes.len(), "runs end with their bytes");
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn runs_cover_everything_and_tell_zeroes() {
        assert!(runs(&[]).is_empty());
        let mut bytes = vec![0; 5 * BLOCK + 100];
        assert_eq!(runs(&bytes), [(0..bytes.len(), true)]);
        (bytes[BLOCK], bytes[2 * BLOCK - 1], bytes[2 * BLOCK], bytes[5 * BLOCK + 99]) = (1, 1, 1, 1);
        let zero_and_not = [
            (0..BLOCK, true),
            (BLOCK..3 * BLOCK, false),
            (3 * BLOCK..5 * BLOCK, true),
            (5 * BLOCK..bytes.len(), false),
        ];
        assert_eq!(runs(&bytes), zero_and_not);
    }

    /// A pipe gives what it has, in pieces of any length.
    #[test]
    fn a_stream_is_copied_to_its_end_or_as_far_as_there_is_room() {
        struct Drops<'a>(&'a [u8]);
        impl Read for Drops<'_> {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                let len = into.len().min(1 + self.0.len() % 4095);
                self.0.read(&mut into[..len])
            }
        }
        let scratch = Scratch::new("stream");
        let path = scratch.path().join("to");
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE] {
            let mut bytes = vec![7; len];
            bytes.iter_mut().take(BLOCK).for_each(|byte| *byte = 0);
            let target = File::create(&path).unwrap();
            target.set_len(len as u64).unwrap();
            let zero = len.min(BLOCK);
            let copied = copy_stream(&mut Drops(&bytes), len as u64, &mut &target, |_| {}).unwrap();
            assert_eq!(copied, (len as u64, (len - zero) as u64));
            assert!(std::fs::read(&path).unwrap() == bytes, "{len} bytes");
            if len > 0 {
                let refused =
                    copy_stream(&mut Drops(&bytes), len as u64 - 1, &mut &target, |_| {}).unwrap_err();
                assert!(refused.to_string().contains("longer than the device"), "{refused}");
            }
            let mut stream = PipeTarget(File::create(&path).unwrap());
            let again = scratch.path().join("again");
            std::fs::write(&again, &bytes).unwrap();
            copy(&mut RawImage::new(File::open(&again).unwrap()).unwrap(), &mut stream, |_| {}).unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes, "{len} bytes again");
        }
    }

    #[test]
    fn a_sparse_file_of_any_length_is_copied_and_stays_sparse() {
        let scratch = Scratch::new("copying");
        for len in [0, 1, 511, 4096, 4097, 3 * PIECE + 777] {
            let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
            let file = File::create(&from).unwrap();
            file.set_len(len as u64).unwrap();
            if len > PIECE {
                file.write_all_at(&[7; 5000], PIECE as u64 - 100).unwrap();
                file.write_all_at(&[8; 700], 3 * PIECE as u64 + 70).unwrap();
            }
            let target = File::create(&to).unwrap();
            target.set_len(len as u64).unwrap();
            let (mut source, mut last) = (RawImage::new(File::open(&from).unwrap()).unwrap(), 0);
            let stored = copy(&mut source, &mut &target, |copied| last = copied).unwrap();
            assert_eq!(last, len as u64);
            assert!(stored <= 16384 && (stored > 0) == (len > PIECE), "{stored} bytes of {len}");
            assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap(), "{len} bytes");
        }
    }
}
