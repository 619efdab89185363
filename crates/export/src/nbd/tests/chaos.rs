//! Garbage, and valid conversations with bytes changed, cut at random, over a device that answers when it likes.

use spillway_core::random::Random;
use spillway_core::session::Session;

use super::stream::conversation;
use super::*;

/// Longest output that a session may hold: its limit, one request, and the headers around.
const OUTPUT_MAX: usize = 100_000 + (1 << 20) + 4096;

fn torture(seed: u64, bytes: &[u8]) {
    let mut random = Random(seed);
    let (device, exports) = one_export();
    let config =
        Config { payload_len_max: 1 << 20, held_bytes_max: 100_000, requests_max: 8, ..Config::default() };
    let mut client = Client::with_config(&exports, config);
    if random.below(2) == 0 {
        device.hold();
    }
    let mut at = 0;
    while at < bytes.len() {
        client.piece = 1 + random.below(100_000) as usize;
        client.reads = random.below(3) > 0;
        let count = (random.below(50_000) as usize).min(bytes.len() - at);
        client.send(&bytes[at..at + count]);
        at += count.max(1);
        device.release(random.below(4) as usize);
        assert!(client.session.output().len() < OUTPUT_MAX, "seed {seed}");
        assert!(client.session.pending() <= 9, "seed {seed}");
        match random.below(200) {
            0 => client.session.wind_down(),
            1 => client.session.hang_up(),
            _ => {}
        }
    }
    end(seed, client, &device, &exports);
}

/// Whatever happened: with answers from the device and a reading client, everything comes to rest.
fn end(seed: u64, mut client: Client, device: &TestDevice, exports: &Exports) {
    device.release(1 << 20);
    client.reads = true;
    client.drive();
    client.session.wind_down();
    client.drive();
    assert!(client.session.finished(), "seed {seed}");
    assert_eq!(client.session.pending(), 0, "seed {seed}");
    drop(client);
    assert!(exports.find(b"disk").unwrap().export().reserve().is_ok(), "seed {seed}");
}

#[test]
fn changed_conversations_do_no_harm() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut bytes = conversation(STYLES[seed as usize % 3], &mut random);
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.draw() as u8;
        }
        if random.below(4) == 0 {
            bytes.truncate(random.below(bytes.len() as u64) as usize);
        }
        torture(seed, &bytes);
    }
}

#[test]
fn garbage_does_no_harm() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let mut bytes = conversation(STYLES[seed as usize % 3], &mut Random(seed));
        let start = [0, 4, 20, 200, 300, 600][random.below(6) as usize];
        random.fill(&mut bytes[start..]);
        torture(seed, &bytes);
    }
}
