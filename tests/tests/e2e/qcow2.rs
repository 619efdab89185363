//! qcow2 images, of which nothing is read but the image itself. As root, as all tests of images.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;

use spillway_tests::{Launch, Scratch, Server, pattern, text, tool, until};

const MIB: usize = 1 << 20;
const FAILED: i32 = 1;

/// A raw image with data, holes, zeroes and text that compresses.
fn raw_image(folder: &Scratch, len: usize) -> PathBuf {
    let mut bytes = vec![0; len];
    for at in (0..len).step_by(3 * MIB / 2) {
        let end = len.min(at + MIB / 2);
        let fill = pattern::random(at as u64, 0, end - at);
        bytes[at..end].iter_mut().zip(fill).enumerate().for_each(|(index, (byte, random))| {
            *byte = if index % 8192 < 3000 { random } else { (index / 8192) as u8 };
        });
    }
    folder.write("raw", bytes)
}

/// What `qemu-img` makes is loaded, whichever form of the format it is.
#[test]
fn every_form_of_the_format_is_loaded() {
    let folder = Scratch::new();
    let server = Launch::ram("24M").start();
    for (len, options) in [
        (9 * MIB, &["-o", "compat=0.10"][..]),
        (9 * MIB + 512, &["-o", "cluster_size=512"]),
        (9 * MIB, &["-o", "cluster_size=2M,preallocation=metadata"]),
        (9 * MIB + 512, &["-c"]),
        (9 * MIB, &["-c", "-o", "compression_type=zstd,cluster_size=2M"]),
        (9 * MIB, &["-c", "-o", "compression_type=zstd"]),
        (9 * MIB, &["-S", "0", "-o", "lazy_refcounts=on,cluster_size=4096"]),
        (24 * MIB, &["-c", "-o", "cluster_size=512"]),
    ] {
        let (raw, image) = (raw_image(&folder, len), folder.join("image.qcow2"));
        let convert = ["convert", "-f", "raw", "-O", "qcow2", text(&raw), text(&image)];
        tool::run("qemu-img", &[&convert[..], options].concat()).well();
        tool::run("qemu-img", &["snapshot", "-c", "before", text(&image)]).well();
        // Zero clusters, and data that the snapshot does not have.
        let write = ["-c", "write -z 1M 256k", "-c", "write -P 7 2M 64k", "-f", "qcow2", text(&image)];
        tool::run("qemu-io", &write).well();
        let mut wanted = fs::read(&raw).expect("an image");
        wanted[MIB..MIB + (256 << 10)].fill(0);
        wanted[2 * MIB..2 * MIB + (64 << 10)].fill(7);
        wanted.resize(24 * MIB, 0);
        (0..24).for_each(|at| server.client().write(at << 20, &vec![9; MIB]).expect("a write"));
        server.load(&["ram0", text(&image)]);
        assert!(server.content() == wanted, "{options:?}");
        fs::remove_file(&image).expect("it is ours");
    }
}

/// By whatever name, and in whichever field: what is named would be read with the rights of who loads.
#[test]
fn an_image_that_names_another_file_is_refused_before_anything_is_written() {
    let folder = Scratch::new();
    let secret = folder.write("secret", pattern::random(1, 0, MIB));
    let image = folder.join("image.qcow2");
    let server = Launch::ram("4M").start();
    server.client().write(0, &vec![7; 4 * MIB]).expect("a write");
    let named = [
        ("raw", text(&secret).to_owned()),
        ("raw", "secret".to_owned()),
        (
            "raw",
            format!("json:{{\"driver\":\"raw\",\"file\":{{\"driver\":\"file\",\"filename\":{secret:?}}}}}"),
        ),
        ("raw", server.uri()),
        ("host_device", "/dev/zero".to_owned()),
    ];
    for (format, backing) in named {
        let create = ["create", "-q", "-u", "-f", "qcow2", "-F", format, "-b", &backing, text(&image), "1M"];
        tool::run("qemu-img", &create).well();
        let load = ["load", "ram0", text(&image), "--shared"];
        server.spillway(&load).refused(FAILED, "backing file");
        // A file that says nothing of itself in its name is what it is said to be.
        server
            .spillway(&["load", "ram0", text(&image), "--shared", "--format", "qcow2"])
            .refused(FAILED, "backing");
        fs::remove_file(&image).expect("it is ours");
    }
    for raw in ["off", "on"] {
        let copy = folder.write("data", fs::read(&secret).expect("it is there"));
        let option = format!("data_file={},data_file_raw={raw}", text(&copy));
        tool::run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &option, text(&image), "1M"]).well();
        fs::write(&copy, fs::read(&secret).expect("it is there")).expect("the folder is ours");
        server.spillway(&["load", "ram0", text(&image), "--shared"]).refused(FAILED, "data file");
        fs::remove_file(&image).expect("it is ours");
    }
    assert!(server.content() == vec![7; 4 * MIB], "something was written");
}

