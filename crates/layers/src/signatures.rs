//! What a disk begins or ends with, by the magic numbers that file systems and volume managers document.
//!
//! A table and a scan over pieces of the disk. It names what would be lost; a disk that is not zero where it matters is not
//! formatted even where no name is found.

use spillway_core::SECTOR;

/// Bytes at each end of a disk in which every signature of the table lies that has its place.
pub(crate) const WINDOW: u64 = 1 << 20;

const KIB: u64 = 1 << 10;

/// What the superblocks begin with that layers write: dm-writecache's number, and that of a spill file.
pub(crate) const WRITE_CACHE: u32 = 0x2348_9321;
pub(crate) const SPILL_FILE: [u8; 8] = *b"SpillFil";

/// The same with the number of its version.
const WRITE_CACHE_1: &[u8] = &[0x21, 0x93, 0x48, 0x23, 1, 0, 0, 0];

/// Magic numbers that stand at more than one place.
const MD: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
const MD_1: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0];
const GPT: &[u8] = b"EFI PART";
const SWAP: &[u8] = b"SWAPSPACE2";
const SWAP_OLD: &[u8] = b"SWAP-SPACE";
const ZFS: &[u8] = &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0];
const ZFS_BIG: &[u8] = &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c];

/// Where a signature lies.
#[derive(Clone, Copy, Debug)]
enum At {
    /// This byte.
    Start(u64),
    /// So many bytes before the end.
    End(u64),
    /// At one of `count` places, the first at `first` and each `step` behind the one before.
    Each { first: u64, step: u64, count: u64 },
    /// Before the end by `back` bytes, rounded down to a multiple of `unit`.
    Aligned { back: u64, unit: u64 },
    /// At the begin of any sector that is looked at.
    Sector,
    /// In the uberblocks of a ZFS label: the first label's number, and `true` for those at the end.
    Zfs { label: u64, end: bool },
}

struct Signature {
    name: &'static str,
    at: At,
    magic: &'static [u8],
}

const fn row(name: &'static str, at: At, magic: &'static [u8]) -> Signature {
    Signature { name, at, magic }
}

/// A ZFS label, its uberblocks in it, and the room of one.
const ZFS_LABEL: u64 = 256 * KIB;
const ZFS_UBERBLOCKS: u64 = 128 * KIB;
const ZFS_UBERBLOCK: u64 = KIB;

const TABLE: &[Signature] = &[
    row("a write cache", At::Start(0), &WRITE_CACHE.to_le_bytes()),
    // One may begin anywhere, by an option.
    row("a write cache", At::Sector, WRITE_CACHE_1),
    row("a spill file", At::Start(0), &SPILL_FILE),
    row("an ext2, ext3 or ext4 file system", At::Start(KIB + 0x38), &[0x53, 0xef]),
    row("an XFS file system", At::Start(0), b"XFSB"),
    row("a Btrfs file system", At::Start(64 * KIB + 0x40), b"_BHRfS_M"),
    // Swap is signed at the end of its first page, whose size is that of the machine.
    row("swap space", At::Start(4 * KIB - 10), SWAP),
    row("swap space", At::Start(8 * KIB - 10), SWAP),
    row("swap space", At::Start(16 * KIB - 10), SWAP),
    row("swap space", At::Start(32 * KIB - 10), SWAP),
    row("swap space", At::Start(64 * KIB - 10), SWAP),
    row("swap space", At::Start(4 * KIB - 10), SWAP_OLD),
    // The label stands in one of the first four sectors; its kind 24 bytes behind its name.
    row("an LVM2 physical volume", At::Each { first: 24, step: 512, count: 4 }, b"LVM2 001"),
    row("a member of an md array (metadata 0.90)", At::Aligned { back: 64 * KIB, unit: 64 * KIB }, MD),
    row("a member of an md array (metadata 1.0)", At::Aligned { back: 8 * KIB, unit: 4 * KIB }, MD_1),
    row("a member of an md array (metadata 1.1)", At::Start(0), MD_1),
    row("a member of an md array (metadata 1.2)", At::Start(4 * KIB), MD_1),
    row("a LUKS1 volume", At::Start(0), b"LUKS\xba\xbe\0\x01"),
    row("a LUKS2 volume", At::Start(0), b"LUKS\xba\xbe\0\x02"),
    row("a LUKS2 volume", At::Start(16 * KIB), b"SKUL\xba\xbe\0\x02"),
    row("a GPT partition table", At::Start(512), GPT),
    row("a GPT partition table", At::Start(4 * KIB), GPT),
    row("a GPT partition table", At::End(512), GPT),
    row("a GPT partition table", At::End(4 * KIB), GPT),
    row("an MBR partition table or boot sector", At::Start(510), &[0x55, 0xaa]),
    row("a ZFS pool", At::Zfs { label: 0, end: false }, ZFS),
    row("a ZFS pool", At::Zfs { label: 1, end: false }, ZFS),
    row("a ZFS pool", At::Zfs { label: 1, end: true }, ZFS),
    row("a ZFS pool", At::Zfs { label: 2, end: true }, ZFS),
    row("a ZFS pool", At::Zfs { label: 0, end: false }, ZFS_BIG),
    row("a ZFS pool", At::Zfs { label: 1, end: false }, ZFS_BIG),
    row("a ZFS pool", At::Zfs { label: 1, end: true }, ZFS_BIG),
    row("a ZFS pool", At::Zfs { label: 2, end: true }, ZFS_BIG),
    row("a qcow2 image", At::Start(0), b"QFI\xfb"),
];

