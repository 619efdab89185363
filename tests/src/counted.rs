//! What a server with a counting allocator says of its memory, in a file that it keeps up to date.

use std::fs;
use std::io;
use std::path::Path;

/// Environment variable that names the file.
pub const FILE: &str = "SPILLWAY_COUNTED";

/// Environment variable with the limit in bytes.
pub const LIMIT: &str = "SPILLWAY_COUNTED_MAX";

const WORDS: usize = 7;

/// Counts in bytes, where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocated now.
    pub live: u64,
    /// Resident in regions now.
    pub regions: u64,
    /// Most allocated at once.
    pub allocated_max: u64,
    /// Most resident in regions at once.
    pub regions_max: u64,
    /// Most of both together.
    pub sum_max: u64,
    /// 1 once the limit was exceeded, otherwise 0.
    pub broken: u64,
    /// How often regions were looked at.
    pub looks: u64,
}

impl Counts {
    /// As they stand in the file.
    pub fn bytes(&self) -> Vec<u8> {
        let words = [
            self.live,
            self.regions,
            self.allocated_max,
            self.regions_max,
            self.sum_max,
            self.broken,
            self.looks,
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Reads the file; `None` as long as it is empty. Fails as the file does.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let bytes = fs::read(path)?;
        let mut words = [0; WORDS];
        if bytes.len() < WORDS * 8 {
            return Ok(None);
        }
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        }
        let [live, regions, allocated_max, regions_max, sum_max, broken, looks] = words;
        Ok(Some(Self { live, regions, allocated_max, regions_max, sum_max, broken, looks }))
    }
}

/// Resident bytes of this process's regions and slabs, as `io::memory` maps them: without reserve, and advised for or against huge
/// pages. Fails where the kernel does not list them.
pub fn regions_resident() -> io::Result<u64> {
    Ok(regions_in(&fs::read_to_string("/proc/self/smaps")?))
}

fn regions_in(smaps: &str) -> u64 {
    let (mut resident, mut sum) = (0, 0);
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kib = rest.trim().trim_end_matches("kB").trim().parse::<u64>();
            resident = kib.expect("the kernel writes a number") * 1024;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |wanted| flags.split_ascii_whitespace().any(|flag| flag == wanted);
            sum += if has("nr") && (has("nh") || has("hg")) { resident } else { 0 };
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_known_by_their_flags() {
        let smaps = "7f00-7f10 rw-p 0 00:00 0\nRss: 64 kB\nVmFlags: rd wr mr mw me nr nh \n\
                     7f20-7f30 rw-p 0 00:00 0\nRss: 32 kB\nVmFlags: rd wr mr mw me nr \n\
                     7f30-7f40 rw-p 0 00:00 0\nRss: 8 kB\nVmFlags: rd wr hg \n\
                     7f40-7f50 rw-p 0 00:00 0\nRss: 16 kB\nVmFlags: rd wr nr nh \n\
                     7f50-7f60 rw-p 0 00:00 0\nRss: 4 kB\nVmFlags: rd wr nr hg \n";
        assert_eq!(regions_in(smaps), 84 * 1024);
    }

    #[test]
    fn counts_survive_the_file() {
        let counts =
            Counts { live: 1, regions: 2, allocated_max: 3, regions_max: 4, sum_max: 5, broken: 1, looks: 6 };
        let folder = crate::Scratch::new();
        let path = folder.write("counts", counts.bytes());
        assert_eq!(Counts::read(&path).expect("the file is there"), Some(counts));
        assert_eq!(Counts::read(&folder.write("empty", [])).expect("the file is there"), None);
    }
}
