//! nbdcopy, nbdinfo and libnbd's Python bindings.

use std::fs;

use serde_json::Value;

use crate::raw::command::TRIM;
use crate::tool::{python, run};
use crate::{Server, pattern};

const MIB: usize = 1 << 20;

/// Several connections, many requests in flight, overlapping parts of blocks; each sector is one write's, and one that no
/// later write replaced.
const OVERLAPS: &str = include_str!("../../scripts/overlapping_writes.py");

/// nbdcopy copies in over several connections, and out again.
pub fn copies_round_trip(server: &Server) {
    let folder = server.folder();
    let bytes = pattern::half_random(2, 0, 32 * MIB);
    let (source, back) = (folder.write("copy.raw", &bytes), folder.join("copy.back"));
    let uri = server.uri();
    run("nbdcopy", &["--connections=4", "--requests=32", "--flush", &source.to_string_lossy(), &uri]).well();
    run("nbdcopy", &["--connections=4", &uri, &back.to_string_lossy()]).well();
    assert!(fs::read(&back).expect("nbdcopy wrote it")[..bytes.len()] == bytes, "the copy differs");
}

/// nbdinfo sees the size, the capabilities and the list of exports.
pub fn describes_itself(server: &Server, export: &str, size: u64) {
    let uri = server.uri();
    let found = json(&["--json", &uri]);
    assert_eq!(found["protocol"], "newstyle-fixed");
    let first = &found["exports"][0];
    assert_eq!(first["export-size"], size);
    for can in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero", "can_df"] {
        assert_eq!(first[can], true, "{can} in {first}");
    }
    assert_eq!(first["is_read_only"], false);
    assert_eq!(first["block_size_minimum"], 512);
    let list = json(&["--list", "--json", &uri]);
    let names: Vec<_> =
        list["exports"].as_array().expect("a list").iter().map(|e| &e["export-name"]).collect();
    assert_eq!(names, [export]);
}

fn json(arguments: &[&str]) -> Value {
    let said = run("nbdinfo", arguments).well();
    serde_json::from_str(&said.out).unwrap_or_else(|why| panic!("{why}: {said}"))
}

/// nbdinfo sees written blocks as data and discarded ones as holes. The device is fresh.
pub fn maps_what_is_allocated(server: &Server) {
    let mut client = server.client();
    let size = client.size;
    assert_eq!(map(server), [("hole,zero".into(), 0, size)]);
    client.write(MIB as u64, &pattern::random(3, 0, MIB)).expect("a write");
    client.ask(TRIM, MIB as u64 + 65536, 65536).expect("a discard");
    let wanted = [
        ("hole,zero", 0, 1 << 20),
        ("data", 1 << 20, 65536),
        ("hole,zero", (1 << 20) + 65536, 65536),
        ("data", (1 << 20) + 131_072, (1 << 20) - 131_072),
        ("hole,zero", 2 << 20, size - (2 << 20)),
    ];
    let wanted: Vec<_> = wanted.iter().map(|(kind, at, len)| (kind.to_string(), *at, *len)).collect();
    assert_eq!(map(server), wanted);
}

/// Extents as nbdinfo reports them, neighbours of one kind joined: description, offset, length.
pub fn map(server: &Server) -> Vec<(String, u64, u64)> {
    let found = json(&["--map", "--json", &server.uri()]);
    let mut extents: Vec<(String, u64, u64)> = Vec::new();
    for extent in found.as_array().expect("a list") {
        let number = |key: &str| extent[key].as_u64().expect("a number");
        let (kind, at, len) =
            (extent["description"].as_str().expect("text"), number("offset"), number("length"));
        match extents.last_mut() {
            Some(last) if last.0 == kind => last.2 += len,
            _ => extents.push((kind.into(), at, len)),
        }
    }
    extents
}

/// Writes that overlap in parts of blocks, over several connections at once.
pub fn overlapping_writes_are_whole(server: &Server) {
    python(OVERLAPS, &[&server.uri(), "1"]).well();
}
