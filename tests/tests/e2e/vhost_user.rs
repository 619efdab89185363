//! Devices through vhost-user, by a front end that we did not write, beside clients of NBD.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use spillway_front_end::{FrontEnd, Request, Without};
use spillway_tests::raw::Client;
use spillway_tests::{Launch, PATIENCE, Scratch, Server, pattern, until};

/// Exit code as documented.
const BUSY: i32 = 4;

/// Bytes that a front end shares, in rooms of one request each.
const MEMORY: usize = 4 << 20;
const ROOM: usize = 128 << 10;
const ROOMS: usize = MEMORY / ROOM;

const SIZE: u64 = 16 << 20;

fn socket(launch: &Launch) -> PathBuf {
    launch.folder().join("guest.sock")
}

fn with_guest(launch: Launch) -> Launch {
    let path = socket(&launch);
    launch.with("--vhost-user", path)
}

fn ram() -> Server {
    with_guest(Launch::ram("16M")).start()
}

fn connect(server: &Server, queues: usize, without: Without) -> FrontEnd {
    let path = server.folder().join("guest.sock");
    FrontEnd::connect(&path, queues, 128, MEMORY, without).expect("the device is served")
}

/// Draws numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What a queue does to its part of a device, and what that part holds.
struct Model {
    start: u64,
    bytes: Vec<u8>,
    draw: Draw,
}

impl Model {
    /// The next request, in a room of its own; the model does it at once: requests of a round do not overlap.
    fn next(&mut self, memory: &mut [u8], room: usize, slot: usize, slots: usize) -> (Request, Vec<u8>) {
        let part = self.bytes.len() / slots;
        let at = slot * part + 512 * self.draw.below((part / 512) as u64 / 2) as usize;
        let len = 512 * (1 + self.draw.below(((slot + 1) * part - at).min(ROOM) as u64 / 512)) as usize;
        let (range, place) = (room * ROOM..room * ROOM + len, self.start + at as u64);
        let bytes = &mut self.bytes[at..at + len];
        match self.draw.below(6) {
            0..=2 => {
                bytes.copy_from_slice(&pattern::half_random(self.draw.0, 0, len));
                memory[range.clone()].copy_from_slice(bytes);
                (Request::Write(place, range), Vec::new())
            }
            3 | 4 => {
                memory[range.clone()].fill(0xee);
                (Request::Read(place, range), bytes.to_vec())
            }
            _ => {
                bytes.fill(0);
                (Request::WriteZeroes(place, len as u64, self.draw.below(2) == 0), Vec::new())
            }
        }
    }
}

/// Rounds of requests on all queues at once, each verified against a model; at the end a flush, and what the device has to hold.
fn exercise(front: &mut FrontEnd, queues: usize, rounds: u64, seed: u64) -> Vec<u8> {
    let size = front.size().expect("a configuration") as usize;
    assert_eq!(size as u64, SIZE);
    let part = size / queues;
    let mut models: Vec<_> = (0..queues)
        .map(|queue| Model {
            start: (queue * part) as u64,
            bytes: vec![0; part],
            draw: Draw(seed + queue as u64),
        })
        .collect();
    let rooms = ROOMS / queues;
    for _ in 0..rounds {
        let mut wanted = vec![(0..0, Vec::new()); ROOMS];
        for (queue, model) in models.iter_mut().enumerate() {
            for slot in 0..rooms {
                let room = queue * rooms + slot;
                let (request, bytes) = model.next(front.memory(), room, slot, rooms);
                if let Request::Read(_, range) = &request {
                    wanted[room] = (range.clone(), bytes);
                }
                front.submit(queue, request, room).expect("an entry");
            }
        }
        for queue in 0..queues {
            let mut left = rooms;
            while left > 0 {
                for (room, outcome) in front.wait(queue, PATIENCE).expect("an interrupt for each answer") {
                    assert_eq!(outcome, 0, "request {room} of queue {queue}");
                    let (range, bytes) = &wanted[room];
                    assert!(front.memory()[range.clone()] == bytes[..], "room {room} holds something else");
                    left -= 1;
                }
            }
        }
    }
    assert_eq!(front.ask(0, Request::Flush, PATIENCE).expect("an answer"), 0);
    models.into_iter().flat_map(|model| model.bytes).collect()
}

