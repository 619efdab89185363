//! Memory stays below `--memory` + 64 MiB whatever clients do: random ones, on every stack, with every allocation counted.

use std::time::{SystemTime, UNIX_EPOCH};

use spillway_tests::hostile::{Chance, STACKS, Size, Stack, run};
use spillway_tests::{Launch, pattern};

/// Runs a seed that has broken the stack before, or one like it, and one that nobody has seen.
fn keeps_its_budget(name: &str, known: u64) {
    let stack = Stack::find(name).expect("a stack that exists");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let fresh = Chance::new(now).bits() >> 32;
    for seed in [known, fresh] {
        // Shown where the round panics.
        println!("{}", stack.repeat(seed, Size::SHORT));
        let report = run(stack, seed, Size::SHORT);
        println!("{report:?}");
        assert!(report.violations.is_empty(), "{:?}\n{}", report.violations, stack.repeat(seed, Size::SHORT));
        assert!(report.requests > 0 && report.counted.0 > 0, "nothing happened: {report:?}");
    }
}

macro_rules! stacks {
    ($($test:ident: $name:literal, $seed:literal;)*) => {
        $(#[test]
        fn $test() {
            keeps_its_budget($name, $seed);
        })*

        #[test]
        fn no_stack_is_left_out() {
            assert_eq!(STACKS.iter().map(|stack| stack.name).collect::<Vec<_>>(), [$($name),*]);
        }
    };
}

stacks! {
    compressed_ram_keeps_its_budget: "ram-lz4", 101;
    compressed_ram_with_zstd_keeps_its_budget: "ram-zstd", 108;
    a_disk_keeps_its_budget: "disk", 101;
    a_disk_with_a_page_cache_keeps_its_budget: "disk-cached", 101;
    a_cache_keeps_its_budget: "cache-s", 107;
    a_mapped_cache_keeps_its_budget: "cache-p", 101;
    a_cache_that_acknowledges_what_is_committed_keeps_its_budget: "cache-committed", 108;
    slow_devices_in_one_server_keep_their_budget: "serve", 117;
    clients_in_tls_keep_the_budget: "tls-required", 301;
    clients_that_may_speak_tls_keep_the_budget: "tls-optional", 302;
    clients_over_http_at_a_socket_change_nothing: "http-socket", 303;
    clients_over_http_at_a_port_change_nothing: "http-port", 304;
    clients_over_http_without_the_token_change_nothing: "http-token", 305;
}

/// A count that sees nothing would pass everything above.
#[test]
fn the_count_sees_regions_and_allocations() {
    const MIB: usize = 1 << 20;
    let server = Launch::ram("64M").with("--memory", "128M").counted(40 << 20).start();
    let before = server.counts();
    assert!(before.allocated_max > 0 && before.regions_max < 4 << 20 && before.broken == 0, "{before:?}");
    let mut client = server.client();
    for n in 0..64 {
        client.write((n * MIB) as u64, &pattern::random(9, (n * MIB) as u64, MIB)).expect("a write");
    }
    let after = server.counts();
    assert!(after.regions >= 64 << 20 && after.allocated_max > before.allocated_max, "{after:?}");
    assert!(after.sum_max >= after.regions + before.live / 2 && after.broken == 1, "{after:?}");
    server.says("are above 41943040");
}

#[test]
fn the_count_sees_the_slabs_of_a_page_cache() {
    const MIB: usize = 1 << 20;
    let (launch, _origin) = Launch::disk_with(vec![0; 64 * MIB]);
    let server = launch.with("--memory", "256M").counted(1 << 30).start();
    let mut client = server.client();
    (0..32).for_each(|n| client.write((n * MIB) as u64, &[7; MIB]).expect("a write"));
    let counts = server.counts();
    assert!(counts.regions >= 32 << 20, "{counts:?}");
}
