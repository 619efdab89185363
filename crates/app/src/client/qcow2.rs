//! A qcow2 image to be read: what the file itself holds, and nothing that it names.
//!
//! Images come from anybody. One may name a backing file, a data file or a server, which a program that opens it would read with the
//! rights of its user. So the format is read here, from the one descriptor that was opened, and an image that needs anything else is
//! refused. The format is QEMU's `docs/interop/qcow2.txt`. Nothing that an image says is believed: every offset is read within the file,
//! and a table takes no more memory than a cluster, of at most 2 MiB.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail, ensure};
use libdeflater::Decompressor;
use rustix::fs::{SeekFrom, seek};
use spillway_core::ByteRange;

use super::copying::CopySource;

const MAGIC: &[u8] = b"QFI\xfb";

/// Bytes of the header of version 2, and of the fields of version 3 that are read.
const HEADER_LEN: usize = 72;
const HEADER_LEN_MAX: usize = 105;

/// Incompatible features of version 3 by their bits. Dirty reference counts, bit 0, are no matter to a reader.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const EXTENDED: u64 = 1 << 4;

/// Where an entry of either table leads.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// An entry of a cluster: it is compressed; it reads as zero, in version 3.
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;

/// Compressed bytes are counted in these.
const SECTOR: u64 = 512;

/// What the header says.
struct Header {
    version: u32,
    cluster_bits: u32,
    size: u64,
    l1_len: u32,
    l1_offset: u64,
    zstd: bool,
}

impl Header {
    /// Refuses what is not read here, in words.
    fn decode(bytes: &[u8]) -> Result<Self> {
        ensure!(bytes.len() >= HEADER_LEN && bytes.starts_with(MAGIC), "it is no qcow2 image");
        let u32_at = |at| u32::from_be_bytes(field(bytes, at));
        let u64_at = |at| u64::from_be_bytes(field(bytes, at));
        let version = u32_at(4);
        ensure!(matches!(version, 2 | 3), "its qcow2 version is {version}; 2 and 3 are read");
        ensure!(u64_at(8) == 0, "the qcow2 image names a backing file, which is not read; {WHOLE}");
        ensure!(u32_at(32) == 0, "the qcow2 image is encrypted; {WHOLE}");
        let features = if version == 2 { 0 } else { u64_at(72) };
        ensure!(features & DATA_FILE == 0, "the qcow2 image names a data file, which is not read; {WHOLE}");
        ensure!(features & EXTENDED == 0, "the qcow2 image has extended L2 entries; {WHOLE}");
        ensure!(
            features & CORRUPT == 0,
            "the qcow2 image is marked corrupt; qemu-img check -r all repairs it"
        );
        let known = DIRTY | COMPRESSION;
        ensure!(
            features & !known == 0,
            "the qcow2 image has features that are not read ({features:#x}); {WHOLE}"
        );
        let compression = if features & COMPRESSION == 0 { 0 } else { bytes.get(104).copied().unwrap_or(0) };
        ensure!(compression <= 1, "its qcow2 compression is number {compression}; zlib and zstd are read");
        let cluster_bits = u32_at(20);
        ensure!(
            (9..=21).contains(&cluster_bits),
            "its qcow2 clusters have 2^{cluster_bits} bytes; 2^9 to 2^21 are read"
        );
        let (size, l1_len, l1_offset) = (u64_at(24), u32_at(36), u64_at(40));
        let header = Self { version, cluster_bits, size, l1_len, l1_offset, zstd: compression == 1 };
        let needed = size.div_ceil(header.table_span());
        ensure!(
            needed <= u64::from(l1_len),
            "the qcow2 image is damaged: {size} bytes need {needed} tables, it has {l1_len}"
        );
        Ok(header)
    }

    fn cluster_len(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes that one table of clusters is about: an entry has 8.
    fn table_span(&self) -> u64 {
        1 << (2 * self.cluster_bits - 3)
    }
}

/// What to do about an image that needs more than its own file.
const WHOLE: &str = "make a whole one first: qemu-img convert -O qcow2 IMAGE NEW";

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|field| field.try_into().ok()).unwrap_or([0; N])
}

/// What a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cluster {
    Zero,
    /// Its bytes lie there.
    At(u64),
    /// So many bytes at most, of which it is made.
    Compressed(u64, u64),
}

/// See the head of this file.
pub(super) struct Qcow2 {
    file: File,
    len: u64,
    header: Header,
    /// The table that was read last, by its number; where there is none, its clusters read as zero.
    table: Option<(u64, Option<Vec<u8>>)>,
    /// The compressed cluster that was read last, by its number.
    plain: Option<(u64, Vec<u8>)>,
}