fn agrees_with_a_model(launch: Launch, without: Without) {
    let server = with_guest(launch).start();
    let mut front = connect(&server, 2, without);
    let held = exercise(&mut front, 2, 20, 1);
    assert!(server.content() == held, "NBD reads something else");
}

#[test]
fn a_ram_disk_agrees_with_a_model() {
    agrees_with_a_model(Launch::ram("16M"), Without::default());
}

#[test]
fn a_ring_without_event_indices_and_the_other_driver_do_too() {
    agrees_with_a_model(Launch::ram("16M"), Without { event_index: true });
    agrees_with_a_model(Launch::ram("16M").with("--driver", "poll"), Without::default());
}

#[test]
fn a_disk_and_its_origin_agree_with_a_model() {
    let (launch, origin) = Launch::disk_with(vec![0; SIZE as usize]);
    let mut server = with_guest(launch).start();
    let mut front = connect(&server, 2, Without::default());
    let held = exercise(&mut front, 2, 20, 2);
    drop(front);
    server.signal(Signal::TERM);
    assert!(server.ends().success());
    assert!(fs::read(origin).unwrap() == held);
}

#[test]
fn a_write_cache_agrees_with_a_model() {
    let folder = Arc::new(Scratch::new());
    let (origin, cache) = (folder.join("origin"), folder.join("cache"));
    for (path, len) in [(&origin, SIZE), (&cache, 32 << 20)] {
        fs::File::create(path).unwrap().set_len(len).unwrap();
    }
    agrees_with_a_model(Launch::cache(folder, &origin, &cache), Without::default());
}

#[test]
fn the_socket_is_the_owner_s_and_takes_one_front_end_after_the_other() {
    let server = ram();
    let path = server.folder().join("guest.sock");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut first = connect(&server, 1, Without::default());
    let second = thread::spawn(move || {
        let mut front = FrontEnd::connect(&path, 1, 128, MEMORY, Without::default()).unwrap();
        front.ask(0, Request::Read(0, 0..512), PATIENCE).unwrap()
    });
    first.memory()[..512].fill(9);
    for _ in 0..100 {
        assert_eq!(first.ask(0, Request::Write(0, 0..512), PATIENCE).unwrap(), 0);
    }
    assert!(!second.is_finished(), "it waits for the first to leave");
    drop(first);
    assert_eq!(second.join().unwrap(), 0);
}

#[test]
fn a_guest_counts_as_a_client() {
    let server = ram();
    let front = connect(&server, 1, Without::default());
    let named = format!("(pid {})", std::process::id());
    server.spillway(&["reset", "ram0"]).refused(BUSY, &named);
    let listed = server.spillway(&["ls", "--json"]).well().out;
    assert!(listed.contains("vhost-user:") && listed.contains("\"clients\": 1"), "{listed}");
    drop(front);
    until("it has left", || (server.spillway(&["reset", "ram0"]).code == Some(0)).then_some(()));
}

#[test]
fn a_server_that_stops_answers_what_it_has_taken() {
    let (launch, origin) = Launch::disk_with(vec![0; SIZE as usize]);
    let mut server = with_guest(launch).start();
    let mut front = connect(&server, 1, Without::default());
    front.memory().fill(7);
    for room in 0..ROOMS {
        front.submit(0, Request::Write((room * ROOM) as u64, room * ROOM..(room + 1) * ROOM), room).unwrap();
    }
    server.signal(Signal::TERM);
    assert!(server.ends().success());
    let content = fs::read(origin).unwrap();
    let answers = front.answers(0);
    assert!(answers.iter().all(|(_, outcome)| *outcome == 0), "{answers:?}");
    for (room, _) in answers {
        assert!(content[room * ROOM..(room + 1) * ROOM] == [7; ROOM], "write {room} was acknowledged");
    }
}

