//! A Ceph cluster that is silent, beside what does not need it.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use spillway_tests::raw::{Client, Status, command};
use spillway_tests::{Cluster, Launch, Scratch, Store, until};

use crate::rbd::{MIB, address};

fn device(name: &str, of: &str) -> String {
    format!("[[device]]\nname = \"{name}\"\norigin = {{ kind = \"file\", {of} }}\n")
}

/// A device for each name, over a new image of that name.
fn devices(cluster: &Cluster, names: &[String]) -> String {
    let conf = cluster.conf();
    let images = names.iter().map(|name| {
        let path = address(&cluster.image(name, 4));
        device(name, &format!("path = {path:?}, ceph_conf = {conf:?}"))
    });
    images.collect()
}

/// More images than there are threads for calls that block, each with such a call that no OSD answers.
#[test]
fn a_cluster_that_is_silent_costs_other_devices_nothing() {
    let cluster = Cluster::start(1, Store::Memory);
    let folder = Arc::new(Scratch::new());
    let apart = folder.write("apart.raw", vec![0; MIB]);
    let names: Vec<String> = (0..9).map(|number| format!("d{number}")).collect();
    let text = devices(&cluster, &names) + &device("apart", &format!("path = {apart:?}"));
    let server = Launch::serve(folder, text).start();
    let clients = names.iter().map(|name| Client::open(server.socket(), name));
    let mut clients: Vec<Client> = clients.collect();
    cluster.stop_osds();
    for client in &mut clients {
        client.send(command::WRITE, 0, 4096).expect("it is sent");
        client.stream.write_all(&[1; 4096]).expect("it is sent");
    }
    let waits = |name: &String| server.value(name, "connection") == "reconnecting";
    until("all of them wait", || names.iter().all(waits).then_some(()));
    let mut asking = Status::open(server.socket(), "apart");
    asking.send(0, command::BLOCK_STATUS, 0, 4096).expect("it is sent");
    assert!(asking.answered().expect("an answer"), "{}", server.log());
    cluster.go_on_osds();
    clients.iter_mut().for_each(|client| assert_eq!(client.reply().expect("an answer").0, 0));
}

/// Requests to a device at once.
const REQUESTS: usize = 64;

/// Threads that an image adds at most: librbd has some 16, and there are 3 for calls that block.
const THREADS: usize = 40;

/// Requests that no OSD answers are under way to each device.
#[test]
fn an_image_adds_few_threads_however_many_requests_wait() {
    let cluster = Cluster::start(1, Store::Memory);
    let servers = [&["a"][..], &["b", "c", "d"]].map(|names| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let server = Launch::serve(Arc::default(), devices(&cluster, &names)).start();
        let clients = names.iter().map(|name| Client::open(server.socket(), name));
        let mut clients: Vec<Client> = clients.collect();
        // What no object has is read without the cluster.
        clients.iter_mut().for_each(|client| client.write(0, &[1; REQUESTS * 4096]).expect("a write"));
        (server, names, clients)
    });
    cluster.stop_osds();
    let [one, three] = servers.map(|(server, names, mut clients)| {
        let reads = || (0..REQUESTS).map(|number| (command::READ, number as u64 * 4096, 4096));
        clients.iter_mut().for_each(|client| client.send_all(reads()).expect("they are sent"));
        let waits = |name: &String| server.value(name, "connection") == "reconnecting";
        until("all of them wait", || names.iter().all(waits).then_some(()));
        assert!(clients.iter().all(|client| !client.is_answered()), "{}", server.log());
        fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs").count()
    });
    assert!(three <= one + 2 * THREADS, "{one} threads with one image, {three} with three");
}
