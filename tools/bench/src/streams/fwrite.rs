//! E2's last row: stdio over the file of a mount. As root, which mounts without help.
//!
//! Work outside the stream includes two system calls, two changes of thread and the writers' own processor time, so that streams gain less
//! here than in the other rows, as in the source (5 % with three writers): no bound is set.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, fallocate};

use crate::peers::mounted::Mounted;
use crate::peers::pages::{PAGE, Pages};
use crate::peers::servers::Folder;

const SIZE: u64 = 1 << 30;

/// A server with devices for each number of streams, as files.
pub(crate) struct Files(Mounted);

impl Files {
    /// One device for each of 1 to 3 streams, and 2 for writers apart.
    pub(crate) fn start(algorithm: &str) -> Result<Self> {
        let device = |(name, streams): (&str, u32)| {
            let options = format!("comp_algorithm = \"{algorithm}\", max_comp_streams = {streams}");
            format!(
                "[[device]]\nname = \"{name}\"\norigin = {{ kind = \"zram\", disksize = {SIZE}, {options} }}\n"
            )
        };
        let devices = [("s1", 1), ("s2", 2), ("s3", 3), ("a0", 1), ("a1", 1)].map(device).concat();
        Ok(Self(Mounted::start(Folder::new()?, "4G", &devices)?))
    }

    /// MiB a second of `writers` threads at once, each of which writes `records` of `record` bytes; with 0 streams each to a device of
    /// its own. The devices are empty before and after.
    pub(crate) fn race(
        &self,
        set: &Pages,
        writers: usize,
        streams: usize,
        (record, records): (usize, usize),
    ) -> Result<f64> {
        let names = match streams {
            0 => (0..writers).map(|writer| format!("a{writer}")).collect(),
            _ => vec![format!("s{streams}"); writers],
        };
        let files = names.iter().map(|name| open(&self.0.file(name)?));
        let files = files.collect::<Result<Vec<File>>>()?;
        let barrier = Barrier::new(writers + 1);
        let write = |writer: usize, file: &File| -> Result<()> {
            let mut stream = BufWriter::with_capacity(file.metadata()?.blksize() as usize, file);
            barrier.wait();
            stream.seek(SeekFrom::Start((writer * records * record) as u64))?;
            for index in 0..records {
                let source = (index * 4 + writer * 1000) % (set.count() - 4) * PAGE;
                stream.write_all(&set.bytes[source..source + record])?;
            }
            Ok(stream.flush()?)
        };
        let write = &write;
        let seconds = std::thread::scope(|scope| -> Result<f64> {
            let files = files.iter().enumerate();
            let threads: Vec<_> =
                files.map(|(writer, file)| scope.spawn(move || write(writer, file))).collect();
            barrier.wait();
            let start = Instant::now();
            for thread in threads {
                thread.join().expect("a writer does not panic")?;
            }
            Ok(start.elapsed().as_secs_f64())
        })?;
        for file in &files {
            fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, SIZE)?;
        }
        Ok((writers * records * record) as f64 / f64::from(1 << 20) / seconds)
    }
}

fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.with_context(|| path.display().to_string())
}
