//! Sessions on real sockets, with both drivers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::house::{House, sessions};
use crate::toy::{BOTH, BYE, ECHO, GATED, Toy, Watch, answer, echo, request, until, workers};
use spillway_core::block_on;
use spillway_core::buffer::Buffers;
use spillway_core::random::Random;
use spillway_core::sync::Mutex;
use spillway_io::{ConnectionLimits, DriverChoice, Listener, NewSession, serve};

/// With a house of the default limits, which is stopped afterwards.
fn served(test: impl Fn(&House)) {
    for driver in BOTH {
        let house = House::new(driver, ConnectionLimits::default());
        test(&house);
        house.stop();
    }
}

pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut random = Random(seed);
    bytes.chunks_mut(8).for_each(|chunk| {
        let word = random.draw().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    });
    bytes
}

#[test]
fn messages_of_every_size_come_back_whole() {
    served(|house| {
        let mut stream = house.connect();
        for (seed, len) in
            [0, 1, 7, 4096, 16376, 16384, 65535, 65536, 100_000, 3 << 20].into_iter().enumerate()
        {
            let payload = noise(seed as u64, len);
            request(&mut stream, ECHO, &payload);
            assert_eq!(answer(&mut stream), (ECHO, payload), "{len} bytes");
        }
        assert!(house.watch.straight.load(Ordering::SeqCst) >= 3 << 20, "large payloads skip the copy");
    });
}

#[test]
fn a_stream_of_mixed_messages_keeps_its_place() {
    served(|house| {
        let mut writer = house.connect();
        let mut reader = writer.try_clone().unwrap();
        let sizes: Vec<usize> = {
            let mut random = Random(7);
            let mut size = || {
                let top = 1 << random.below(19);
                random.below(top) as usize
            };
            (0..400).map(|_| size()).collect()
        };
        let expected = sizes.clone();
        let reading = std::thread::spawn(move || {
            for (seed, len) in expected.into_iter().enumerate() {
                assert_eq!(answer(&mut reader), (ECHO, noise(seed as u64, len)), "message {seed}");
            }
        });
        for (seed, len) in sizes.into_iter().enumerate() {
            request(&mut writer, ECHO, &noise(seed as u64, len));
        }
        reading.join().unwrap();
    });
}

#[test]
fn bytes_that_trickle_in_are_put_together() {
    served(|house| {
        let mut stream = house.connect();
        let mut message = Vec::new();
        request(&mut message, ECHO, b"one byte at a time");
        for byte in &message {
            stream.write_all(&[*byte]).unwrap();
        }
        assert_eq!(answer(&mut stream).1, b"one byte at a time");
    });
}

#[test]
fn a_slow_reader_gets_everything_and_holds_nobody_up() {
    served(|house| {
        let mut slow = house.connect();
        let mut writer = slow.try_clone().unwrap();
        let payload = noise(1, 1 << 20);
        let sent = payload.clone();
        let writing = std::thread::spawn(move || (0..16).for_each(|_| request(&mut writer, ECHO, &sent)));
        // Sixteen others, so that some share the slow one's worker.
        for _ in 0..16 {
            let mut other = house.connect();
            echo(&mut other, b"meanwhile");
        }
        assert!(!writing.is_finished(), "more than the sockets hold is on its way");
        for _ in 0..16 {
            assert_eq!(answer(&mut slow).1, payload);
        }
        writing.join().unwrap();
    });
}

#[test]
fn a_disconnect_in_mid_message_ends_the_session() {
    served(|house| {
        for cut in [1, 8, 9, 4000, 70_000, 200_000] {
            let mut stream = house.connect();
            let mut message = Vec::new();
            request(&mut message, ECHO, &noise(3, 300_000));
            stream.write_all(&message[..cut]).unwrap();
        }
        let mut stream = house.connect();
        request(&mut stream, GATED, b"");
        until("the gated request", || house.watch.gated.load(Ordering::SeqCst) == 1);
        drop(stream);
        until("hang-ups", || house.watch.hung_up.load(Ordering::SeqCst) == 7);
        until("ends", || house.watch.alive.load(Ordering::SeqCst) == 0);
    });
}

