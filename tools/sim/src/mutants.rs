//! The deliberate defects that the simulator has to find. Each is a line in the code that `core::mutant` turns on.
//!
//! No seed is known here: a search begins at a seed that is drawn, so that what finds them is what the stories are, not one of them.

/// A defect, and the stack that is searched for it.
pub struct Mutant {
    /// Its name in the code.
    pub name: &'static str,
    /// The stack.
    pub stack: &'static str,
}

const fn mutant(name: &'static str, stack: &'static str) -> Mutant {
    Mutant { name, stack }
}

/// All of them. A new layer brings its own.
pub const MUTANTS: &[Mutant] = &[
    mutant("file: skip a flush", "file"),
    mutant("file: ack FUA without durability", "file"),
    mutant("file: forget that a flush failed", "file"),
    mutant("group flush: share a flush that had begun", "file"),
    mutant("file: ack zeroes with FUA before a flush", "file"),
    mutant("file: forget that a durable write failed", "file"),
    mutant("file: forget that a buffered write failed", "file"),
    mutant("file: stop at a short write", "file"),
    mutant("file: stop at a short read", "file"),
    mutant("file: take an unknown call for done", "file"),
    mutant("file: forget what a dropped request left in hand", "file"),
    mutant("align: merge without the gates", "file"),
    mutant("align: forget the second edge", "file"),
    mutant("align: hold the gate of the first edge alone", "file"),
    mutant("zram: lose the old page when a write fails", "zram"),
    mutant("zram: discard a page too many", "zram"),
    mutant("zram: tell a repeated word by its ends", "zram"),
    mutant("zram: forget to free what was overwritten", "zram"),
    mutant("zram: forget what a moved object held", "zram"),
    mutant("zram: forget that a page of slots exists", "zram"),
    mutant("zram: a limit that is lifted stays", "zram"),
    mutant("zram: zeroes keep their room", "zram"),
    mutant("zram: say that a freed page is stored", "zram"),
    mutant("zram: refuse without a pass", "zram-dense"),
    mutant("zram: refuse after the first span that comes free", "zram-dense"),
    mutant("zram: pack at rest only", "zram-dense"),
    mutant("zram: refuse what an assistant found no memory for", "zram-dense"),
    mutant("zram: leave a packed span in its bin", "zram-dense"),
    mutant("zram: count the cells of a span that is gone", "zram"),
    mutant("zram: pay the reserve nothing back", "zram-dense"),
    mutant("zram: end a discard after its first slice", "zram-wide"),
    mutant("zram: take two blocks of the table for one", "zram-wide"),
    mutant("write_cache: acknowledge a flush before the commit", "write-cache"),
    mutant("write_cache: ack=committed acks early", "write-cache-through"),
    mutant("write_cache: commit without waiting for writes", "write-cache-small"),
    mutant("write_cache: write the superblock before the entries", "write-cache"),
    mutant("write_cache: skip the flush before the superblock", "write-cache"),
    mutant("write_cache: write the superblock without FUA", "write-cache"),
    mutant("write_cache: write only the first run of metadata", "write-cache-full"),
    mutant("write_cache: forget entries behind the first piece", "write-cache-full"),
    mutant("write_cache: commit what was overtaken, not what overtook it", "write-cache-small"),
    mutant("write_cache: free a block before its entry is clear", "write-cache-small"),
    mutant("write_cache: skip the flush after clearing", "write-cache-small"),
    mutant("write_cache: clear all versions at once", "write-cache-deep"),
    mutant("write_cache: clear with others before its turn", "write-cache-eager"),
    mutant("write_cache: an entry that is cleared loses its sector", "write-cache-eager"),
    mutant("write_cache: overwrite a version in place", "write-cache"),
    mutant("write_cache: free a block that is being read", "write-cache-small"),
    mutant("write_cache: free before the origin is durable", "write-cache-small"),
    mutant("write_cache: write back what is being bypassed", "write-cache-small"),
    mutant("write_cache: write back in memory that nobody counts", "write-cache"),
    mutant("write_cache: write back what could not be read", "write-cache-small"),
    mutant("write_cache: a lap that began before a commit is the last", "write-cache-through"),
    mutant("write_cache: end a drain that was asked for again", "write-cache-small"),
    mutant("write_cache: flush only what is cached", "write-cache-small"),
    mutant("write_cache: flush what bypassed it before old entries are clear", "write-cache-eager"),
    mutant("write_cache: forget what bypassed the former process's cache", "write-cache-small"),
    mutant("write_cache: forget that formatting has begun", "write-cache"),
    mutant("write_cache: recover what was not committed", "write-cache"),
    mutant("write_cache: recover the older of two versions", "write-cache"),
    mutant("write_cache: leave stale entries at recovery", "write-cache-full"),
    mutant("write_cache: clear too much at recovery", "write-cache"),
    mutant("write_cache: rely on what a killed server left unflushed", "write-cache-small"),
    mutant("write_cache: ask only the origin for extents", "write-cache"),
    mutant("write_cache: reads fail once an error sticks", "write-cache"),
    mutant("write_cache: a read in pieces forgets an error", "write-cache-small"),
];
