//! What the kernel says about a running server.

use std::fs;

/// Memory and descriptors at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Vitals {
    /// Resident memory in bytes.
    pub resident: u64,
    /// Most resident memory at once, in bytes.
    pub resident_max: u64,
    /// Open descriptors.
    pub descriptors: usize,
}

impl Vitals {
    /// Looks at the program with this id, which must be running.
    pub fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the server is running");
        let bytes = |name: &str| {
            let row = status.lines().find_map(|line| line.strip_prefix(name)).expect("a program has memory");
            let kib = row.trim().trim_end_matches("kB").trim().parse::<u64>();
            kib.expect("the kernel writes a number") * 1024
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("the server is running").count();
        Self { resident: bytes("VmRSS:"), resident_max: bytes("VmHWM:"), descriptors }
    }
}
