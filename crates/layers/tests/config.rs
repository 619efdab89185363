//! Configurations become stacks; what is wrong in one is refused in words that name the key, the value and the remedy.

use std::sync::Arc;

use spillway_core::{Answer, Attributes, BlockSize, Budget, Error, Kind, OpenStorage, Works};
use spillway_layers::open_context::{BackingDevice, OpenContext};
use spillway_layers::small::{delay, memory};
use spillway_layers::stack::{LayerConfig, OriginConfig, Stack, StackConfig};
use spillway_sim::disk::{Disk, Medium, Plan};
use spillway_sim::memory::VecRegions;
use spillway_sim::world::World;

fn open_context() -> (Arc<World>, OpenContext) {
    let world = World::new(1);
    let context = OpenContext {
        name: "device".into(),
        env: world.clone(),
        regions: Arc::new(VecRegions::new(64 << 20)),
        budget: Budget::new(64 << 20),
        memory_nodes: Vec::new(),
        works: Works::default(),
        open_file: Arc::new(|backing| Answer::Done(open_file(backing))),
    };
    (world, context)
}

fn open_file(backing: &BackingDevice) -> Result<OpenStorage, Error> {
    if backing.path.as_os_str() == "missing.img" {
        return Err(Error::new(Kind::NotFound, "there is no file missing.img: create it first"));
    }
    assert!(backing.read_only && !backing.mapped && backing.role == "origin");
    let disk = Disk::new(World::new(1), Medium::new(2 << 20), BlockSize::PAGE, Plan::default(), 1);
    Ok(OpenStorage { storage: Arc::new(disk), notes: vec!["it is simulated".into()] })
}

fn build(text: &str) -> Result<Stack, String> {
    let config: StackConfig = toml::from_str(text).map_err(|error| error.to_string())?;
    open(config).map_err(|error| error.to_string())
}

fn open(config: StackConfig) -> Result<Stack, Error> {
    let (world, context) = open_context();
    world.run(Answer::pending(async move { Stack::open(&config, &[], &context).await }))
}