/// The front end's file is cut off while requests are under way: its queue stops, and everybody else goes on.
#[test]
fn memory_that_is_taken_away_costs_its_queue_alone() {
    let mut server = ram();
    let mut client = server.client();
    client.write(0, &[3; 4096]).unwrap();
    let mut front = connect(&server, 2, Without::default());
    for room in 0..ROOMS {
        let (at, range) = ((room * ROOM) as u64, room * ROOM..(room + 1) * ROOM);
        front.submit(room % 2, Request::Read(at, range), room).unwrap();
    }
    front.cut_off().unwrap();
    for room in 0..8 {
        let _ = front.submit(room % 2, Request::Read(0, 0..512), ROOMS + room);
    }
    server.says("memory that was shared is gone");
    assert_eq!(client.read(0, 4096), Ok(vec![3; 4096]));
    drop(front);
    let mut again = connect(&server, 1, Without::default());
    assert_eq!(again.ask(0, Request::Read(0, 0..4096), PATIENCE).unwrap(), 0);
    assert!(again.memory()[..4096] == [3; 4096]);
    assert!(server.lives());
}

/// The log has a line about the first of many, and one after another has left in order.
#[test]
fn a_front_end_that_breaks_the_rules_again_and_again_does_not_fill_the_log() {
    let server = ram();
    let break_rules = || {
        let mut wire = UnixStream::connect(server.folder().join("guest.sock")).unwrap();
        wire.write_all(&[0xff; 12]).unwrap();
        assert_eq!(wire.read(&mut [0; 1]).unwrap(), 0, "it is disconnected");
    };
    let said = || server.log().matches("the front end is disconnected").count();
    (0..20).for_each(|_| break_rules());
    until("the log has it", || (said() > 0).then_some(()));
    drop(connect(&server, 1, Without::default()));
    break_rules();
    until("the log has the next one too", || (said() > 1).then_some(()));
    assert_eq!(said(), 2, "{}", server.log());
}

#[test]
fn a_read_only_device_says_so_and_refuses_writes() {
    let server = with_guest(Launch::ram("16M").flag("--read-only")).start();
    let mut front = connect(&server, 1, Without::default());
    assert!(front.is_read_only());
    assert!(front.ask(0, Request::Write(0, 0..512), PATIENCE).unwrap() < 0);
    assert_eq!(front.ask(0, Request::Read(0, 0..512), PATIENCE).unwrap(), 0);
}

#[test]
fn a_device_of_a_file_is_served_too() {
    let folder = Arc::new(Scratch::new());
    let path = folder.join("guest.sock");
    let text = format!(
        "[[device]]\nname = \"a\"\norigin = {{ kind = \"zram\", disksize = \"16M\" }}\nvhost_user = \"{}\"\n\
         [[device]]\nname = \"b\"\norigin = {{ kind = \"zram\", disksize = \"16M\" }}\n",
        path.display()
    );
    let server = Launch::serve(folder, text).start();
    let mut front = connect(&server, 1, Without::default());
    assert_eq!(front.ask(0, Request::Read(0, 0..512), PATIENCE).unwrap(), 0);
    // It is stopped alone, and the other one goes on.
    server.spillway(&["stop", "a"]).well();
    assert!(!Path::new(&path).exists());
    server.spillway(&["get", "b", "disksize"]).well();
}

#[test]
fn a_socket_that_is_taken_is_refused_and_so_is_a_switch_without_one() {
    let server = ram();
    let taken = server.folder().join("guest.sock");
    Launch::ram("16M").with("--vhost-user", &taken).run().refused(BUSY, "already answers");
    let alone = Launch::ram("16M").flag("--vhost-user-accept-empty").run();
    assert!(alone.code != Some(0) && alone.err.contains("--vhost-user"), "{alone}");
}

