//! The source's job: eight writers, each with a file of its own, 4 KiB at random, and fdatasync after each write.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::peers::account::fio;

/// Files are found by the name of the job.
const FILES: [&str; 3] = ["--name=synced", "--numjobs=8", "--size=32M"];

fn run(words: &[&str], folder: &Path) -> Result<f64> {
    let words = [&FILES, words].concat();
    Ok(fio(&words, &[format!("--directory={}", folder.display())])?.requests)
}

pub(super) fn lay_out(folder: &Path) -> Result<()> {
    run(&["--rw=write", "--bs=1M", "--ioengine=psync", "--end_fsync=1"], folder).map(drop)
}

pub(super) fn writes_a_second(folder: &Path, span: Duration) -> Result<f64> {
    let time = format!("--runtime={}ms", span.as_millis());
    let job = ["--rw=randwrite", "--bs=4k", "--ioengine=psync", "--fdatasync=1", "--time_based", &time];
    run(&[&job[..], &["--norandommap", "--randrepeat=0"]].concat(), folder)
}
