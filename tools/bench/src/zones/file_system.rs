//! What distinguishes the four file systems of the source: as few facts of each as the table asks for.

use super::time::SECOND;

/// What happens to a page that reclaim wants written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pageout {
    /// It is written, alone.
    Written,
    /// It stays dirty; the attempt counts all the same.
    Refused,
}

/// Pages of metadata that come into being with the data and are committed now and then.
#[derive(Clone, Copy)]
pub(super) struct Metadata {
    /// Pages of data written back for each of its pages.
    pub(super) data: u64,
    /// Accesses to each while it is new.
    pub(super) accesses: u64,
    /// Time between two commits.
    pub(super) commit: u64,
    /// Copies of each on the stick.
    pub(super) copies: u64,
}

/// A file system's behaviour.
#[derive(Clone, Copy)]
pub(super) struct FileSystem {
    pub(super) name: &'static str,
    /// Clean pages beside each dirty one.
    pub(super) shadows: usize,
    /// Time of a page's way to a daemon and back.
    pub(super) round_trip: u64,
    pub(super) pageout: Pageout,
    pub(super) metadata: Option<Metadata>,
    /// Time after which write-back advances by 4 MiB without writing.
    pub(super) skips: Option<u64>,
    pub(super) source: Source,
}

/// A row of the source's table: seconds and their deviation, reclaim writes (least, median, most), without and with zones.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) seconds: [(f64, f64); 2],
    pub(super) writes: [[u64; 3]; 2],
    /// With either.
    pub(super) activated: [f64; 3],
}

const PLAIN: FileSystem = FileSystem {
    name: "xfs-like",
    shadows: 0,
    round_trip: 0,
    pageout: Pageout::Written,
    metadata: None,
    skips: None,
    source: Source {
        seconds: [(549.747, 3.492), (550.996, 3.802)],
        writes: [[0; 3]; 2],
        activated: [5.0, 6.5, 20.0],
    },
};

/// A checksum of 4 bytes for each page of data, in leaves of 4 KiB, both copies of each on the one device; a commit every 30 s.
const CHECKSUMS: Metadata = Metadata { data: 900, accesses: 8, commit: 30 * SECOND, copies: 2 };

/// The rows of the table.
pub(super) const ALL: [FileSystem; 4] = [
    PLAIN,
    FileSystem {
        name: "fuse-ntfs-like",
        shadows: 1,
        round_trip: 20_000,
        source: Source {
            seconds: [(1183.094, 53.178), (558.049, 17.914)],
            writes: [[54_349, 59_341, 65_163], [0, 0, 43]],
            activated: [5.0, 19.0, 275.0],
        },
        ..PLAIN
    },
    FileSystem {
        name: "btrfs-like",
        pageout: Pageout::Refused,
        metadata: Some(CHECKSUMS),
        source: Source {
            seconds: [(573.679, 14.015), (563.365, 11.368)],
            writes: [[156_657, 460_178, 606_926], [0, 0, 1362]],
            activated: [2915.0, 3316.5, 5786.0],
        },
        ..PLAIN
    },
    FileSystem {
        name: "ext4-like",
        pageout: Pageout::Refused,
        skips: Some(5 * SECOND),
        source: Source {
            seconds: [(561.197, 15.782), (568.806, 17.496)],
            writes: [[0, 2_725_438, 4_143_837], [0; 3]],
            activated: [2.0, 67.0, 810.0],
        },
        ..PLAIN
    },
];
