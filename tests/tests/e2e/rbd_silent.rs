//! A Ceph cluster that is silent, beside what does not need it.

use std::io::Write;
use std::sync::Arc;

use spillway_tests::raw::{Client, Status, command};
use spillway_tests::{Cluster, Launch, Scratch, Store, until};

use crate::rbd::{MIB, address};

/// More images than there are threads for calls that block, each with such a call that no OSD answers.
#[test]
fn a_cluster_that_is_silent_costs_other_devices_nothing() {
    let cluster = Cluster::start(1, Store::Memory);
    let (folder, conf) = (Arc::new(Scratch::new()), cluster.conf());
    let apart = folder.write("apart.raw", vec![0; MIB]);
    let names: Vec<String> = (0..9).map(|number| format!("d{number}")).collect();
    let device = |name: &str, of: &str| {
        format!("[[device]]\nname = \"{name}\"\norigin = {{ kind = \"file\", {of} }}\n")
    };
    let images = names.iter().map(|name| {
        let path = address(&cluster.image(name, 4));
        device(name, &format!("path = {path:?}, ceph_conf = {conf:?}"))
    });
    let text = images.collect::<String>() + &device("apart", &format!("path = {apart:?}"));
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
