//! `spillway save` and `load`: devices as image files. As root, for a file system of a few bytes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::command;
use spillway_tests::{Launch, Scratch, Server, pattern, text, tool, until};

const MIB: usize = 1 << 20;

/// Exit codes as documented.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const BUSY: i32 = 4;

/// Bytes that a file takes on its disk.
fn room_of(path: &Path) -> u64 {
    fs::metadata(path).expect("a file").blocks() * 512
}

/// Data here and there, of blocks and of parts of them, and what it comes to.
fn fill(server: &Server) -> Vec<u8> {
    let mut client = server.client();
    let mut all = vec![0; client.size as usize];
    for (seed, (offset, len)) in
        [(0, 512), (3 * MIB - 512, MIB + 1024), (9 * MIB, 4096), (all.len() - 512, 512)]
            .into_iter()
            .enumerate()
    {
        let data = pattern::random(seed as u64, 0, len);
        client.write(offset as u64, &data).expect("a write");
        all[offset..][..len].copy_from_slice(&data);
    }
    all
}

/// A RAM disk outlives its server: saved, and loaded by the next one.
#[test]
fn a_ram_disk_is_saved_and_loaded_by_the_next_server() {
    let folder = Scratch::new();
    for name in ["image.raw", "image.qcow2"] {
        let path = folder.join(name);
        let mut server = Launch::ram("64M").start();
        let all = fill(&server);
        server.spillway(&["save", "ram0", text(&path)]).well();
        server.spillway(&["stop", "ram0"]).well();
        server.ends();
        assert!(room_of(&path) <= 2 << 20, "{name} takes {} bytes", room_of(&path));
        if name == "image.raw" {
            assert!(fs::read(&path).expect("an image") == all, "the image is not the device");
        } else {
            tool::run(
                "qemu-img",
                &["compare", "-f", "qcow2", "-F", "raw", text(&path), text(&folder.join("image.raw"))],
            )
            .well();
        }
        let server = Launch::ram("80M").start();
        let old = pattern::random(9, 0, MIB);
        (0..80).for_each(|at| server.client().write(at << 20, &old).expect("a write"));
        server.load(&["ram0", text(&path)]);
        let now = server.content();
        assert!(now[..64 * MIB] == all, "{name}: the device is not the image");
        assert!(
            now[64 * MIB..].iter().all(|&byte| byte == 0),
            "{name}: what was there before is still there"
        );
        let said = server.spillway(&["get", "ram0", "orig_data_size"]).well().out;
        assert!(said.trim().parse::<u64>().expect("a number") <= 2 << 20, "zeroes take room: {said}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "nothing else is left");
}

#[test]
fn a_device_goes_through_pipes() {
    let server = Launch::ram("16M").start();
    let other = Launch::ram("20M").start();
    let all = fill(&server);
    other.client().write(18 * MIB as u64, &[9; 4096]).expect("a write");
    let mut save = server.command(&["save", "ram0", "-"]).stdout(Stdio::piped()).spawn().expect("a save");
    let pipe = save.stdout.take().expect("a pipe");
    let loaded = other.command(&["load", "ram0", "-"]).stdin(pipe).output().expect("a load");
    assert!(loaded.status.success() && save.wait().expect("its end").success(), "{loaded:?}");
    let now = other.content();
    assert!(now[..16 * MIB] == all && now[16 * MIB..].iter().all(|&byte| byte == 0), "not the same device");
    let image = server.folder().write("longer", vec![3; 16 * MIB + 1]);
    let load = |arguments: &[&str]| {
        let image = File::open(&image).expect("an image");
        let loaded = server.command(arguments).stdin(image).output().expect("a load");
        (loaded.status.code(), String::from_utf8_lossy(&loaded.stderr).into_owned())
    };
    let (code, said) = load(&["load", "ram0", "-"]);
    assert!(code == Some(FAILED) && said.contains("longer than the device"), "{said}");
    let (code, said) = load(&["load", "ram0", "-", "--format", "qcow2"]);
    assert!(code == Some(USAGE) && said.contains("raw images"), "{said}");
    let gone = server
        .command(&["save", "ram0", "-"])
        .stdout(File::create("/dev/full").expect("it is there"))
        .output();
    let gone = gone.expect("a save");
    assert!(gone.status.code() == Some(FAILED), "an image that nobody took is not saved: {gone:?}");
}

#[test]
fn an_image_of_any_length_is_loaded_and_the_rest_is_zero() {
    let server = Launch::ram("4M").start();
    let folder = Scratch::new();
    for len in [0, 1, 511, 513, 4095, 4097, MIB + 77, 4 * MIB - 1, 4 * MIB] {
        server.client().write(0, &vec![5; 4 * MIB]).expect("a write");
        let image = folder.write("image", pattern::random(len as u64, 0, len));
        server.load(&["ram0", text(&image)]);
        let mut wanted = fs::read(&image).expect("an image");
        wanted.resize(4 * MIB, 0);
        assert!(server.content() == wanted, "an image of {len} bytes");
    }
    let image = folder.write("image", vec![1; 4 * MIB + 1]);
    server.spillway(&["load", "ram0", text(&image)]).refused(USAGE, "spillway resize ram0 4194305");
    assert_ne!(server.client().read(0, 512), Ok(vec![1; 512]), "something was loaded");
}

#[test]
fn nothing_is_replaced_that_is_in_use_or_was_not_meant() {
    let server = Launch::ram("4M").start();
    let folder = Scratch::new();
    let image = folder.write("image", vec![1; MIB]);
    server.spillway(&["save", "ram0", text(&image)]).refused(FAILED, "--force");
    assert!(fs::read(&image).expect("it is there") == vec![1; MIB]);
    server.spillway(&["save", "ram0", "/dev/null", "--force"]).refused(FAILED, "no file");
    let mut client = server.client();
    client.write(0, &[7; 512]).expect("a write");
    server.spillway(&["load", "ram0", text(&image)]).refused(BUSY, "--shared");
    assert_eq!(client.read(0, 512), Ok(vec![7; 512]));
    server.spillway(&["load", "ram0", text(&image), "--shared"]).well();
    assert_eq!(client.read(0, 512), Ok(vec![1; 512]));
    server.spillway(&["save", "ram0", text(&image), "--force"]).well();
    assert_eq!(fs::metadata(&image).expect("an image").len(), 4 << 20);
    let lone = Launch::ram("1M").flag("--read-only").start();
    lone.spillway(&["load", "ram0", text(&image)]).refused(FAILED, "read-only");
}

#[test]
fn what_a_server_writes_to_is_no_image() {
    let (launch, origin) = Launch::disk_with(vec![1; MIB]);
    let mut server = launch.start();
    let mut client = server.client();
    client.write(0, &[7; 512]).expect("a write");
    for words in
        [&["save", "disk0", text(&origin), "--force"][..], &["load", "disk0", text(&origin), "--shared"]]
    {
        server.spillway(words).refused(BUSY, &format!("in use (spillway (pid {}))", server.pid()));
    }
    assert_eq!(client.read(0, 512), Ok(vec![7; 512]));
    drop(client);
    server.signal(Signal::TERM);
    assert!(server.ends().success());
    assert!(fs::read(&origin).expect("it is there")[..512] == [7; 512], "the server still had the file");
}

#[test]
fn what_is_no_image_erases_nothing() {
    let server = Launch::ram("4M").start();
    let mut client = server.client();
    client.write(0, &[7; 512]).expect("a write");
    drop(client);
    let folder = Scratch::new();
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("coreutils are there").success());
    for path in ["/dev/null", "/dev/zero", text(&pipe), text(folder.path())] {
        server.spillway(&["load", "ram0", path]).refused(FAILED, "no file");
    }
    assert_eq!(server.client().read(0, 512), Ok(vec![7; 512]));
}

#[test]
fn a_killed_save_leaves_the_old_image_and_the_next_one_cleans_up() {
    let server = Launch::slow(50_000).start();
    let data = pattern::random(1, 0, MIB);
    (0..64).for_each(|at| server.client().write(at << 20, &data).expect("a write"));
    let folder = Scratch::new();
    let (image, part) = (folder.write("image", "old"), folder.join(".image.part"));
    let mut save = server.command(&["save", "ram0", text(&image), "--force"]);
    let mut save = save.stdout(Stdio::null()).spawn().expect("the program was built");
    until("some of it is written", || (part.exists() && room_of(&part) > 0).then_some(()));
    server.spillway(&["save", "ram0", text(&image), "--force"]).refused(BUSY, "another save");
    save.kill().expect("it is our child");
    save.wait().expect("it is our child");
    assert_eq!(fs::read(&image).expect("an image"), b"old");
    assert!(room_of(&part) < 64 << 20, "it was killed in the middle");
    server.spillway(&["save", "ram0", text(&image), "--force"]).well();
    assert!(fs::read(&image).expect("an image") == data.repeat(64));
    assert!(!part.exists());
}

#[test]
fn a_full_disk_is_said_and_leaves_the_old_image() {
    let server = Launch::ram("16M").start();
    server.client().write(0, &pattern::random(1, 0, 8 * MIB)).expect("a write");
    let folder = Scratch::new();
    let place = text(folder.path());
    tool::run("mount", &["-t", "tmpfs", "-o", "size=4M", "none", place]).well();
    let image = folder.write("image", "old");
    let raw = server.spillway(&["save", "ram0", text(&image), "--force"]);
    let qcow2 = server.spillway(&["save", "ram0", text(&image), "--force", "--format", "qcow2"]);
    let (old, left) = (fs::read(&image), fs::read_dir(folder.path()).map(Iterator::count));
    tool::unmount(place);
    raw.refused(FAILED, "No space left");
    qcow2.refused(FAILED, "qemu-img");
    assert_eq!((old.expect("an image"), left.expect("a folder")), (b"old".to_vec(), 1));
}

/// A cache keeps what was loaded, though its server is killed right after.
#[test]
fn what_was_loaded_is_durable() {
    let folder = Arc::new(Scratch::new());
    let (origin, cache, image) = (folder.join("origin"), folder.join("cache"), folder.join("image"));
    for (path, len) in [(&origin, 32 << 20), (&cache, 8 << 20)] {
        File::create(path).and_then(|file| file.set_len(len)).expect("a sparse file");
    }
    let file = File::create(&image).expect("a file");
    file.write_all_at(&pattern::random(3, 0, MIB), 5 << 20)
        .and_then(|()| file.set_len(20 << 20))
        .expect("it");
    let launch = Launch::cache(folder, &origin, &cache);
    let mut server = launch.clone().start();
    let mut client = server.client();
    client.write(0, &vec![9; MIB]).expect("a write");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    drop(client);
    server.load(&["cache0", text(&image)]);
    server.signal(rustix::process::Signal::KILL);
    server.ends();
    let server = launch.start();
    let mut wanted = fs::read(&image).expect("an image");
    wanted.resize(32 * MIB, 0);
    assert!(server.content() == wanted);
}
