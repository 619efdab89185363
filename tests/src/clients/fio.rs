//! fio's nbd engine.

use crate::Server;
use crate::tool::{Said, run};

/// Four jobs, each with a part of 16 MiB, blocks from 512 bytes to 1 MiB.
const MIXED: &[&str] = &[
    "--name=mixed",
    "--rw=randwrite",
    "--bsrange=512-1M",
    "--iodepth=16",
    "--numjobs=4",
    "--size=16M",
    "--offset_increment=16M",
    "--refill_buffers",
    "--buffer_compress_percentage=50",
    "--verify=crc32c",
    "--verify_fatal=1",
];

fn fio(server: &Server, jobs: &[&str]) -> Said {
    let uri = format!("--uri={}", server.uri());
    let folder = format!("--aux-path={}", server.folder().path().display());
    let common = ["--ioengine=nbd", "--thread", "--verify_state_save=0", &uri, &folder];
    run("fio", &[jobs, &common].concat()).well()
}

/// What four jobs write is verified, and once more over new connections. The server has at least 64 MiB.
pub fn mixed_writes_verify_also_after_a_reconnect(server: &Server) {
    fio(server, &[MIXED, &["--do_verify=1"]].concat());
    fio(server, &[MIXED, &["--verify_only=1"]].concat());
}

/// Trims, alone and each before a write of the same block, take nothing from what is verified; at the end the whole
/// device is trimmed, by four jobs with many in flight, and reads as zero. The server has 64 MiB.
pub fn trims_verify(server: &Server) {
    let paired = ["--name=paired", "--rw=randtrimwrite", "--bs=4k", "--size=16M", "--do_verify=1"];
    fio(server, &[&paired[..], &["--iodepth=1", "--verify=crc32c", "--verify_fatal=1"]].concat());
    let whole = ["--name=whole", "--rw=randtrim", "--bs=64k", "--size=16M", "--offset_increment=16M"];
    fio(server, &[&whole[..], &["--numjobs=4", "--iodepth=16"]].concat());
    let mut client = server.client();
    for offset in (0..64).map(|mib| mib << 20) {
        let bytes = client.read(offset, 1 << 20).expect("a read");
        assert!(bytes.iter().all(|byte| *byte == 0), "not all zero in the MiB at {offset}");
    }
}
