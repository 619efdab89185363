//! The parts of the report, in the order in which they run.

use serde::{Deserialize, Serialize};

/// Whether all is measured, or only tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Mode {
    Whole,
    Quick,
}

impl Mode {
    /// The folder of its results.
    pub(super) fn name(self) -> &'static str {
        ["whole", "quick"][self as usize]
    }
}

/// An experiment or a kind of peers.
pub(super) struct Section {
    pub(super) title: &'static str,
    /// What the measurement that it repeats has found; empty where it repeats none.
    pub(super) source: &'static str,
    pub(super) parts: &'static [Part],
}

/// One run of a benchmark.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// Of its files and in the template.
    pub(super) name: &'static str,
    /// Arguments by mode; empty where it is no part of a quick report.
    words: [&'static str; 2],
    /// What it takes on two idle processors, the slower of two kinds, by mode, until a run is there that tells.
    seconds: [u32; 2],
}

impl Part {
    const fn new(name: &'static str, words: [&'static str; 2], seconds: [u32; 2]) -> Self {
        Self { name, words, seconds }
    }

    pub(super) fn words(&self, mode: Mode) -> impl Iterator<Item = &'static str> {
        self.words[mode as usize].split(' ')
    }

    pub(super) fn is_in(&self, mode: Mode) -> bool {
        !self.words[mode as usize].is_empty()
    }

    pub(super) fn seconds(&self, mode: Mode) -> f64 {
        f64::from(self.seconds[mode as usize])
    }
}

/// The section whose worst figure stands beside the claims.
pub(super) const STREAMS: &str = "Streams (E2)";