impl At {
    /// The places on a disk of `size` bytes: the first, the distance of the others, and how many there are.
    fn places(self, size: u64) -> Option<(u64, u64, u64)> {
        match self {
            Self::Start(at) => Some((at, 1, 1)),
            Self::End(back) => Some((size.checked_sub(back)?, 1, 1)),
            Self::Each { first, step, count } => Some((first, step, count)),
            Self::Sector => Some((0, SECTOR, size / SECTOR)),
            // Linux: the last whole unit for 0.90, 8 KiB before the end and down to 4 KiB for 1.0.
            Self::Aligned { back, unit } => {
                let end = if back == unit { size / unit * unit } else { size };
                Some((end.checked_sub(back)? / unit * unit, 1, 1))
            }
            Self::Zfs { label, end } => {
                let whole = size / ZFS_LABEL * ZFS_LABEL;
                let first = if end { whole.checked_sub(label * ZFS_LABEL)? } else { label * ZFS_LABEL };
                let count = (ZFS_LABEL - ZFS_UBERBLOCKS) / ZFS_UBERBLOCK;
                Some((first + ZFS_UBERBLOCKS, ZFS_UBERBLOCK, count))
            }
        }
    }
}

/// What was seen of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    size: u64,
    /// What was recognised, each once, in the order of the table.
    pub(crate) names: Vec<&'static str>,
    /// The first byte that is not zero among those that were looked at.
    pub(crate) nonzero: Option<u64>,
}

impl Scan {
    /// Of a disk of `size` bytes, before anything was looked at.
    pub(crate) fn new(size: u64) -> Self {
        Self { size, names: Vec::new(), nonzero: None }
    }

    /// Looks at whole sectors of the disk, from byte `at` on.
    pub(crate) fn take(&mut self, at: u64, bytes: &[u8]) {
        let Some(first) = first_nonzero(bytes) else { return };
        let first = at + first as u64;
        self.nonzero = Some(self.nonzero.map_or(first, |before| before.min(first)));
        for signature in TABLE {
            if !self.names.contains(&signature.name) && signature.is_in(self.size, at, bytes) {
                self.names.push(signature.name);
            }
        }
    }
}

impl Signature {
    /// Whether one of its places lies in `bytes`, which begin at byte `at` of a disk of `size` bytes, and has the magic.
    fn is_in(&self, size: u64, at: u64, bytes: &[u8]) -> bool {
        let Some((first, step, count)) = self.at.places(size) else { return false };
        let before = at.saturating_sub(first).div_ceil(step);
        let places = (before..count).map(|number| (first + number * step - at) as usize);
        places.take_while(|&place| place < bytes.len()).any(|place| bytes[place..].starts_with(self.magic))
    }
}

