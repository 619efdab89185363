//! What `spillway cache` and `spillway serve` format, and what they refuse, with what real tools have made.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spillway_tests::raw::command;
use spillway_tests::tool::run;
use spillway_tests::{Launch, Scratch};

const MIB: usize = 1 << 20;

/// Exit code of wrong usage.
const USAGE: i32 = 2;

fn disks(origin: usize, cache: usize) -> (Arc<Scratch>, PathBuf, PathBuf) {
    let folder = Arc::new(Scratch::new());
    let (origin, cache) =
        (folder.write("origin.raw", vec![0; origin]), folder.write("cache.raw", vec![0; cache]));
    (folder, origin, cache)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

/// A configuration for `spillway serve` of one cache.
fn serve(folder: &Arc<Scratch>, origin: &Path, cache: &Path, more: &str) -> Launch {
    let device = format!(
        "socket = {:?}\n[[device]]\nname = \"c\"\norigin = {{ kind = \"file\", path = {origin:?} }}\n\
         layers = [ {{ kind = \"write_cache\", path = {cache:?}{more} }} ]\n",
        folder.join("s")
    );
    let config = folder.write("c.toml", device);
    Launch::new(&["serve", text(&config)], folder.clone(), folder.join("s"))
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
    launch.run().refused(USAGE, name);
    launch.clone().flag("--create").run().refused(USAGE, name);
    serve(folder, origin, cache, "").run().refused(USAGE, name);
    serve(folder, origin, cache, ", create = true").run().refused(USAGE, "--create --force");
    serve(folder, origin, cache, ", force = true").run().refused(USAGE, "force");
    assert!(fs::read(cache).expect("it exists") == before, "{name}: it was written");
    let server = launch.flag("--create").flag("--force").start();
    assert!(server.log().contains("destroyed"), "{}", server.log());
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