/// Asserts that `text` is refused with all of `words`.
fn refused(text: &str, words: &[&str]) {
    let message = build(text).map(|stack| stack.describe()).expect_err("it is wrong");

    for word in words {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
}

/// Nothing is opened for it: the paths exist nowhere.
#[test]
fn nothing_above_keeps_in_memory_what_is_acknowledged_as_committed() {
    let text = r#"
        origin = { kind = "file", path = "missing.img" }
        layers = [{ kind = "write_cache", path = "c", ack = "committed" }, { kind = "page_cache" }]"#;
    refused(text, &["ack committed", "mode writeback", "leave one out"]);
}

#[test]
fn sizes_are_numbers_or_text() {
    for size in ["1048576", r#""1M""#, r#""1MiB""#, r#""1024K""#] {
        let stack = build(&format!(r#"origin = {{ kind = "memory", size = {size} }}"#)).unwrap();
        assert_eq!(stack.show("size").unwrap(), "1048576");
    }
}

#[test]
fn attributes_are_found_from_the_top_or_by_kind() {
    let text = r#"
        origin = { kind = "null", size = "1M" }
        layers = [
            { kind = "fault" },
            { kind = "trace", records_max = 5 },
            { kind = "delay", read_us = 3 },
            { kind = "delay", read_us = 4 },
        ]"#;
    let stack = build(text).unwrap();
    assert_eq!(stack.describe(), "delay > delay > trace > fault > null");
    let show = |name| stack.show(name).unwrap();
    assert_eq!([show("read_us"), show("delay.read_us"), show("null.size")], ["4", "4", "1048576"]);
    assert_eq!(show("delay2.read_us"), "3");
    stack.store("delay2.read_us", "5").now().unwrap();
    assert_eq!([show("delay.read_us"), show("delay2.read_us")], ["4", "5"]);
    stack.store("fault.nth", "8").now().unwrap();
    assert_eq!(
        (show("nth"), show("trace.failures"), show("fault.failures")),
        ("8".into(), "0".into(), "0".into())
    );
    for name in ["speed", "rate.read_us", "fault.read_us", "delay3.read_us"] {
        let error = stack.show(name).unwrap_err();
        assert_eq!(error.kind, Kind::NotFound);
        assert!(
            error.message().contains(name) && error.message().contains("delay.jitter_percent, "),
            "{error}"
        );
    }
    assert_eq!(stack.store("records", "1").now().unwrap_err().kind, Kind::Denied);
    assert_eq!(stack.specs().len(), stack.parts.iter().map(|part| part.attributes.specs().len()).sum());
}

#[test]
fn a_file_is_opened_by_whoever_builds_the_stack() {
    let stack = build(r#"origin = { kind = "file", path = "disk.img", read_only = true }"#).unwrap();
    assert_eq!(
        (stack.show("path").unwrap(), stack.show("size").unwrap()),
        ("disk.img".into(), "2097152".into())
    );
    assert_eq!(stack.notes, ["it is simulated"]);
    let twice = r#"origin = { kind = "file", path = "o" }
        layers = [{ kind = "write_cache", path = "c", mode = "p" }]"#;
    let config: StackConfig = toml::from_str(twice).unwrap();
    let named = config.backing_devices();
    let named: Vec<_> =
        named.iter().map(|backing| (backing.role, backing.path.to_str(), backing.mapped)).collect();
    assert_eq!(named, [("origin", Some("o"), false), ("cache", Some("c"), true)]);
    refused(r#"origin = { kind = "file", path = "missing.img" }"#, &["origin: there is no file missing.img"]);
}

#[test]
fn zram_takes_its_keys_and_defaults() {
    let text = r#"
        [origin]
        kind = "zram"
        disksize = "4G"
        comp_algorithm = "lz4"
        max_comp_streams = 2
        mem_limit = "1G""#;
    let stack = build(text).unwrap();
    assert_eq!(stack.show("zram.max_comp_streams").unwrap(), "2");
    assert_eq!(stack.device.geometry().size, 4 << 30);
    let stack = build(r#"origin = { kind = "zram", disksize = "1M" }"#).unwrap();
    assert_ne!(stack.show("max_comp_streams").unwrap(), "0", "one for each core");
}

#[test]
fn a_stack_is_built_from_code_as_well() {
    let config = StackConfig {
        origin: OriginConfig::Memory(memory::Config { size: 1 << 20, block_size: 512 }),
        layers: vec![LayerConfig::Delay(delay::Config { read_us: 1, ..delay::Config::default() })],
    };
    assert_eq!(open(config).unwrap().describe(), "delay > memory");
}

/// A layer above that holds data would give back what was there before.
#[test]
fn what_a_layer_holds_is_not_reset_below_it() {
    let text = "origin = { kind = \"zram\", disksize = \"1M\" }\nlayers = [{ kind = \"volatile\" }]";
    let stack = build(text).unwrap();
    for name in ["reset", "zram.reset"] {
        let refusal = stack.store(name, "1").now().unwrap_err();
        assert!(refusal.kind == Kind::Invalid && refusal.message().contains("volatile"), "{refusal}");
    }
    assert_eq!(stack.show("disksize").unwrap(), "1048576", "nothing was taken away");
}

#[test]
fn stacks_grow_from_the_origin_up() {
    for origin in [r#"kind = "zram", disksize"#, r#"kind = "memory", size"#, r#"kind = "null", size"#] {
        let layers = r#"[{ kind = "delay" }, { kind = "rate" }, { kind = "fault" }, { kind = "trace" }]"#;
        let stack = build(&format!("origin = {{ {origin} = \"1M\" }}\nlayers = {layers}")).unwrap();
        let stack = Arc::new(stack);
        let grow = |size| {
            let stack = stack.clone();
            let grown = World::new(1).run(Answer::pending(async move { stack.grow(size).await }));
            grown.map_err(|error| error.to_string())
        };
        grow(Some(3 << 20)).unwrap();
        assert_eq!(stack.device.geometry().size, 3 << 20, "{origin}");
        for (size, words) in [
            (Some(2 << 20), "cannot shrink"),
            (None, "give one"),
            (Some(1 << 63), "cannot be 9223372036854775808"),
        ] {
            let refusal = grow(size).unwrap_err();
            assert!(refusal.contains(words), "{origin}: {refusal}");
        }
        assert_eq!(stack.device.geometry().size, 3 << 20, "{origin}");
    }
}

#[test]
fn unknown_kinds_and_keys_are_refused_with_what_there_is() {
    refused(r#"origin = { kind = "floppy" }"#, &["floppy", "zram", "memory", "null", "file"]);
    refused(r#"origin = { kind = "memory", sise = "1M" }"#, &["sise", "`size`"]);
    refused(r#"origin = { kind = "memory" }"#, &["size is missing", "give a size"]);
    refused(r#"origin = { size = "1M" }"#, &["kind"]);
    refused(r#"layers = []"#, &["origin"]);
    refused("origin = { kind = \"null\", size = 4096 }\nlayer = []", &["layer", "`layers`"]);
    let layer = |layer: &str| format!("origin = {{ kind = \"null\", size = 4096 }}\nlayers = [{layer}]");
    refused(&layer(r#"{ kind = "lag" }"#), &["lag", "delay", "rate", "fault", "trace"]);
    refused(&layer(r#"{ kind = "delay", read_ms = 1 }"#), &["read_ms", "read_us", "jitter_percent"]);
    refused(&layer(r#"{ kind = "delay", read_us = "soon" }"#), &["soon"]);
}

#[test]
fn values_that_are_not_allowed_are_refused_with_place_key_value_and_remedy() {
    let origin = |origin: &str| format!("origin = {{ {origin} }}");
    let memory = |keys: &str| origin(&format!(r#"kind = "memory", {keys}"#));
    refused(&memory(r#"size = "4X""#), &["line 1", "size cannot be \"4X\"", "such as 4G"]);
    refused(&memory(r#"size = "1000""#), &["origin: size cannot be 1000", "multiple of 4096"]);
    refused(&memory(r#"size = 0"#), &["line 1", "size cannot be 0", "from 512B to 4E"]);
    refused(&memory(r#"size = true"#), &["size cannot be true", "such as 4G"]);
    refused(&memory(r#"size = "1M", block_size = 1000"#), &["block_size cannot be 1000", "power of two"]);
    refused(&origin(r#"kind = "zram", mem_limit = "lots""#), &["mem_limit cannot be \"lots\"", "such as 4G"]);
    let layer = |layer: &str| {
        format!(
            "origin = {{ kind = \"null\", size = 4096 }}\nlayers = [{{ kind = \"trace\" }}, {{ {layer} }}]"
        )
    };
    refused(
        &layer(r#"kind = "delay", jitter_percent = 200"#),
        &["line 2", "jitter_percent cannot be 200", "from 0 to 100"],
    );
    refused(
        &layer(r#"kind = "rate", bytes_per_second = "fast""#),
        &["bytes_per_second cannot be \"fast\"", "K, M, G, T"],
    );
    refused(&layer(r#"kind = "fault", probability = 1.5"#), &["probability cannot be 1.5", "from 0 to 1"]);
    refused(&layer(r#"kind = "fault", op = "erase""#), &["op cannot be \"erase\"", "any, read, write"]);
    refused(&layer(r#"kind = "fault", error = "EWHAT""#), &["error cannot be \"EWHAT\"", "EIO, ENOSPC"]);
    refused(&layer(r#"kind = "delay", read_us = -1"#), &["read_us cannot be \"-1\""]);
    refused(&layer(r#"kind = "delay", read_us = [1]"#), &["a number, true or false, or text"]);
    refused(&layer(r#"kind = "write_cache", path = "c", force = true"#), &["there is no key `force`"]);
    refused(&layer(r#"kind = "trace", records_max = 0"#), &["records_max cannot be 0", "65536"]);
}
