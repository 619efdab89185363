//! `--lock-memory`: nothing of a server's memory can be swapped out, and what is freed goes back to the system all the same. As root.

use std::fs;

use spillway_tests::raw::command;
use spillway_tests::{Launch, Server, pattern, script_of_user};

const MIB: usize = 1 << 20;

/// A size of a running server in bytes, as the kernel shows it.
fn bytes(server: &Server, name: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let row = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = row.and_then(|row| row.trim().strip_suffix("kB")).expect("a size");
    kib.trim().parse::<usize>().expect("a number") * 1024
}

#[test]
fn all_memory_is_locked_and_what_is_freed_goes_back() {
    let usual = Launch::ram("256M").start();
    assert_eq!(bytes(&usual, "VmLck"), 0);
    let server = Launch::ram("256M").with("--memory", "512M").flag("--lock-memory").start();
    assert!(bytes(&server, "VmLck") >= bytes(&server, "VmRSS"), "not all of it is locked");
    let before = bytes(&server, "VmRSS");
    assert!(before < 256 * MIB, "what was never used takes {before} bytes");
    let mut client = server.client();
    let data = pattern::random(1, 0, 128 * MIB);
    for (at, piece) in data.chunks(MIB).enumerate() {
        client.write((at * MIB) as u64, piece).expect("a write");
    }
    let full = bytes(&server, "VmRSS");
    assert!(full >= before + 128 * MIB, "{full} bytes hold 128 MiB that do not compress");
    assert!(bytes(&server, "VmLck") >= full, "what was mapped later is not locked");
    assert_eq!(client.read(64 << 20, MIB), Ok(data[64 * MIB..][..MIB].to_vec()));
    client.ask(command::TRIM, 0, 128 << 20).expect("a discard");
    assert_eq!(client.read(64 << 20, MIB), Ok(vec![0; MIB]));
    spillway_tests::until("the memory is back", || {
        (bytes(&server, "VmRSS") < before + 64 * MIB).then_some(())
    });
}

#[test]
fn a_limit_of_locked_memory_is_refused_with_its_remedy() {
    script_of_user(
        r#"
        program=$2
        export SPILLWAY_RUNTIME_DIR=$1
        ulimit -l 8192
        if "$program" ram --size 16M --lock-memory 2> "$1/refusal"; then echo "it was served"; exit 1; fi
        for words in "lock_memory: " "(RLIMIT_MEMLOCK) is 8388608 bytes" "LimitMEMLOCK=infinity"; do
            grep -qF -- "$words" "$1/refusal" || { cat "$1/refusal"; exit 1; }
        done
        "#,
    );
}
