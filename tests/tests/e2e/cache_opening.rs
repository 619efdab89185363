//! What `spillway cache` and `spillway serve` format, and what they refuse, with what real tools have made.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::command;
use spillway_tests::tool::run;
use spillway_tests::{Launch, Scratch, text};

const MIB: usize = 1 << 20;

/// Exit codes: a failure, and wrong usage.
const FAILED: i32 = 1;
const USAGE: i32 = 2;

fn disks(origin: usize, cache: usize) -> (Arc<Scratch>, PathBuf, PathBuf) {
    let folder = Arc::new(Scratch::new());
    let (origin, cache) =
        (folder.write("origin.raw", vec![0; origin]), folder.write("cache.raw", vec![0; cache]));
    (folder, origin, cache)
}

/// A configuration for `spillway serve` of one cache.
fn serve(folder: &Arc<Scratch>, origin: &Path, cache: &Path, more: &str) -> Launch {
    let device = format!(
        "[[device]]\nname = \"c\"\norigin = {{ kind = \"file\", path = {origin:?} }}\n\
         layers = [ {{ kind = \"write_cache\", path = {cache:?}{more} }} ]\n"
    );
    Launch::serve(folder.clone(), device)
}

#[test]
fn what_real_tools_made_is_not_formatted() {
    for (tool, arguments, name) in
        [("/usr/sbin/mke2fs", &["-q", "-F", "-t", "ext4"][..], "ext4"), ("/usr/sbin/mkswap", &["-q"], "swap")]
    {
        let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
        run(tool, &[arguments, &[text(&cache)]].concat()).well();
        refuses(&folder, &origin, &cache, name);
    }
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    run("qemu-img", &["create", "-q", "-f", "qcow2", text(&cache), "8M"]).well();
    refuses(&folder, &origin, &cache, "qcow2");
}

/// By the command line and by a file, each with and without `create`; and nothing is written.
fn refuses(folder: &Arc<Scratch>, origin: &Path, cache: &Path, name: &str) {
    let before = fs::read(cache).expect("it exists");
    let launch = Launch::cache(folder.clone(), origin, cache);
    let by_option = launch.run().refused(USAGE, name);
    assert!(by_option.err.contains(": --cache: ") && !by_option.err.contains("layers"), "{}", by_option.err);
    launch.clone().flag("--create").run().refused(USAGE, name);
    let by_file = serve(folder, origin, cache, "").run().refused(USAGE, name);
    assert!(by_file.err.contains(": layers[0]: "), "{}", by_file.err);
    serve(folder, origin, cache, ", old_cache = \"create\"").run().refused(USAGE, "--create --force");
    serve(folder, origin, cache, ", force = true").run().refused(USAGE, "force");
    assert!(fs::read(cache).expect("it exists") == before, "{name}: it was written");
    let server = launch.flag("--create").flag("--force").start();
    server.says("destroyed");
}

#[test]
fn one_file_is_not_cached_by_itself() {
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    let path = |name: &str| folder.join(name);
    fs::hard_link(&origin, path("hard")).expect("a link");
    std::os::unix::fs::symlink(&origin, path("soft")).expect("a link");
    for other in [origin.clone(), path("hard"), path("soft")] {
        Launch::cache(folder.clone(), &origin, &other).run().refused(USAGE, "same file or device");
        Launch::cache(folder.clone(), &other, &origin).run().refused(USAGE, "same file or device");
        serve(&folder, &origin, &other, "").run().refused(USAGE, "same file or device");
    }
    assert!(fs::read(&origin).expect("it exists").iter().all(|byte| *byte == 0), "it was written");
    Launch::cache(folder, &origin, &cache).start();
}

#[test]
fn swapped_devices_are_refused() {
    let (folder, origin, cache) = disks(16 * MIB, 8 * MIB);
    let server = Launch::cache(folder.clone(), &origin, &cache).start();
    let mut client = server.client();
    client.write(0, &[7; MIB]).expect("a write");
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    drop((client, server));
    let before = [&origin, &cache].map(|path| fs::read(path).expect("it exists"));
    let swapped = Launch::cache(folder.clone(), &cache, &origin);
    swapped.run().refused(USAGE, "swapped");
    swapped.flag("--create").run().refused(USAGE, "swapped");
    serve(&folder, &cache, &origin, "").run().refused(USAGE, "swapped");
    let after = [&origin, &cache].map(|path| fs::read(path).expect("it exists"));
    assert!(after == before, "something was written");
    let server = Launch::cache(folder, &origin, &cache).start();
    assert!(server.client().read(0, MIB).expect("a read") == [7; MIB]);
}

/// The figures of a cache of 8 GiB that was created and then refused: an index of 64 MiB, and nothing as large beside it.
#[test]
fn a_cache_opens_with_the_memory_it_was_created_with() {
    let (folder, origin, cache) = disks(16 * MIB, MIB);
    fs::File::options()
        .write(true)
        .open(&cache)
        .and_then(|file| file.set_len(8 << 30))
        .expect("a sparse file");
    let launch = Launch::cache(folder, &origin, &cache);
    let said = launch.clone().with("--memory", "64M").run().refused(FAILED, "give --memory");
    let mut head = [0; 4096];
    fs::File::open(&cache).and_then(|mut file| file.read_exact(&mut head)).expect("it exists");
    assert!(head == [0; 4096], "it was formatted");
    let words: Vec<&str> = said.err.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "--memory").expect("it says how much is enough");
    let enough = launch.with("--memory", words[at + 1]);
    for block in 0..2 {
        let mut server = enough.clone().start();
        server.client().write(block * 4096, &[7; 4096]).expect("a write");
        server.signal(Signal::TERM);
        assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    }
    enough.start().says("2 of them dirty");
}