impl Qcow2 {
    /// Reads the header.
    pub(super) fn new(file: File) -> Result<Self> {
        let len = seek(&file, SeekFrom::End(0)).context("an image has a length")?;
        let mut head = [0; HEADER_LEN_MAX];
        let read = (len as usize).min(HEADER_LEN_MAX);
        file.read_exact_at(&mut head[..read], 0).context("the image cannot be read")?;
        let header = Header::decode(&head[..read])?;
        Ok(Self { file, len, header, table: None, plain: None })
    }

    /// What lies at an offset of the device.
    fn cluster(&mut self, at: u64) -> Result<Cluster> {
        let (number, span) = (at / self.header.table_span(), self.header.table_span());
        if self.table.as_ref().is_none_or(|(known, _)| *known != number) {
            self.table = Some((number, self.read_table(number)?));
        }
        let Some((_, Some(table))) = &self.table else { return Ok(Cluster::Zero) };
        let index = ((at % span) >> self.header.cluster_bits) as usize;
        assert!(8 * index + 8 <= table.len(), "entry {index} of a table of {} bytes", table.len());
        self.meaning(u64::from_be_bytes(field(table, 8 * index)))
    }

    fn read_table(&self, number: u64) -> Result<Option<Vec<u8>>> {
        assert!(number < self.header.l1_len.into(), "the header was checked against the size");
        let place = self.header.l1_offset.saturating_add(8 * number);
        let place = u64::from_be_bytes(self.bytes_at(place, 8)?[..].try_into().expect("8 bytes")) & OFFSET;
        if place == 0 {
            return Ok(None);
        }
        self.bytes_at(place, self.header.cluster_len()).map(Some)
    }

    fn meaning(&self, entry: u64) -> Result<Cluster> {
        if entry & COMPRESSED != 0 {
            // The number of further sectors stands above the offset.
            let shift = 62 - (self.header.cluster_bits - 8);
            let offset = entry & ((1 << shift) - 1);
            let sectors = ((entry & (COMPRESSED - 1)) >> shift) + 1;
            return Ok(Cluster::Compressed(offset, sectors * SECTOR - offset % SECTOR));
        }
        let offset = entry & OFFSET;
        if offset == 0 || (self.header.version > 2 && entry & ZERO != 0) {
            return Ok(Cluster::Zero);
        }
        ensure!(
            offset.is_multiple_of(self.header.cluster_len()),
            "the qcow2 image is damaged: data at {offset}"
        );
        Ok(Cluster::At(offset))
    }

    /// Bytes of the file, all of which are there.
    fn bytes_at(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let within = offset.checked_add(len).is_some_and(|end| end <= self.len);
        ensure!(
            within,
            "the qcow2 image is damaged or cut off: it has {} bytes and needs {len} at {offset}",
            self.len
        );
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, offset).context("the image cannot be read")?;
        Ok(bytes)
    }

    /// Reads within a cluster.
    fn read_part(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        let within = at % self.header.cluster_len();
        let len = into.len() as u64;
        assert!(within + len <= self.header.cluster_len(), "{len} bytes from {within} on leave a cluster");
        match self.cluster(at)? {
            Cluster::Zero => into.fill(0),
            Cluster::At(offset) => self.read_uncompressed(offset + within, into)?,
            Cluster::Compressed(offset, len) => {
                let number = at / self.header.cluster_len();
                if self.plain.as_ref().is_none_or(|(known, _)| *known != number) {
                    self.plain = Some((number, self.decompressed(offset, len)?));
                }
                let (_, plain) = self.plain.as_ref().expect("it was just read");
                into.copy_from_slice(&plain[within as usize..][..into.len()]);
            }
        }
        Ok(())
    }

    /// The last cluster of a file may end with the file, and is zero behind that.
    fn read_uncompressed(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let cluster = offset - offset % self.header.cluster_len();
        ensure!(
            cluster < self.len,
            "the qcow2 image is cut off: it has {} bytes, and data at {offset}",
            self.len
        );
        let there = self.len.saturating_sub(offset).min(into.len() as u64);
        let (read, behind) = into.split_at_mut(there as usize);
        behind.fill(0);
        self.file.read_exact_at(read, offset).context("the image cannot be read")
    }

    fn decompressed(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        // The last sector may end behind the file.
        let bytes = self.bytes_at(offset, len.min(self.len.saturating_sub(offset)))?;
        let mut plain = vec![0; self.header.cluster_len() as usize];
        let made = match self.header.zstd {
            true => unzstd(&bytes, &mut plain),
            false => Decompressor::new().deflate_decompress(&bytes, &mut plain).ok(),
        };
        if made != Some(plain.len()) {
            bail!("the qcow2 image is damaged: what is compressed at {offset} cannot be read");
        }
        Ok(plain)
    }
}