/// To qemu's tools, what stands in front of a colon is a protocol.
#[test]
fn names_with_a_colon_are_names() {
    let folder = Scratch::new();
    let mut server = Launch::ram("4M").start();
    let bytes = pattern::random(2, 0, MIB);
    server.client().write(0, &bytes).expect("a write");
    let spillway = |server: &Server, words: &[&str]| {
        let mut command = server.command(words);
        command.current_dir(folder.path());
        until("other clients have left", || {
            let said = tool::finish(&mut command);
            (said.code != Some(4)).then(|| drop(said.well()))
        });
    };
    let names = ["a:b.qcow2", "nbd:foo.raw", "json:{}.qcow2", "a,b=c.qcow2", "-n.qcow2"];
    for name in names {
        spillway(&server, &["save", "ram0", "--", name]);
    }
    spillway(&server, &["stop", "ram0"]);
    server.ends();
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), names.len());
    for name in names {
        let server = Launch::ram("4M").start();
        spillway(&server, &["load", "ram0", "--", name]);
        assert!(server.content()[..MIB] == bytes, "{name}");
    }
}

/// The program that a command has started, by its name.
fn program_of(command: u32, name: &str) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{command}/task/{command}/children")).ok()?;
    let mut ids = children.split_whitespace().map(|id| id.parse().expect("a number"));
    ids.find(|id| fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|comm| comm.trim() == name))
}

/// Whether a process is at work: one that has ended may stay listed as a zombie.
fn is_alive(id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

/// Its reads take ten minutes each, so that nothing ends by itself.
#[test]
fn a_save_that_is_killed_leaves_no_program_behind() {
    let server = Launch::slow(600000000).start();
    server.client().write(0, &[1; 4096]).expect("a write");
    let folder = Scratch::new();
    let image = folder.write("image.qcow2", "old");
    let mut save = server.command(&["save", "ram0", text(&image), "--force"]);
    let mut save = save.stdout(Stdio::null()).spawn().expect("the program was built");
    let helping = until("qemu-img works", || program_of(save.id(), "qemu-img"));
    save.kill().expect("it is our child");
    save.wait().expect("it is our child");
    until("qemu-img has ended too", || (!is_alive(helping)).then_some(()));
    assert_eq!(fs::read(&image).expect("an image"), b"old");
}

/// The name that is written under is anybody's who may write into the folder.
#[test]
fn a_save_writes_to_no_file_that_was_put_in_place_of_its_own() {
    let server = Launch::slow(20000).start();
    (0..64).for_each(|at| server.client().write(at << 20, &pattern::random(at, 0, MIB)).expect("a write"));
    let folder = Scratch::new();
    let (image, precious) = (folder.join("image.qcow2"), folder.write("precious", "precious"));
    let part = folder.join(".image.qcow2.part");
    let mut save = server.command(&["save", "ram0", text(&image)]);
    let mut save = save.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program was built");
    until("the file is made", || part.exists().then_some(()));
    fs::remove_file(&part).expect("it is there");
    std::os::unix::fs::symlink(&precious, &part).expect("a link");
    assert!(!save.wait().expect("it is our child").success(), "it saved a link");
    assert_eq!(fs::read(&precious).expect("it is there"), b"precious");
    assert!(image.symlink_metadata().is_err(), "the link took the name of the image");
}

/// Cut off, or with a table that leads out of the file.
#[test]
fn a_damaged_image_is_refused() {
    let folder = Scratch::new();
    let (raw, image) = (raw_image(&folder, 9 * MIB), folder.join("image.qcow2"));
    tool::run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", text(&raw), text(&image)]).well();
    let whole = fs::read(&image).expect("an image");
    let server = Launch::ram("16M").start();
    let load = ["load", "ram0", text(&image), "--shared"];
    for len in [0, 3, 71, 103, MIB, whole.len() - MIB] {
        fs::write(&image, &whole[..len]).expect("the folder is ours");
        server.spillway(&load).refused(FAILED, "qcow2");
    }
    let l1 = u64::from_be_bytes(whole[40..48].try_into().expect("eight bytes"));
    for (at, bytes) in [(0, [0; 8]), (20, [0; 8]), (24, [0xff; 8]), (40, [0xff; 8]), (l1, [0x0f; 8])] {
        fs::write(&image, &whole).expect("the folder is ours");
        File::options()
            .write(true)
            .open(&image)
            .and_then(|file| file.write_all_at(&bytes, at))
            .expect("a write");
        let said = server.spillway(&load);
        assert!(said.code == Some(FAILED) || said.code == Some(2), "{at}: {said}");
    }
}
