//! The deliberate defects that the simulator has to find. Each is a line in the code that `core::mutant` turns on.

/// A defect, and the stack that is searched for it.
pub struct Mutant {
    /// Its name in the code.
    pub name: &'static str,
    /// The stack.
    pub stack: &'static str,
    /// The seed that the search begins with: one that is known to find it, where that takes many.
    pub from: u64,
}

/// All of them. A new layer brings its own.
pub const MUTANTS: &[Mutant] = &[
    Mutant { name: "file: skip a flush", stack: "file", from: 1 },
    Mutant { name: "file: ack FUA without durability", stack: "file", from: 1 },
    Mutant { name: "file: forget that a flush failed", stack: "file", from: 1 },
    Mutant { name: "file: share a sync that had begun", stack: "file", from: 1 },
    Mutant { name: "file: stop at a short write", stack: "file", from: 1 },
    Mutant { name: "file: take an unknown call for done", stack: "file", from: 1 },
    Mutant { name: "file: forget what a dropped request left in hand", stack: "file", from: 1 },
    Mutant { name: "align: merge without the gates", stack: "file", from: 1 },
    Mutant { name: "zram: lose the old page when a write fails", stack: "zram", from: 1 },
    Mutant { name: "zram: discard a page too many", stack: "zram", from: 1 },
    Mutant { name: "zram: tell a repeated word by its ends", stack: "zram", from: 1 },
    Mutant { name: "zram: forget to free what was overwritten", stack: "zram", from: 1 },
    Mutant { name: "zram: forget what a moved object held", stack: "zram", from: 1 },
    Mutant { name: "zram: forget that a leaf exists", stack: "zram", from: 1 },
    Mutant { name: "write_cache: acknowledge a flush before the commit", stack: "write-cache", from: 1 },
    Mutant { name: "write_cache: commit without waiting for writes", stack: "write-cache", from: 164 },
    Mutant { name: "write_cache: skip the flush before the superblock", stack: "write-cache", from: 1 },
    Mutant {
        name: "write_cache: free a block before its entry is clear",
        stack: "write-cache-small",
        from: 1,
    },
    Mutant { name: "write_cache: free before the origin is durable", stack: "write-cache-small", from: 1 },
    Mutant { name: "write_cache: clear all versions at once", stack: "write-cache-eager", from: 2192 },
    Mutant { name: "write_cache: clear with others before its turn", stack: "write-cache-eager", from: 3360 },
    Mutant {
        name: "write_cache: commit what was overtaken, not what overtook it",
        stack: "write-cache-small",
        from: 10649,
    },
    Mutant {
        name: "write_cache: flush what went around before old entries are clear",
        stack: "write-cache-eager",
        from: 225,
    },
    Mutant { name: "write_cache: forget that formatting has begun", stack: "write-cache", from: 1 },
    Mutant { name: "write_cache: copy what is being written around", stack: "write-cache", from: 33769 },
];
