//! A spill file in the configuration of a server: each key has its effect, and what is wrong is refused.

use std::fs;
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::raw::Client;
use spillway_tests::{Launch, Scratch, Server, pattern, text, until};

/// Every key that has to do with spilling, a value that it does not have by default, and how that is shown.
const KEYS: [(&str, &str, &str); 17] = [
    ("disksize", "\"64M\"", "67108864"),
    ("spill_size", "\"40M\"", "41943040"),
    ("spill_retake", "true", "true"),
    ("deferred_bytes_max", "\"1M\"", "1048576"),
    ("recomp_algorithm", "\"algo=zstd\"", "\"#1: lz4 lz4hc [zstd] deflate \""),
    ("recompress_age", "4000", "4000"),
    ("writeback_limit", "1500", "1500"),
    ("writeback_limit_enable", "true", "true"),
    ("writeback_batch_size", "7", "7"),
    ("writeback_depth", "3", "3"),
    ("compressed_writeback", "false", "false"),
    ("bring_back", "\"never\"", "\"never\""),
    ("bring_back_age", "5", "5"),
    ("spill_high_watermark", "97", "97"),
    ("spill_low_watermark", "20", "20"),
    ("spill_age", "100000", "100000"),
    ("spill_daily_bytes", "\"1G\"", "1073741824"),
];

/// A device of a configuration that spills to the file of its name in `folder`.
fn device(folder: &Scratch, name: &str, keys: &str) -> String {
    let spill = folder.join(name);
    format!("[[device]]\nname = {name:?}\n[device.origin]\nkind = \"zram\"\nspill = {spill:?}\n{keys}\n")
}

/// Pages in the spill file of a device, and their bytes.
fn spilled(server: &Server, name: &str) -> [u64; 2] {
    let counts = [server.value(name, "bd_stat")["bd_count"].take(), server.value(name, "spill_bytes")];
    counts.map(|count| count.as_u64().expect("a number"))
}

#[test]
fn a_configuration_says_all_about_spilling() {
    let folder = Arc::new(Scratch::new());
    let keys = KEYS.map(|(key, value, _)| format!("{key} = {value}\n"));
    let server = Launch::serve(folder.clone(), device(&folder, "cold", &keys.concat())).start();
    assert_eq!(server.value("cold", "backing_dev"), text(&folder.join("cold")));
    for (key, _, shown) in KEYS {
        assert_eq!(server.value("cold", key).to_string(), shown, "{key}");
    }
    assert_eq!(fs::metadata(folder.join("cold")).expect("a file").len(), 32 << 20);
    let mut client = Client::open(server.socket(), "cold");
    let bytes = pattern::half_random(1, 0, 8 << 20);
    client.write(0, &bytes).expect("it is written");
    let refused = server.spillway(&["set", "cold", "writeback", "page_indexes=0-2047"]);
    assert!(refused.err.contains("writeback_limit"), "{}", refused.err);
    assert_eq!(spilled(&server, "cold"), [1500, 1500 << 12], "as whole pages");
    (0..2).for_each(|_| assert!(client.read(0, 8 << 20).expect("it is read") == bytes));
    assert_eq!(server.value("cold", "brought_back_pages"), 0);
}

/// By the watermarks, and by their age.
#[test]
fn devices_of_a_configuration_spill_by_themselves() {
    let folder = Arc::new(Scratch::new());
    let keys = [
        "disksize = \"64M\"\nmem_limit = \"8M\"\nspill_high_watermark = 40\nspill_low_watermark = 10",
        "disksize = \"64M\"\nspill_age = 1",
    ];
    let devices = [("full", keys[0]), ("old", keys[1])].map(|(name, keys)| device(&folder, name, keys));
    let server = Launch::serve(folder, devices.concat()).start();
    for (name, pages) in [("full", 700), ("old", 1024)] {
        let mut client = Client::open(server.socket(), name);
        client.write(0, &pattern::random(1, 0, 4 << 20)).expect("it is written");
        until("pages leave", || (spilled(&server, name)[0] >= pages).then_some(()));
    }
}

#[test]
fn what_a_configuration_says_wrong_about_spilling_is_refused() {
    let folder = Arc::new(Scratch::new());
    let refused = |keys: &str, memory: &str, words: &str| {
        let launch = Launch::serve(folder.clone(), device(&folder, "cold", keys)).with("--memory", memory);
        let said = launch.run();
        assert!(said.code != Some(0) && said.err.contains(words), "{keys}: {said}");
    };
    refused("disksize = \"64M\"\nwriteback_depth = 33", "128M", "from 1 to 32");
    refused("disksize = \"64M\"\nwriteback_depth = 32", "48M", "--memory");
    refused("disksize = \"64M\"\nspill_size = \"1M\"", "128M", "from 32M");
    refused("disksize = \"64M\"\nforce = true", "128M", "no key `force`");
    refused("comp_algorithm = \"lz4\"", "128M", "spill_size is missing");
    let twice = device(&folder, "cold", "disksize = \"64M\"");
    let said =
        Launch::serve(folder.clone(), twice.clone() + &twice.replace("name = \"cold\"", "name = \"other\""))
            .run();
    assert!(said.code != Some(0) && said.err.contains("cold"), "{said}");
}

#[test]
fn a_server_takes_the_spill_file_of_a_killed_one_where_its_configuration_says_so() {
    let folder = Arc::new(Scratch::new());
    let (own, other) = (folder.join("cold"), folder.join("other"));
    let keys = "disksize = \"64M\"\n";
    let retake = format!("{keys}spill_retake = true\n");
    let mut killed = Launch::serve(folder.clone(), device(&folder, "cold", keys)).start();
    Client::open(killed.socket(), "cold").write(0, &pattern::random(1, 0, 1 << 20)).expect("it is written");
    killed.spillway(&["set", "cold", "writeback", "page_indexes=0-99"]).well();
    killed.signal(Signal::KILL);
    killed.ends();
    Launch::serve(folder.clone(), device(&folder, "cold", keys)).run().refused(4, "spill_retake");
    fs::copy(&own, &other).expect("a copy");
    Launch::serve(folder.clone(), device(&folder, "other", &retake)).run().refused(4, "belongs to 'cold'");
    let server = Launch::serve(folder.clone(), device(&folder, "cold", &retake)).start();
    server.says("killed is gone");
    assert_eq!(spilled(&server, "cold"), [0, 0]);
    assert!(Client::open(server.socket(), "cold").read(0, 4096).expect("a read") == [0; 4096]);
}

#[test]
fn a_small_device_has_a_spill_file_of_the_least_size() {
    let folder = Arc::new(Scratch::new());
    let server = Launch::ram("1M").with("--spill", folder.join("spill")).start();
    assert_eq!(server.value("ram0", "spill_size").as_u64(), Some(32 << 20));
}
