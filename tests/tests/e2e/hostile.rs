//! Clients that break rules: the server lives, serves others meanwhile, and keeps nothing of the dead.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_tests::raw::{self, Client, command, errno};
use spillway_tests::{Launch, Server, Vitals, pattern, until};

const MIB: usize = 1 << 20;

/// Areas of the device, in MiB: of the client beside the attack, and of everybody else.
const NEIGHBOUR: u64 = 512;
const OTHERS: u64 = 768;

/// What an attack may leave behind in caches and pools of buffers, in bytes.
const RESIDUE_MAX: u64 = 48 << 20;

/// Connections opened and dropped one after the other.
const RECONNECTS: usize = 10_000;

/// As many fill caches and pools.
const FIRST: usize = 1000;

/// What all of them may leave allocated: less than 7 bytes each.
const LEFT_MAX: u64 = 64 << 10;

/// Runs `attack` while a well-behaved client writes and reads; afterwards the server has its descriptors back, keeps no
/// more memory than pools explain, and serves a new client.
fn survives(attack: impl FnOnce(&Server)) {
    survives_in(launch(), attack);
}

fn launch() -> Launch {
    Launch::ram("1G").with("--memory", "256M")
}

fn survives_in(launch: Launch, attack: impl FnOnce(&Server)) {
    let mut server = launch.start();
    let mut before = server.vitals();
    polite(&mut server.client(), OTHERS, 0);
    server.settles_at(before.descriptors);
    before.resident = server.vitals().resident;
    beside_a_polite_client(&server, attack);
    server.settles_at(before.descriptors);
    let after = server.vitals();
    assert!(after.resident <= before.resident + RESIDUE_MAX, "{before:?} grew to {after:?}");
    polite(&mut server.client(), OTHERS, 1);
    assert!(server.lives());
}

/// Every answer must come within the client's patience.
fn beside_a_polite_client(server: &Server, attack: impl FnOnce(&Server)) {
    let over = AtomicBool::new(false);
    let socket = server.socket();
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| polite_until(socket, &over));
        let guard = OnDrop(|| over.store(true, Ordering::Relaxed));
        attack(server);
        drop(guard);
        let rounds = neighbour.join().expect("the polite client was served");
        assert!(rounds > 0, "the polite client was never served");
    });
}

/// Does something even if the attack panics: the neighbour would run for ever.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn polite_until(socket: &Path, over: &AtomicBool) -> u64 {
    let mut client = Client::open(socket, "");
    let mut round = 0;
    loop {
        polite(&mut client, NEIGHBOUR, round);
        round += 1;
        if over.load(Ordering::Relaxed) {
            return round;
        }
    }
}

/// Writes and reads a block of `area`; others that run at the same time have another one.
fn polite(client: &mut Client, area: u64, round: u64) {
    let offset = (area << 20) + round % 64 * 4096;
    let bytes = pattern::random(round, offset, 4096);
    client.write(offset, &bytes).expect("a write");
    assert!(client.read(offset, 4096) == Ok(bytes), "what was written is read");
}

/// Reads whatever comes until the other side closes.
fn drain(stream: &mut UnixStream) {
    let mut bytes = [0; 65536];
    while stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
}

#[test]
fn garbage_instead_of_a_handshake() {
    survives(|server| {
        for seed in 0..500u64 {
            let mut stream = raw::connect(server.socket()).expect("a connection");
            let len = pattern::random(seed, 0, 2)[0] as usize * 16;
            let _ = stream.write_all(&pattern::random(seed, 512, len));
            let _ = stream.shutdown(std::net::Shutdown::Write);
            drain(&mut stream);
        }
    });
}

#[test]
fn a_thousand_half_handshakes_and_then_silence() {
    survives(|server| {
        let words = [&[0, 0, 0, 3], &b"IHAVEOPT"[..], &[0, 0, 0, 7, 255, 255, 255, 255]].concat();
        let silent: Vec<_> = (0..1000)
            .map(|n| {
                let mut stream = raw::connect(server.socket()).expect("a connection");
                let _ = stream.write_all(&words[..n % words.len()]);
                stream
            })
            .collect();
        polite(&mut server.client(), OTHERS, 2);
        drop(silent);
    });
}

#[test]
fn half_a_request_and_then_silence() {
    survives(|server| {
        let words = raw::header(command::WRITE, 1, 0, MIB as u32);
        let silent: Vec<_> = (0..100)
            .map(|n| {
                let mut client = server.client();
                client.stream.write_all(&words[..1 + n % words.len()]).expect("room in the socket");
                client
            })
            .collect();
        polite(&mut server.client(), OTHERS, 3);
        drop(silent);
    });
}

