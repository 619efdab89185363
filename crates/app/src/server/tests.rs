//! The server's own thread, and control clients, while a background thread does not come back from a task.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use clap::Parser;
use spillway_core::{Answer, task};
use spillway_export::control::message::decode_reply;
use spillway_export::control::{ControlReply, DeviceChanges, Operation};

use super::*;
use crate::cli::{Cli, Command};
use crate::scratch::Scratch;

/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn plan() -> ServerPlan {
    let line = "spillway ram --size 1M --name a --streams 1 --memory 256M --workers 1";
    let Command::Ram(options) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
        panic!("another command")
    };
    ServerPlan::ram(options).unwrap()
}

/// What a control client is answered.
fn ask(folder: &RuntimeFolder, operation: &Operation) -> Result<ControlReply, Error> {
    let mut stream = UnixStream::connect(folder.control_socket("a")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(operation.encode().as_bytes()).unwrap();
    let mut line = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut line).expect("an answer comes");
    decode_reply(&line)
}

/// Has all background threads wait until the sender is dropped.
fn block_background(workers: &Workers) -> Sender<()> {
    let (release, released) = mpsc::channel();
    let (blocked, is_blocked) = mpsc::channel();
    let long = move || async move {
        blocked.send(()).unwrap();
        assert!(released.recv().is_err(), "nothing is sent");
    };
    workers.env().spawn(Place::Background, task(long));
    is_blocked.recv().unwrap();
    release
}

/// A server in a folder of its own, and what asks its thread.
fn server(scratch: &Scratch) -> (Server, Sender<Event>, RuntimeFolder) {
    let folder = RuntimeFolder::at(&scratch.path().join("run"));
    let (to_self, events) = mpsc::channel();
    (Server::start(plan(), &folder, Arc::default(), to_self.clone(), events).unwrap(), to_self, folder)
}

#[test]
fn changes_and_control_clients_wait_for_no_background_work() {
    let scratch = Scratch::new("server");
    let (server, _, folder) = server(&scratch);
    let release = block_background(&server.workers);
    let client = std::thread::spawn(move || {
        let (device, attribute) = (|| "a".to_owned(), || "max_comp_streams".to_owned());
        let set = Operation::Set { device: device(), attribute: attribute(), value: 3.into() };
        assert_eq!(ask(&folder, &set), Ok(ControlReply::Done), "an attribute is set where it is asked for");
        let held = ask(&folder, &Operation::Hold { device: device(), opener: None });
        assert_eq!(held.map_err(|error| error.kind), Err(Kind::Busy), "it has no client");
        let get = Operation::Get { device: device(), attribute: Some(attribute()), from: None };
        for question in [Operation::List {}, get] {
            ask(&folder, &question).expect("a worker answers");
        }
        drop(release);
        assert_eq!(ask(&folder, &Operation::StopServer {}), Ok(ControlReply::Done));
    });
    server.run().unwrap();
    client.join().unwrap();
}

/// A stop of device `a`, and one of its server, that were asked for and have to wait.
fn stops(devices: &Devices) -> [Answer<Result<(), Error>>; 2] {
    [Operation::Stop { device: "a".into() }, Operation::StopServer {}].map(|stop| {
        let mut stop = devices.change(stop);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut stop).poll(&mut context).is_pending(), "it is not stopped yet");
        stop
    })
}

/// The first waits for the end of the device, and so does who asks meanwhile: before the server's thread begins it, and later.
#[test]
fn a_second_stop_of_a_device_waits_for_the_same_end() {
    let scratch = Scratch::new("stop-twice");
    let (server, to_self, _folder) = server(&scratch);
    let (first, reply) = Job::new();
    to_self.send(Event::StopDevice("a".into(), reply)).unwrap();
    // The thread that would end it.
    let release = block_background(&server.workers);
    let devices = server.devices.clone();
    let second = stops(&devices);
    let client = std::thread::spawn(move || {
        while devices.find("a").is_ok() {
            std::thread::yield_now();
        }
        let third = stops(&devices);
        drop(release);
        third.map(block_on)
    });
    server.run().unwrap();
    assert_eq!((client.join().unwrap(), second.map(block_on)), ([Ok(()), Ok(())], [Ok(()), Ok(())]));
    assert_eq!(block_on(first), Some(Ok(())));
}

/// A signal has asked for that. The first questions lie behind it, the others come once nobody takes any.
#[test]
fn a_stop_while_the_server_stops_waits_for_the_same_ends() {
    let scratch = Scratch::new("stop-while-stopping");
    let (server, to_self, _folder) = server(&scratch);
    // The thread that would end the device.
    let release = block_background(&server.workers);
    let devices = server.devices.clone();
    to_self.send(Event::Signal(rustix::process::Signal::TERM.as_raw())).unwrap();
    let behind = stops(&devices);
    let client = std::thread::spawn(move || {
        while to_self.send(Event::ReadAgain).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let later = stops(&devices);
        drop(release);
        later.map(block_on)
    });
    server.run().unwrap();
    assert_eq!((client.join().unwrap(), behind.map(block_on)), ([Ok(()), Ok(())], [Ok(()), Ok(())]));
}

/// Its connection would be waited for, and it for an answer.
#[test]
fn a_client_that_asks_behind_a_stop_is_told_that_the_server_stops() {
    let scratch = Scratch::new("behind-a-stop");
    let (server, to_self, folder) = server(&scratch);
    let hold = Operation::Hold { device: "a".into(), opener: None };
    let client = std::thread::spawn(move || ask(&folder, &hold));
    let asked = server.events.recv().unwrap();
    let (stopped, reply) = Job::new();
    [Event::Stop(reply), asked].into_iter().for_each(|event| to_self.send(event).unwrap());
    server.run().unwrap();
    assert_eq!(block_on(stopped), Some(Ok(())));
    assert_eq!(client.join().unwrap().map_err(|error| error.kind), Err(Kind::ShuttingDown));
}