/// The first frame; what follows in its last sector is something else.
fn unzstd(bytes: &[u8], plain: &mut [u8]) -> Option<usize> {
    let len = zstd_safe::find_frame_compressed_size(bytes).ok()?;
    zstd_safe::decompress(plain, &bytes[..len]).ok()
}

impl CopySource for Qcow2 {
    fn size(&self) -> u64 {
        self.header.size
    }

    fn extent(&mut self, range: ByteRange) -> Result<(u64, bool)> {
        let (end, len) = (range.offset + range.len, self.header.cluster_len());
        let zero = self.cluster(range.offset)? == Cluster::Zero;
        let mut at = range.offset - range.offset % len + len;
        // Of one table at most, so that what is found is shown in between.
        while at < end
            && !at.is_multiple_of(self.header.table_span())
            && (self.cluster(at)? == Cluster::Zero) == zero
        {
            at += len;
        }
        Ok((at.min(end) - range.offset, zero))
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let left = self.header.cluster_len() - at % self.header.cluster_len();
            let (part, more) = rest.split_at_mut((left as usize).min(rest.len()));
            self.read_part(at, part)?;
            (at, rest) = (at + part.len() as u64, more);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::random::Random;

    const CLUSTER: usize = 512;
    const SIZE: usize = 40 * CLUSTER;

    /// Header, table of tables, table, one plain and one compressed cluster, in clusters of 512 bytes.
    fn small() -> Vec<u8> {
        let mut image = vec![0; 6 * CLUSTER];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(4, &3u32.to_be_bytes());
        put(20, &9u32.to_be_bytes());
        put(24, &(SIZE as u64).to_be_bytes());
        put(36, &1u32.to_be_bytes());
        put(40, &(CLUSTER as u64).to_be_bytes());
        put(100, &104u32.to_be_bytes());
        put(CLUSTER, &(2 * CLUSTER as u64).to_be_bytes());
        put(2 * CLUSTER, &(3 * CLUSTER as u64).to_be_bytes());
        let sectors = 1 << 61;
        put(2 * CLUSTER + 8, &(COMPRESSED | sectors | (4 * CLUSTER as u64)).to_be_bytes());
        put(2 * CLUSTER + 16, &ZERO.to_be_bytes());
        put(3 * CLUSTER, &[7; CLUSTER]);
        // One block of deflate that is stored as it is.
        put(4 * CLUSTER, &[1, 0, 2, 255, 253]);
        put(4 * CLUSTER + 5, &[9; CLUSTER]);
        image
    }

    fn read_all(image: &[u8]) -> Result<Vec<u8>> {
        let file = File::from(rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(image, 0).unwrap();
        let mut image = Qcow2::new(file)?;
        let (size, mut bytes, mut at) = (image.size().min(1 << 15), vec![0; 0], 0);
        while at < size {
            let (len, zero) = image.extent(ByteRange::new(at, size - at))?;
            assert!(len > 0 && len <= size - at, "{len} bytes at {at} of {size}");
            let mut part = vec![1; len as usize];
            image.read(at, &mut part)?;
            assert!(!zero || part.iter().all(|&byte| byte == 0));
            (at, bytes) = (at + len, [bytes, part].concat());
        }
        Ok(bytes)
    }

    #[test]
    fn a_small_image_is_read_unless_a_cluster_is_too_short() {
        let mut image = small();
        let bytes = read_all(&image).unwrap();
        assert!(
            bytes.len() == SIZE
                && bytes[..CLUSTER] == [7; CLUSTER]
                && bytes[CLUSTER..][..CLUSTER] == [9; CLUSTER]
        );
        assert!(bytes[2 * CLUSTER..].iter().all(|&byte| byte == 0));
        image[4 * CLUSTER..][..5].copy_from_slice(&[1, 200, 0, 55, 255]);
        let error = read_all(&image).unwrap_err().to_string();
        assert!(error.contains("compressed at 2048"), "{error}");
    }

    /// It ends with bytes or a refusal, never otherwise, and reads nothing that it does not have.
    #[test]
    fn whatever_an_image_says_it_is_read_or_refused() {
        let (mut random, mut read, mut refused) = (Random(22), 0, 0);
        for _ in 0..5000 {
            let mut image = small();
            for _ in 0..=random.below(3) {
                let part = [
                    0..112,
                    CLUSTER..CLUSTER + 8,
                    2 * CLUSTER..2 * CLUSTER + 24,
                    4 * CLUSTER..4 * CLUSTER + 8,
                ];
                let part = part[random.below(4) as usize].clone();
                let at = part.start + random.below(part.len() as u64) as usize;
                image[at] = random.draw() as u8;
            }
            image.truncate(image.len() - random.below(2) as usize * random.below(600) as usize);
            match read_all(&image) {
                Ok(_) => read += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(read > 20 && refused > 20, "{read} read, {refused} refused");
    }
}