#[test]
fn requests_of_four_gib() {
    survives(|server| {
        let mut client = server.client();
        assert!(client.ask(command::READ, 0, u32::MAX).is_err_and(|error| error != 0));
        assert_eq!(client.ask(command::READ, 0, u32::MAX - 511), Err(errno::EINVAL));
        for _ in 0..20 {
            let mut client = server.client();
            client.send(command::WRITE, 0, u32::MAX - 511).expect("a header fits");
            while !client.is_answered() && client.stream.write_all(&[0; 65536]).is_ok() {}
        }
    });
}

#[test]
fn a_thousand_reads_of_a_mib_that_nobody_takes() {
    survives(|server| {
        let base = server.vitals().resident;
        let mut writer = server.client();
        for n in 0..64 {
            writer.write((n * MIB) as u64, &pattern::random(4, (n * MIB) as u64, MIB)).expect("a write");
        }
        let mut greedy = server.client();
        let reads = (0..1000).map(|n| (command::READ, n % 64 * MIB as u64, MIB as u32));
        greedy.send_all(reads).expect("headers fit in the socket");
        for round in 0..200 {
            polite(&mut server.client(), OTHERS, round);
            let Vitals { resident, .. } = server.vitals();
            assert!(resident < base + (192 << 20), "{resident} bytes resident, {base} before");
        }
        writer.ask(command::TRIM, 0, 64 * MIB as u32).expect("a discard");
    });
}

/// More requests than fit in the sockets while their replies wait: the server has to take them all the same.
#[test]
fn many_requests_before_the_first_reply_is_read() {
    let server = Launch::ram("64M").start();
    let mut client = server.client();
    client.write(0, &[7; 4096]).expect("a write");
    for _ in 0..1500 {
        client.send(command::READ, 0, 4096).expect("the server takes requests");
    }
    for _ in 0..1500 {
        assert_eq!(client.reply().expect("a reply").0, 0);
        let mut bytes = [0; 4096];
        client.stream.read_exact(&mut bytes).expect("its bytes");
        assert_eq!(bytes, [7; 4096]);
    }
}

#[test]
fn a_disconnect_in_the_middle_of_a_write_changes_nothing() {
    survives(|server| {
        let old = pattern::random(5, 0, MIB);
        server.client().write(0, &old).expect("a write");
        for part in [1, 511, 4096, 300_000, MIB - 1] {
            let mut client = server.client();
            client.send(command::WRITE, 0, MIB as u32).expect("a header fits");
            client.stream.write_all(&vec![0xff; part]).expect("the server takes the payload");
            drop(client);
            assert!(server.client().read(0, MIB) == Ok(old.clone()), "{part} bytes of a write were executed");
        }
    });
}

#[test]
fn a_disconnect_with_requests_in_flight() {
    survives(|server| {
        for round in 0..300 {
            let mut client = server.client();
            let requests = (0..32).map(|n| match n % 2 {
                0 => (command::READ, (round + n) * 65536, 65536),
                _ => (command::FLUSH, 0, 0),
            });
            client.send_all(requests).expect("headers fit in the socket");
        }
    });
}

#[test]
fn ten_thousand_reconnects() {
    survives_in(launch().counted(512 << 20), |server| {
        reconnect(server, FIRST);
        let before = server.counts().live;
        reconnect(server, RECONNECTS);
        until("the server frees what connections took", || {
            (server.counts().live <= before + LEFT_MAX).then_some(())
        });
    });
}

fn reconnect(server: &Server, count: usize) {
    for n in 0..count {
        let mut client = server.client();
        if n % 4 == 0 {
            polite(&mut client, OTHERS, n as u64);
        }
        if n % 2 == 0 {
            client.send(command::DISC, 0, 0).expect("a header fits");
        }
    }
}

#[test]
fn malformed_requests_get_the_errno_of_the_specification() {
    survives(|server| {
        let mut client = server.client();
        let end = client.size;
        assert_eq!(client.ask(command::READ, end, 512), Err(errno::EINVAL));
        assert_eq!(client.ask(command::READ, end - 512, 1024), Err(errno::EINVAL));
        assert_eq!(client.ask(command::READ, u64::MAX - 511, 512), Err(errno::EINVAL));
        assert_eq!(client.write(end, &[1; 512]), Err(errno::ENOSPC));
        assert_eq!(client.ask(command::TRIM, end, 512), Err(errno::EINVAL));
        assert_eq!(client.ask(99, 0, 512), Err(errno::EINVAL));
        polite(&mut client, OTHERS, 4);
    });
}

#[test]
fn a_wrong_magic_closes_the_connection() {
    survives(|server| {
        let mut client = server.client();
        let _ = client.stream.write_all(&[0x5a; 28]);
        drain(&mut client.stream);
    });
}