/// The index of the first byte that is not zero. Looks at words, because gigabytes of metadata may be looked at.
fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<64>();
    let word = words.iter().position(|word| *word != [0; 64]);
    let from = word.unwrap_or(words.len()) * 64;
    debug_assert!(word.is_some() || from + rest.len() == bytes.len());
    bytes[from..].iter().position(|byte| *byte != 0).map(|index| from + index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A disk of `size` bytes with `magic` at byte `at`, read in pieces of `piece` bytes.
    fn seen(size: u64, at: u64, magic: &[u8], piece: usize) -> Scan {
        let mut disk = vec![0; size as usize];
        disk[at as usize..][..magic.len()].copy_from_slice(magic);
        let mut scan = Scan::new(size);
        for (index, bytes) in disk.chunks(piece).enumerate() {
            scan.take((index * piece) as u64, bytes);
        }
        scan
    }

    /// Each documented place, written down again: the offsets are those of the projects' own documents, not of the table.
    #[test]
    fn each_documented_signature_is_recognised() {
        let size = 4 * MIB + 12 * 512;
        let (md, md_1) = (&0xa92b_4efc_u32.to_le_bytes()[..], &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0][..]);
        let uberblock = &0x00ba_b10c_u64.to_le_bytes()[..];
        let swapped = &0x00ba_b10c_u64.to_be_bytes()[..];
        let cases: &[(u64, &[u8], &str)] = &[
            (0, &[0x21, 0x93, 0x48, 0x23], "write cache"),
            (3 * 512, WRITE_CACHE_1, "write cache"),
            (2 * MIB + 512, WRITE_CACHE_1, "write cache"),
            (0, b"SpillFil", "spill file"),
            (0x438, &[0x53, 0xef], "ext4"),
            (0, b"XFSB", "XFS"),
            (0x10040, b"_BHRfS_M", "Btrfs"),
            (4086, b"SWAPSPACE2", "swap"),
            (8182, b"SWAPSPACE2", "swap"),
            (16374, b"SWAPSPACE2", "swap"),
            (32758, b"SWAPSPACE2", "swap"),
            (65526, b"SWAPSPACE2", "swap"),
            (4086, b"SWAP-SPACE", "swap"),
            (24, b"LVM2 001", "LVM2"),
            (512 + 24, b"LVM2 001", "LVM2"),
            (1024 + 24, b"LVM2 001", "LVM2"),
            (1536 + 24, b"LVM2 001", "LVM2"),
            (4 * MIB - (64 << 10), md, "0.90"),
            (4 * MIB - (4 << 10), md_1, "1.0"),
            (0, md_1, "1.1"),
            (4096, md_1, "1.2"),
            (0, b"LUKS\xba\xbe\x00\x01", "LUKS1"),
            (0, b"LUKS\xba\xbe\x00\x02", "LUKS2"),
            (16384, b"SKUL\xba\xbe\x00\x02", "LUKS2"),
            (512, b"EFI PART", "GPT"),
            (4096, b"EFI PART", "GPT"),
            (size - 512, b"EFI PART", "GPT"),
            (size - 4096, b"EFI PART", "GPT"),
            (510, &[0x55, 0xaa], "MBR"),
            (128 << 10, uberblock, "ZFS"),
            ((128 << 10) + 77 * 1024, uberblock, "ZFS"),
            ((256 + 128 + 127) << 10, uberblock, "ZFS"),
            (4 * MIB - (512 << 10) + (128 << 10), uberblock, "ZFS"),
            (4 * MIB - (256 << 10) + (255 << 10), uberblock, "ZFS"),
            (128 << 10, swapped, "ZFS"),
            (4 * MIB - (128 << 10), swapped, "ZFS"),
            (0, b"QFI\xfb", "qcow2"),
        ];
        for (at, magic, name) in cases {
            for piece in [4096, 256 << 10, size as usize] {
                let scan = seen(size, *at, magic, piece);
                assert!(scan.names.iter().any(|found| found.contains(name)), "{name} at {at}: {scan:?}");
                let first = at + magic.iter().position(|byte| *byte != 0).expect("a magic") as u64;
                assert_eq!(scan.nonzero, Some(first), "{name}");
            }
        }
        for signature in TABLE {
            assert!(cases.iter().any(|(_, magic, _)| magic == &signature.magic), "{}", signature.name);
        }
    }

    #[test]
    fn every_place_lies_within_the_windows() {
        for size in [2 * MIB, 4 * MIB + 512, 10 * MIB - 512, (1 << 40) + 12 * 512] {
            for Signature { name, at, magic } in TABLE.iter().filter(|row| !matches!(row.at, At::Sector)) {
                let (first, step, count) = at.places(size).expect("it is large enough");
                let end = first + (count - 1) * step + magic.len() as u64;
                assert!(end <= WINDOW || first >= size - WINDOW && end <= size, "{name} of {size}: {first}");
            }
        }
    }

    #[test]
    fn what_is_not_known_is_told_by_its_first_byte() {
        for at in [0, 1, 63, 64, 65, 511, 4096, 300_001] {
            let scan = seen(MIB, at, &[7], 4096);
            assert_eq!((scan.nonzero, scan.names.len()), (Some(at), 0));
        }
        assert_eq!(seen(MIB, 0, &[0], 4096), Scan::new(MIB));
    }

    #[test]
    fn a_disk_of_any_size_is_looked_at() {
        for size in (1..300).map(|sectors| sectors * 512) {
            let mut scan = Scan::new(size);
            scan.take(0, &vec![0xff; size as usize]);
            assert_eq!((scan.nonzero, scan.names.len()), (Some(0), 0));
        }
    }
}