#[test]
fn a_thousand_reconnects_leak_no_descriptor() {
    served(|house| {
        let once = || {
            let mut stream = house.connect();
            echo(&mut stream, b"hello");
            request(&mut stream, BYE, b"");
            let mut rest = Vec::new();
            assert_eq!(stream.read_to_end(&mut rest).unwrap(), 0);
        };
        once();
        // Descriptors of sockets only: tests that run beside this one come and go.
        let mine = |target: &str| target.starts_with("socket:");
        let count = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap();
            all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
                .filter(|link| mine(&link.to_string_lossy()))
                .count()
        };
        let before = count();
        (0..1000).for_each(|_| once());
        until("sockets to be closed", || count() < before + 500);
        until("sessions to end", || house.watch.alive.load(Ordering::SeqCst) == 0);
    });
}

#[test]
fn stop_waits_for_what_is_in_flight() {
    for driver in BOTH {
        let mut house = House::new(driver, ConnectionLimits::default());
        let mut idle = house.connect();
        let mut busy = house.connect();
        echo(&mut idle, b"hi");
        (0..3).for_each(|_| request(&mut busy, GATED, b""));
        until("the requests", || house.watch.gated.load(Ordering::SeqCst) == 3);
        let serving = house.serving.take().unwrap();
        let stopping = std::thread::spawn(move || block_on(serving.stop()));
        assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0, "an idle connection is closed at once");
        assert!(!stopping.is_finished(), "the busy one is waited for");
        house.watch.open_gate();
        (0..3).for_each(|_| assert_eq!(answer(&mut busy).0, GATED));
        assert_eq!(busy.read(&mut [0; 1]).unwrap(), 0);
        stopping.join().unwrap();
        assert!(!house.path.exists());
        house.workers.stop();
    }
}

#[test]
fn stop_gives_up_on_a_peer_that_does_not_read() {
    for driver in BOTH {
        let limits = ConnectionLimits {
            stop_grace: std::time::Duration::from_millis(100),
            ..ConnectionLimits::default()
        };
        let house = House::new(driver, limits);
        let mut stream = house.connect();
        request(&mut stream, ECHO, &noise(1, 3 << 20));
        until("the payload", || house.watch.straight.load(Ordering::SeqCst) == 3 << 20);
        house.stop();
    }
}

#[test]
fn abort_ends_what_is_in_flight() {
    for driver in BOTH {
        let mut house = House::new(driver, ConnectionLimits::default());
        let mut stream = house.connect();
        request(&mut stream, GATED, b"");
        until("the request", || house.watch.gated.load(Ordering::SeqCst) == 1);
        block_on(house.serving.take().unwrap().abort());
        assert_eq!(house.watch.hung_up.load(Ordering::SeqCst), 1);
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        house.workers.stop();
    }
}

#[test]
fn a_peer_that_goes_while_nothing_is_received_is_noticed() {
    let house = House::new(DriverChoice::IoUring, ConnectionLimits::default());
    let mut stream = house.connect();
    request(&mut stream, GATED, b"");
    request(&mut stream, BYE, b"");
    until("the request", || house.watch.gated.load(Ordering::SeqCst) == 1);
    drop(stream);
    until("the hang-up", || house.watch.hung_up.load(Ordering::SeqCst) == 1);
    house.stop();
}

#[test]
fn what_was_asked_before_the_end_is_answered_after_a_half_close() {
    served(|house| {
        let mut stream = house.connect();
        let payload = noise(4, 2 << 20);
        request(&mut stream, ECHO, &payload);
        request(&mut stream, BYE, b"");
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(answer(&mut stream).1, payload);
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    });
}

#[test]
fn idle_connections_cost_little() {
    served(|house| {
        let (buffers, before) = (Buffers::here(), Buffers::here().bytes_in_use());
        let payload = noise(2, 1 << 20);
        let mut streams: Vec<_> = (0..50).map(|_| house.connect()).collect();
        for stream in &mut streams {
            let (mut writer, sent) = (stream.try_clone().unwrap(), payload.clone());
            let writing = std::thread::spawn(move || request(&mut writer, ECHO, &sent));
            assert_eq!(answer(stream).1.len(), payload.len());
            writing.join().unwrap();
        }
        // Each holds its small receive; what threads keep for reuse comes on top.
        until("buffers to be given back", || buffers.bytes_in_use() < before + 50 * (16 << 10) + (8 << 20));
    });
}

