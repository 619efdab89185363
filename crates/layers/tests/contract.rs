//! Every origin, every layer and a stack of four do what every device must do, in the simulated world.

use std::sync::Arc;

use spillway_core::contract::{Subject, check};
use spillway_core::random::Random;
use spillway_core::{
    Aligned, Answer, BlockSize, Budget, ByteRange, Error, IoBuf, Kind, Op, OpenStorage, Request, Works,
};
use spillway_layers::open_context::{BackingDevice, OpenContext};
use spillway_layers::stack::{Stack, StackConfig};
use spillway_sim::disk::{Disk, Medium, Plan};
use spillway_sim::memory::VecRegions;
use spillway_sim::world::World;

const MEMORY: &str = r#"origin = { kind = "memory", size = "8M" }"#;

fn open_context(world: &Arc<World>) -> OpenContext {
    OpenContext {
        name: "device".into(),
        env: world.clone(),
        regions: Arc::new(VecRegions::new(64 << 20)),
        budget: Budget::new(256 << 20),
        memory_nodes: vec![3, 1],
        works: Works::default(),
        open_file: Arc::new(|backing| Answer::Done(open_file(backing))),
    }
}

fn open_file(backing: &BackingDevice) -> Result<OpenStorage, Error> {
    if backing.path.as_os_str() == "missing" {
        return Err(Error::new(Kind::NotFound, "there is no file \"missing\": create it first"));
    }
    let storage =
        Arc::new(Disk::new(World::new(1), Medium::new(8 << 20), BlockSize::new(512)?, Plan::default(), 1));
    Ok(OpenStorage { storage, notes: Vec::new() })
}

fn build(world: &Arc<World>, text: &str) -> Stack {
    let config: StackConfig = toml::from_str(text).expect("the text is a configuration");
    let context = open_context(world);
    let stack = world.run(Answer::pending(async move { Stack::open(&config, &[], &context).await }));
    stack.expect("the configuration is allowed")
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

/// A device that is served as a file takes any bytes, whatever its blocks are.
#[test]
fn any_bytes_are_written_and_read() {
    for block_size in [512u32, 4096, 65536] {
        let world = World::new(1);
        let text = format!(r#"origin = {{ kind = "memory", size = "1M", block_size = {block_size} }}"#);
        let device = build(&world, &text).device;
        let aligned = Aligned::to_bytes(device, &Budget::new(4 << 20)).expect("there is room");
        let mut random = Random(u64::from(block_size));
        let mut model = vec![0; 1 << 20];
        for round in 0..500 {
            let longest = [20, 2000, 300_000][round % 3];
            let offset = random.below(1 << 20);
            let len = (1 + random.below(longest)).min((1 << 20) - offset) as usize;
            let range = offset as usize..offset as usize + len;
            let request = match random.below(3) {
                0 => Request::read(offset, IoBuf::new(len)),
                1 => {
                    model[range.clone()].fill(round as u8);
                    Request::write(offset, IoBuf::copy_of(&model[range.clone()]))
                }
                _ => {
                    model[range.clone()].fill(0);
                    Request::bare(Op::WriteZeroes, ByteRange::new(offset, len as u64))
                }
            };
            let reads = request.op == Op::Read;
            let reply = world.run(aligned.submit_bytes(request));
            assert_eq!(reply.result, Ok(()), "{block_size} round {round}");
            assert!(!reads || reply.buf[..] == model[range], "{block_size} round {round}");
        }
        let all = world.run(aligned.submit_bytes(Request::read(0, IoBuf::new(1 << 20))));
        assert!(all.buf[..] == model[..], "{block_size}");
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
        r#"{ kind = "volatile" }"#,
        r#"{ kind = "volatile", volatile_bytes_max = "64K" }"#,
        r#"{ kind = "volatile", volatile_bytes_max = 0 }"#,
    ] {
        conforms(&format!("{MEMORY}\nlayers = [{layer}]"));
    }
}

#[test]
fn page_caches() {
    for options in [
        r#"page_cache_bytes_max = "8M""#,
        r#"page_cache_bytes_max = "400K""#,
        r#"page_cache_bytes_max = "400K", mode = "writethrough""#,
        r#"page_cache_bytes_max = "400K", folio_size = "4K", block_size = 512"#,
        r#"page_cache_bytes_max = "12M", folio_size = "2M", dirty_ratio = 1, dirty_background_ratio = 0"#,
    ] {
        let layer = format!(r#"{{ kind = "page_cache", {options} }}"#);
        conforms(&format!("origin = {{ kind = \"file\", path = \"disk.img\" }}\nlayers = [{layer}]"));
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
