//! `spillway why`, after each kind of layer had something to decide.

use std::sync::Arc;

use serde_json::Value as Json;
use spillway_tests::raw::Client;
use spillway_tests::tool::Said;
use spillway_tests::{Launch, Scratch, Server, pattern, until};

const MIB: usize = 1 << 20;

fn why(server: &Server, device: &str) -> Said {
    server.spillway(&["why", device]).well()
}

/// Waits until a line of the answer has all these words.
fn says(server: &Server, device: &str, words: &[&str]) {
    let has_all = |line: &str| words.iter().all(|word| line.contains(word));
    until("it says so", || why(server, device).out.lines().any(has_all).then_some(()));
}

/// Writes noise, a MiB at a time, until `len` bytes are written or a write fails; the error of that.
fn fill(client: &mut Client, len: usize) -> Result<(), u32> {
    (0..len).step_by(MIB).try_for_each(|at| client.write(at as u64, &pattern::random(1, at as u64, MIB)))
}

#[test]
fn a_device_that_decided_nothing_says_so() {
    let server = Launch::ram("64M").start();
    server.client().write(0, &[1; 4096]).expect("it is stored");
    let said = why(&server, "ram0").out;
    assert!(said.starts_with("ram0: nothing so far") && said.lines().count() == 1, "{said}");
    let json: Json =
        serde_json::from_str(&server.spillway(&["why", "ram0", "--json"]).well().out).expect("JSON");
    assert_eq!(json, serde_json::json!({ "zram": [], "limits": [] }));
    assert_eq!(server.spillway(&["why", "ram7"]).code, Some(3), "there is no such device");
}

fn limit(server: &Server) {
    server.spillway(&["set", "ram0", "mem_limit", "8M"]).well();
}

#[test]
fn spilled_pages_and_refused_writes_have_their_reasons() {
    let server = Launch::ram("256M").start();
    limit(&server);
    assert!(fill(&mut server.client(), 32 * MIB).is_err(), "8 MiB of memory hold less than 32 MiB of noise");
    says(&server, "ram0", &["zram", "refuse writes", "% of mem_limit is held", "there is no spill file"]);
    let folder = Arc::new(Scratch::new());
    let spill = folder.join("spill");
    let server = Launch::ram("256M").with("--spill", &spill).start();
    limit(&server);
    fill(&mut server.client(), 32 * MIB).expect("the spill file has room");
    says(&server, "ram0", &["zram", "spill ", "% of mem_limit was held"]);
    let json: Json =
        serde_json::from_str(&server.spillway(&["why", "ram0", "--json"]).well().out).expect("JSON");
    let spilled = json["zram"].as_array().expect("rows").iter().filter(|row| row["decision"] == "spill");
    let bytes: u64 = spilled.map(|row| row["bytes"].as_u64().expect("a number")).sum();
    let pages = server.value("ram0", "bd_stat")["bd_writes"].as_u64().expect("a number");
    assert!(bytes >= 16 * MIB as u64 && bytes.is_multiple_of(4096), "{bytes} bytes, {pages} pages: {json}");
}

#[test]
fn write_back_of_both_caches_and_held_writes_have_their_reasons() {
    let folder = Arc::new(Scratch::new());
    let [origin, cache] =
        [("origin", 32), ("cache", 16)].map(|(name, mib)| folder.write(name, vec![0; mib * MIB]));
    let server = Launch::cache(folder, &origin, &cache).with("--at-risk-bytes-max", "1M").start();
    fill(&mut server.client(), 24 * MIB).expect("the origin takes it");
    says(&server, "cache0", &["write_cache", "write back", "% of", "blocks are dirty"]);
    says(
        &server,
        "cache0",
        &["limits", "flush", "half of at_risk_bytes_max", "acknowledged and not durable"],
    );
    let (launch, _) = Launch::disk_with(vec![0; 32 * MIB]);
    let server = launch.with("--page-cache-bytes-max", "16M").start();
    let mut client = server.client();
    fill(&mut client, 8 * MIB).expect("it is cached");
    server.spillway(&["set", "disk0", "drain", "1"]).well();
    says(&server, "disk0", &["page_cache", "write back", "a drain, or the end"]);
}