pub(super) const SECTIONS: &[Section] = &[
    Section {
        title: "Spilling (E1)",
        source: "32 pages an I/O instead of one: 4.4 times the rate, a third of the processor time.",
        parts: &[
            Part::new("spill", ["spill 5 1", "spill 1 1 --quick"], [245, 20]),
            Part::new("spill-soak", ["spill soak 60", "spill soak 10 --quick"], [95, 24]),
            Part::new("spill-kernel", ["spill kernel 5", "spill kernel 1 --quick"], [65, 20]),
        ],
    },
    Section {
        title: STREAMS,
        source: "iozone, three writers of 60 MiB in records of 16 KiB, three streams to one: initial write 1.23, rewrite 2.54, random write 2.33, \
                 pwrite 1.37, fwrite 1.00.",
        parts: &[
            Part::new("streams-inside", ["streams 5 inside", "streams 1 inside --quick"], [305, 20]),
            Part::new("streams-fwrite", ["streams 5 fwrite", "streams 1 fwrite --quick"], [120, 13]),
            Part::new("streams-locks", ["streams 5 locks", "streams 2 locks --quick"], [5, 3]),
        ],
    },
    Section {
        title: "The page cache (E3)",
        source: "A block of 4 KiB is written instead of its folio of 64 KiB: 16 times fewer bytes, which is arithmetic.",
        parts: &[
            Part::new("folio-bytes", ["folio 5 bytes", "folio 1 bytes --quick"], [110, 10]),
            Part::new("folio-sectors", ["folio 5 sectors", "folio 1 sectors --quick"], [5, 1]),
            Part::new("folio-databases", ["folio 5 databases", "folio 1 databases --quick"], [1090, 42]),
            Part::new("folio-database", ["folio 5 database", "folio 1 database --quick"], [70, 14]),
            Part::new("folio-hits", ["folio 5 hits", "folio 2 hits --quick"], [15, 7]),
            Part::new("folio-instructions", ["folio 5 instructions", "folio 1 instructions --quick"], [5, 3]),
            Part::new("folio-eviction", ["folio 5 eviction", "folio 1 eviction --quick"], [5, 2]),
            Part::new("folio-memory", ["folio 5 memory", "folio 1 memory --quick"], [5, 2]),
            Part::new("folio-nbd", ["folio 5 nbd", "folio 1 nbd --quick"], [140, 25]),
        ],
    },
    Section {
        title: "The write cache (E4)",
        source: "512 KiB writes, all blocks in one I/O: 3.87 times one I/O a block with blocks of 512 bytes, 1.12 with 64 KiB.",
        parts: &[
            Part::new("writecache-large", ["writecache 5 large", "writecache 1 large --quick"], [115, 16]),
            Part::new("writecache-churn", ["writecache 5 churn", "writecache 1 churn --quick"], [270, 22]),
            Part::new(
                "writecache-commits",
                ["writecache 5 commits", "writecache 1 commits --quick"],
                [80, 12],
            ),
            Part::new("writecache-load", ["writecache 5 load", "writecache 1 load --quick"], [55, 8]),
            Part::new("writecache-memory", ["writecache 5 memory", ""], [25, 0]),
            Part::new("writecache-kernel", ["writecache 5 kernel", "writecache 1 kernel --quick"], [95, 21]),
        ],
    },
    Section {
        title: "Zones of memory (E5)",
        source: "fuse-ntfs: 2.1 times as fast, and in the median no write by reclaim instead of 59341; xfs gained nothing.",
        parts: &[Part::new("zones-store", ["zones 5 store", "zones 1 store --quick"], [245, 32])],
    },
    Section {
        title: "NBD",
        source: "",
        parts: &[
            Part::new("nbd", ["nbd 5", "nbd 1 --quick"], [450, 90]),
            Part::new("tls", ["tls 5", "tls 1 --quick"], [20, 9]),
        ],
    },
    Section {
        title: "Network origins",
        source: "",
        parts: &[
            Part::new("network-cache", ["network 5 cache", ""], [350, 0]),
            Part::new("network-image", ["network 5 image", ""], [195, 0]),
            Part::new("network-server", ["network 5 server", ""], [175, 0]),
        ],
    },
    Section {
        title: "vhost-user",
        source: "",
        parts: &[
            Part::new("vhost", ["vhost 5 throughput", "vhost 1 throughput --quick"], [250, 35]),
            Part::new("vhost-fairness", ["vhost 5 fairness", ""], [105, 0]),
        ],
    },
    Section {
        title: "Mounts",
        source: "",
        parts: &[Part::new("fuse", ["fuse 5", "fuse 1 --quick"], [125, 30])],
    },
    Section {
        title: "zram in process",
        source: "",
        parts: &[
            Part::new("zram-codec", ["zram 5 codec", "zram 2 codec --quick"], [15, 3]),
            Part::new("zram-bursts", ["zram 5 bursts", "zram 1 bursts --quick"], [35, 13]),
            Part::new("zram-memory", ["zram 1 memory", ""], [20, 0]),
            Part::new("zram-recompress", ["zram 1 recompress", "zram 1 recompress --quick"], [45, 17]),
            Part::new("zram-filesystem", ["zram 5 filesystem", "zram 1 filesystem --quick"], [80, 24]),
        ],
    },
    Section {
        title: "Scaling",
        source: "",
        parts: &[
            Part::new("scale", ["scale 5", "scale 1 --quick"], [25, 11]),
            Part::new("connections", ["connections 5", "connections 1 --quick"], [75, 18]),
            Part::new("growth", ["growth 5", "growth 1 --quick"], [75, 10]),
        ],
    },
    Section {
        title: "Where time goes",
        source: "",
        parts: &[Part::new("profile", ["profile 1", "profile 1 --quick"], [40, 22])],
    },
];

/// What no run of the report tells.
pub(super) const NOT_TRIED: &[&str] = &[
    "Other machines, disks and kernels than the one named above; runs of hours: the soak is one of a minute.",
    "Clusters of pages in zram: they are not built.",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn parts() -> Vec<&'static Part> {
        SECTIONS.iter().flat_map(|section| section.parts).collect()
    }

    #[test]
    fn a_whole_run_takes_at_most_90_minutes_and_a_quick_one_10() {
        for (mode, minutes) in [(Mode::Whole, 90.0), (Mode::Quick, 10.0)] {
            let sum: f64 = parts().iter().map(|part| part.seconds(mode)).sum();
            assert!(sum <= minutes * 60.0, "{}: {sum} s", mode.name());
        }
    }

    #[test]
    fn names_are_unique_and_only_quick_runs_are_quick() {
        let names: BTreeSet<&str> = parts().iter().map(|part| part.name).collect();
        assert_eq!(names.len(), parts().len());
        for part in parts() {
            let [whole, quick] =
                [Mode::Whole, Mode::Quick].map(|mode| part.words(mode).any(|word| word == "--quick"));
            assert!(!whole && quick == part.is_in(Mode::Quick), "{}", part.name);
        }
    }
}