/// Nanoseconds that each worker has had a processor for.
fn processor_times(server: &Server) -> BTreeMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the server is running");
    let time = |thread: fs::DirEntry| {
        let read = |file: &str| fs::read_to_string(thread.path().join(file)).ok();
        let (name, times) = (read("comm")?, read("schedstat")?);
        let time =
            times.split(' ').next().expect("a line has words").parse().expect("the kernel writes a number");
        Some((name.trim().to_owned(), time))
    };
    let is_worker = |(name, _): &(String, u64)| ["spillway-0", "spillway-1"].contains(&name.as_str());
    threads.flatten().filter_map(time).filter(is_worker).collect()
}

/// Which worker does `work`: the one that takes the most time of the processor meanwhile. Wakes tell nothing on a busy machine: a worker that
/// always finds the next request never sleeps.
fn busiest(server: &Server, work: impl FnOnce()) -> String {
    let before = processor_times(server);
    work();
    let spent = processor_times(server).into_iter().map(|(name, time)| (time - before[&name], name));
    spent.max().expect("it has workers").1
}

/// A guest of one queue, and another one or a client of NBD, do not share a worker while another has nothing to do.
fn share_no_worker(with_another_guest: bool) {
    let folder = Arc::new(Scratch::new());
    let device = |name: &str| {
        let path = folder.join(&format!("{name}.sock"));
        let place = path.display();
        let text = format!(
            "[[device]]\nname = \"{name}\"\norigin = {{ kind = \"zram\", disksize = \"16M\" }}\nvhost_user = \"{place}\"\n"
        );
        (path, text)
    };
    let [(first, a), (second, b)] = ["a", "b"].map(device);
    let launch = Launch::serve(folder, a + &b).with("--workers", "2").with("--poll-us", "0");
    let server = launch.start();
    let guest = |path: &Path| {
        FrontEnd::connect(path, 1, 128, MEMORY, Without::default()).expect("the device is served")
    };
    let read = |guest: &mut FrontEnd| {
        for _ in 0..500 {
            assert_eq!(guest.ask(0, Request::Read(0, 0..512), PATIENCE).expect("it is answered"), 0);
        }
    };
    let mut one = guest(&first);
    let of_one = busiest(&server, || read(&mut one));
    let of_other = if with_another_guest {
        let mut other = guest(&second);
        busiest(&server, || read(&mut other))
    } else {
        let mut client = Client::open(server.socket(), "b");
        busiest(&server, || {
            (0..500).for_each(|_| assert_eq!(client.read(0, 512), Ok(vec![0; 512])));
        })
    };
    assert_ne!(of_one, of_other);
}

#[test]
fn queues_of_two_devices_have_a_worker_each() {
    share_no_worker(true);
}

#[test]
fn a_queue_and_a_client_have_a_worker_each() {
    share_no_worker(false);
}

/// None of the requests is lost that come about when a worker goes to sleep, on either driver.
#[test]
fn requests_are_found_whether_a_worker_looks_or_sleeps() {
    for driver in ["io_uring", "poll"] {
        let launch = Launch::ram("16M").with("--poll-us", "200").with("--driver", driver);
        let server = with_guest(launch).start();
        let mut front = connect(&server, 2, Without::default());
        let mut draw = Draw(7);
        for round in 0..3000u64 {
            // Long enough for a worker to go to sleep, at times, and mostly about as long as it looks.
            let pause = [0, 0, 0, draw.below(50), draw.below(400), 2000][draw.below(6) as usize];
            thread::sleep(Duration::from_micros(pause));
            let answer = front.ask((round % 2) as usize, Request::Read(0, 0..512), PATIENCE);
            assert_eq!(answer.unwrap_or_else(|why| panic!("request {round} with {driver}: {why}")), 0);
        }
    }
}
