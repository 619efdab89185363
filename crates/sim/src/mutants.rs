//! The deliberate defects that the simulator has to find. Each is a line in the code that `core::mutant` turns on.

/// A defect, and the stack that is searched for it.
pub struct Mutant {
    /// Its name in the code.
    pub name: &'static str,
    /// The stack.
    pub stack: &'static str,
}

/// All of them. A new layer brings its own.
pub const MUTANTS: &[Mutant] = &[
    Mutant { name: "file: skip a flush", stack: "file" },
    Mutant { name: "file: ack FUA without durability", stack: "file" },
    Mutant { name: "file: forget that a flush failed", stack: "file" },
    Mutant { name: "file: stop at a short write", stack: "file" },
    Mutant { name: "file: take an unknown call for done", stack: "file" },
    Mutant { name: "file: forget what a dropped request left in hand", stack: "file" },
    Mutant { name: "align: merge without the gates", stack: "file" },
    Mutant { name: "zram: lose the old page when a write fails", stack: "zram" },
    Mutant { name: "zram: discard a page too many", stack: "zram" },
    Mutant { name: "zram: tell a repeated word by its ends", stack: "zram" },
    Mutant { name: "zram: forget to free what was overwritten", stack: "zram" },
    Mutant { name: "zram: forget what a moved object held", stack: "zram" },
];