#[test]
fn the_order_of_stopping_does_not_matter() {
    for driver in BOTH {
        let mut house = House::new(driver, ConnectionLimits::default());
        let mut stream = house.connect();
        echo(&mut stream, b"hi");
        house.workers.stop();
        block_on(house.serving.take().unwrap().stop());
        assert_eq!(house.watch.alive.load(Ordering::SeqCst), 0);
        assert!(!house.path.exists());
    }
}

/// The test below runs this one alone in a process of its own.
#[test]
#[ignore = "uses up the descriptors of its process"]
fn descriptors_run_out() {
    served(|house| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is to a live structure of the type that the call fills.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
        limit.rlim_cur = 64;
        // SAFETY: the pointer is to a live structure of the type that the call reads.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let mut kept = Vec::new();
        while let Ok(stream) = UnixStream::connect(&house.path) {
            kept.push(stream);
        }
        let last = kept.pop().unwrap();
        kept.clear();
        let mut stream = last;
        echo(&mut stream, b"still here");
    });
}

#[test]
fn a_shortage_of_descriptors_passes() {
    let this = std::env::current_exe().unwrap();
    let arguments = ["--ignored", "--exact", "sockets::descriptors_run_out"];
    let output = std::process::Command::new(this).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn connections_above_the_limit_are_closed() {
    for driver in BOTH {
        let house =
            House::new(driver, ConnectionLimits { connections_max: 2, ..ConnectionLimits::default() });
        let mut kept: Vec<_> = (0..2).map(|_| house.connect()).collect();
        for stream in &mut kept {
            echo(stream, b"in");
        }
        assert_eq!(house.connect().read(&mut [0; 1]).unwrap_or(0), 0, "the third is closed");
        kept.pop();
        until("room", || {
            let mut stream = house.connect();
            let mut header = [0; 8];
            stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0]).is_ok() && stream.read_exact(&mut header).is_ok()
        });
        house.stop();
    }
}

#[test]
fn connections_of_many_sockets_are_spread_over_the_workers() {
    for driver in BOTH {
        let workers = crate::toy::workers(2, driver);
        let (watch, threads) = (Arc::new(Watch::default()), Arc::new(Mutex::new(Vec::new())));
        let mut kept = Vec::new();
        for _ in 0..6 {
            let (sessions, seen) = (watch.clone(), threads.clone());
            let new_session: NewSession = Arc::new(move || {
                seen.lock().push(std::thread::current().name().unwrap_or_default().to_owned());
                Box::new(Toy::new(&sessions))
            });
            let listener = Listener::tcp("127.0.0.1:0").unwrap();
            let address = listener.tcp_address().unwrap();
            let serving = serve(listener, &workers, new_session, ConnectionLimits::default());
            let mut stream = TcpStream::connect(address).unwrap();
            echo(&mut stream, b"here");
            kept.push((stream, serving));
        }
        let on_first = threads.lock().iter().filter(|thread| *thread == "spillway-0").count();
        assert_eq!(on_first, 3, "each has half of them");
        drop(kept);
        workers.stop();
    }
}

#[test]
fn tcp_serves_as_well() {
    for driver in BOTH {
        let workers = workers(1, driver);
        let watch = Arc::new(Watch::default());
        let listener = Listener::tcp("127.0.0.1:0").unwrap();
        let address = listener.tcp_address().unwrap();
        let serving = serve(listener, &workers, sessions(&watch), ConnectionLimits::default());
        let mut stream = TcpStream::connect(address).unwrap();
        let payload = noise(9, 1 << 20);
        request(&mut stream, ECHO, &payload);
        assert_eq!(answer(&mut stream).1, payload);
        request(&mut stream, ECHO, b"last words");
        request(&mut stream, BYE, b"");
        stream.write_all(&[0; 5000]).unwrap();
        assert_eq!(answer(&mut stream).1, b"last words", "unread bytes do not reset the connection");
        block_on(serving.stop());
        workers.stop();
    }
}
