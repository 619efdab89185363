//! Every origin, every layer and a stack of four do what every device must do, in the simulated world.

use std::sync::Arc;

use spillway_core::contract::{Subject, check};
use spillway_core::{Answer, BlockSize, Budget, ByteRange, Error, IoBuf, Kind, Request, Storage};
use spillway_layers::stack::{FileConfig, Stack, StackConfig, Surroundings};
use spillway_sim::disk::{Disk, Medium, Plan};
use spillway_sim::memory::VecRegions;
use spillway_sim::world::World;

const MEMORY: &str = r#"origin = { kind = "memory", size = "8M" }"#;

fn surroundings(world: &Arc<World>) -> Surroundings {
    Surroundings {
        env: world.clone(),
        regions: Arc::new(VecRegions::new(64 << 20)),
        budget: Budget::new(256 << 20),
        open_file: Box::new(open_file),
    }
}

fn open_file(config: &FileConfig) -> Result<Arc<dyn Storage>, Error> {
    if config.path.as_os_str() == "missing" {
        return Err(Error::new(Kind::NotFound, "there is no file \"missing\": create it first"));
    }
    Ok(Arc::new(Disk::new(World::new(1), Medium::new(8 << 20), BlockSize::new(512)?, Plan::default(), 1)))
}

fn build(world: &Arc<World>, text: &str) -> Stack {
    let config: StackConfig = toml::from_str(text).expect("the text is a configuration");
    Stack::build(&config, &surroundings(world)).expect("the configuration is allowed")
}

fn conforms(text: &str) {
    let world = World::new(1);
    let stack = build(&world, text);
    let run = |submission| world.run(submission);
    check(&Subject { device: stack.device, run: &run, stores: !text.contains(r#"kind = "null""#) });
}

#[test]
fn origins() {
    conforms(r#"origin = { kind = "null", size = "1M" }"#);
    conforms(r#"origin = { kind = "zram", disksize = "8M" }"#);
    conforms(r#"origin = { kind = "file", path = "disk.img" }"#);
    for block_size in ["512", "4096", "65536"] {
        conforms(&format!(r#"origin = {{ kind = "memory", size = "8M", block_size = {block_size} }}"#));
    }
}

#[test]
fn layers() {
    for layer in [
        r#"{ kind = "delay" }"#,
        r#"{ kind = "delay", read_us = 50, write_us = 70, discard_us = 9, flush_us = 900, jitter_percent = 50 }"#,
        r#"{ kind = "rate" }"#,
        r#"{ kind = "rate", bytes_per_second = "100M", seek_us = 4000 }"#,
        r#"{ kind = "fault" }"#,
        r#"{ kind = "trace", records_max = 7 }"#,
    ] {
        conforms(&format!("{MEMORY}\nlayers = [{layer}]"));
    }
}

const FOUR: &str = r#"
    origin = { kind = "memory", size = "8M" }
    layers = [
        { kind = "rate", bytes_per_second = "200M", seek_us = 100 },
        { kind = "fault", op = "read", nth = 1000000000 },
        { kind = "delay", read_us = 10, write_us = 20, jitter_percent = 100 },
        { kind = "trace" },
    ]"#;

#[test]
fn a_stack_of_four() {
    conforms(FOUR);
    let memory = r#"kind = "memory", size"#;
    assert!(FOUR.contains(memory));
    conforms(&FOUR.replace(memory, r#"kind = "zram", disksize"#));
    assert_eq!(build(&World::new(1), FOUR).describe(), "trace > delay > fault > rate > memory");
}

#[test]
fn a_seed_repeats_a_stack_to_the_nanosecond() {
    let play = |seed| {
        let world = World::new(seed);
        let stack = build(&world, FOUR);
        let reads = (0..100u64).map(|block| Request::read(block * 7 % 50 * 4096, IoBuf::new(4096)));
        world.run_all(reads.map(|request| stack.device.submit(request)).collect());
        let table = stack.find("records").unwrap().0.attributes.clone();
        table.show("records").unwrap()
    };
    assert_eq!(play(3), play(3));
    assert_ne!(play(3), play(4));
}

#[test]
fn extents_pass_through_every_layer() {
    let stack = build(&World::new(1), FOUR);
    let Answer::Done(Ok(extents)) = stack.device.extents(ByteRange::new(0, 8 << 20), 10) else {
        panic!("the extents of a memory origin are known at once")
    };
    assert!(extents.len() == 1 && extents[0].hole && extents[0].len == 8 << 20);
}
