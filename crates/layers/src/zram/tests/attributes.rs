//! The attributes of a device: what they show, set and refuse.

use super::*;

#[test]
fn statistics_have_the_kernels_columns() {
    let bench = bench(sized(1 << 20));
    assert_eq!(bench.show("io_stat"), "       0        0 0        0");
    assert_eq!(bench.show("debug_stat"), "version: 1\n       0        0");
    assert_eq!(bench.show("mm_stat"), ["       0"; 9].join(" "));
    assert_eq!(bench.show("comp_algorithm"), "[lz4] lz4hc zstd deflate ");
    bench.discard(0, 8192);
    assert_eq!(bench.show("io_stat"), "       0        0 0        2");
}

/// Its encoders may find no room where its decoders did.
#[test]
fn a_codec_that_is_refused_leaves_nothing_charged() {
    let mut refused = 0;
    for (name, value) in [("recomp_algorithm", "algo=zstd"), ("comp_algorithm", "zstd")] {
        for room in (0..8 << 20).step_by(128 << 10) {
            let bench = bench(Config::default());
            let used = bench.budget.used();
            bench.budget.set_limit(used + room);
            if bench.run(bench.table.store(name, value)).is_err() {
                assert_eq!(bench.budget.used(), used, "{name} with {room} bytes left");
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused} were refused");
}

#[test]
fn reset_takes_everything_back_and_restores_the_defaults() {
    let bench = bench(Config { comp_algorithm: "zstd", ..sized(4 << 20) });
    let mut random = Random(4);
    (0..1000).for_each(|index| bench.write(index, &page(&mut random, 40)).unwrap());
    bench.set("mem_limit", "3M");
    bench.set("reset", "1");
    for (name, value) in [
        ("disksize", "0"),
        ("initstate", "0"),
        ("mem_used_total", "0"),
        ("mem_limit", "0"),
        ("num_writes", "0"),
    ] {
        assert_eq!(bench.show(name), value, "{name}");
    }
    assert_eq!(bench.show("comp_algorithm"), "[lz4] lz4hc zstd deflate ");
    assert_eq!(bench.number("max_comp_streams"), Config::default_streams() as u64);
    assert_eq!(bench.show("mm_stat"), ["       0"; 9].join(" "));
    bench.set("disksize", "5000");
    assert_eq!(bench.number("disksize"), 8192);
    assert_eq!(bench.read(0, 2), [0; 8192]);
}

#[test]
fn attributes_refuse_as_the_kernel_does() {
    let bench = bench(Config { max_comp_streams: 2, ..Config::default() });
    assert_eq!(bench.refuse("disksize", "0"), Kind::Invalid);
    assert_eq!(bench.refuse("disksize", "none"), Kind::Invalid);
    assert_eq!(bench.refuse("disksize", "17T"), Kind::Invalid);
    assert_eq!(bench.refuse("comp_algorithm", "lzo"), Kind::Invalid);
    assert_eq!(bench.refuse("comp_algorithm", &"x".repeat(128)), Kind::TooLong);
    assert_eq!(bench.refuse("compact", "1"), Kind::Invalid);
    assert_eq!(bench.refuse("mem_used_max", "1"), Kind::Invalid);
    assert_eq!(bench.refuse("mem_limit", "lots"), Kind::Invalid);
    assert_eq!(bench.refuse("reset", "0"), Kind::Invalid);
    assert_eq!(bench.refuse("reset", "70000"), Kind::Range);
    assert_eq!(bench.refuse("initstate", "1"), Kind::Denied);
    for bad in ["0", "-1", "257", "many", ""] {
        assert_eq!(bench.refuse("max_comp_streams", bad), Kind::Invalid, "{bad}");
    }
    for bad in ["level", "level=0", "level=x", "priority=1", "priority=4", "dict=/x", "algo=zstd", "algo=lzo"]
    {
        assert_eq!(bench.refuse("algorithm_params", bad), Kind::Invalid, "{bad}");
    }
    bench.set("algorithm_params", "algo=lz4 level=9");
    bench.set("comp_algorithm", "zstd\n");
    bench.set("algorithm_params", "level=-5 priority=0");
    bench.set("disksize", "1M");
    for name in ["disksize", "algorithm_params", "comp_algorithm"] {
        let value = if name == "comp_algorithm" { "lz4" } else { "1" };
        assert_eq!(bench.refuse(name, value), Kind::Busy, "{name}");
    }
    assert_eq!(bench.refuse("comp_algorithm", "lzo"), Kind::Invalid, "the name is looked at first");
    bench.set("max_comp_streams", "5\n");
    assert_eq!(bench.number("max_comp_streams"), 5);
}
