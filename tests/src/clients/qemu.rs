//! qemu-img and qemu-io.

use std::fs;

use crate::tool::run;
use crate::{Server, pattern};

const MIB: usize = 1 << 20;

/// An image goes in, out again in another format, and is compared. The server has at least 32 MiB.
pub fn images_round_trip(server: &Server) {
    let folder = server.folder();
    let mut image = pattern::half_random(1, 0, 32 * MIB);
    image[5 * MIB..13 * MIB].fill(0);
    let source = folder.write("source.raw", &image);
    let (source, uri) = (source.to_string_lossy(), server.uri());
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &source, &uri]).well();
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &uri]).well();
    let (back, raw) = (folder.join("back.qcow2"), folder.join("back.raw"));
    let (back, raw) = (back.to_string_lossy(), raw.to_string_lossy());
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &back]).well();
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &source, &back]).well();
    run("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", &back, &raw]).well();
    assert!(
        fs::read(&*raw).expect("qemu-img wrote it")[..image.len()] == image,
        "the image came back changed"
    );
}

/// Patterns are written, discarded, zeroed and read back, by block and by 512 bytes.
pub fn patterns_verify(server: &Server) {
    let steps = [
        "write -P 0x11 0 4M",
        "read -P 0x11 0 4M",
        "write -P 0x22 512 512",
        "write -P 0x33 5632 9728",
        "read -P 0x11 0 512",
        "read -P 0x22 512 512",
        "read -P 0x11 1024 4608",
        "read -P 0x33 5632 9728",
        "read -P 0x11 15360 1024",
        "write -z 1M 64k",
        "write -z -u 1114624 1536",
        "read -P 0 1M 64k",
        "read -P 0 1114624 1536",
        "read -P 0x11 1116160 512",
        "discard 2M 1M",
        "read -P 0 2M 1M",
        "read -P 0x11 3M 1M",
        "write -P 0x44 -f 2M 64k",
        "aio_write -P 0x55 3M 256k",
        "aio_write -P 0x66 3584k 256k",
        "aio_flush",
        "read -P 0x55 3M 256k",
        "read -P 0x66 3584k 256k",
        "flush",
    ];
    let uri = server.uri();
    let commands = steps.iter().flat_map(|step| ["-c", step]);
    let said = run("qemu-io", &["-f", "raw", &uri].into_iter().chain(commands).collect::<Vec<_>>()).well();
    assert!(!said.out.contains("verification failed"), "{said}");
}
