//! Hosts that take places, and hosts that are gone.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use spillway_tests::raw::{Client, command, header};
use spillway_tests::tool::run;
use spillway_tests::{Launch, PATIENCE, Scratch, Server, pattern, script_of_root, text, until};

const BLOCK: usize = 4096;

/// Connections at `--memory 32M`.
const PLACES: usize = 32;

/// A RAM disk on a free port of `host`, and where it listens.
fn listening(host: &str) -> (Server, SocketAddr) {
    listening_with(host, &[])
}

fn listening_with(host: &str, more: &[(&str, &str)]) -> (Server, SocketAddr) {
    let host: IpAddr = host.parse().expect("an address");
    let folder = Arc::new(Scratch::new());
    let control = folder.join("spillway/ram0.ctl");
    let launch = Launch::new(&["ram", "--size", "64M", "--memory", "32M"], folder, control);
    let launch = launch.with("--listen", SocketAddr::new(host, 0).to_string()).flag("--insecure");
    let server = more.iter().fold(launch, |launch, (option, value)| launch.with(option, value)).start();
    let log = server.log();
    let (_, rest) = log.split_once("nbd://").expect("the start text has the address");
    let port =
        rest.split_once('/').and_then(|(address, _)| address.rsplit_once(':')).expect("it has a port").1;
    (server, SocketAddr::new(host, port.parse().expect("a number")))
}

/// A client of the default export that comes from `host`.
struct Guest(TcpStream);

impl Guest {
    fn enter(host: &str, server: SocketAddr) -> io::Result<Self> {
        let host: IpAddr = host.parse().expect("an address");
        let family = if host.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let fd: OwnedFd = socket(family, SocketType::STREAM, None)?;
        bind(&fd, &SocketAddr::new(host, 0))?;
        connect(&fd, &server)?;
        let mut stream = TcpStream::from(fd);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read_exact(&mut [0; 18])?;
        let words = [&[0, 0, 0, 3], &b"IHAVEOPT"[..], &[0, 0, 0, 1, 0, 0, 0, 0]].concat();
        stream.write_all(&words)?;
        stream.read_exact(&mut [0; 10])?;
        Ok(Self(stream))
    }

    fn reads(&mut self) -> io::Result<()> {
        self.0.write_all(&header(command::READ, 1, 0, BLOCK as u32))?;
        self.0.read_exact(&mut [0; 16 + BLOCK])
    }
}

fn guests(host: &str, server: SocketAddr) -> Vec<Guest> {
    (0..PLACES).filter_map(|_| Guest::enter(host, server).ok()).collect()
}

#[test]
fn only_hosts_of_allowed_networks_get_in_and_others_are_counted() {
    let allow = [("--allow", "127.0.0.2/31, 127.0.1.0/24,::1"), ("--http", "127.0.0.1:0")];
    let (server, address) = listening_with("0.0.0.0", &allow);
    let at = |host: &str| SocketAddr::new(host.parse().expect("an address"), address.port());
    for host in ["127.0.0.2", "127.0.0.3", "127.0.1.255"] {
        let mut guest = Guest::enter(host, at("127.0.0.1")).unwrap_or_else(|why| panic!("{host}: {why}"));
        guest.reads().expect("a read");
    }
    for host in ["127.0.0.1", "127.0.0.4", "127.0.2.0"] {
        assert!(Guest::enter(host, at("127.0.0.1")).is_err(), "{host} got in");
    }
    let log = server.log();
    let http = log.lines().find_map(|line| line.trim().strip_prefix("http: ")).expect("it says where");
    let asked =
        |interface: &str| run("curl", &["--silent", "--interface", interface, &format!("{http}metrics")]);
    assert_ne!(asked("127.0.0.1").code, Some(0), "the port of http is closed to them too");
    let metrics = asked("127.0.0.2").well().out;
    assert!(metrics.contains("spillway_server_hosts_refused_total 4\n"), "{metrics}");
}

#[test]
fn networks_are_for_ports_and_are_checked() {
    let refused = |more: &[(&str, &str)]| {
        let launch =
            more.iter().fold(Launch::ram("16M"), |launch, (option, value)| launch.with(option, value));
        let said = launch.run();
        assert_eq!(said.code, Some(2), "{said}");
        said.err
    };
    assert!(refused(&[("--allow", "127.0.0.1")]).contains("allow is for ports"));
    assert!(refused(&[("--allow", "127.0.0.1/8")]).contains("bits behind the first 8"));
}

#[test]
fn a_host_with_idle_connections_keeps_no_other_host_out() {
    let (server, address) = listening("127.0.0.1");
    let mut greedy = guests("127.0.0.1", address);
    assert_eq!(greedy.len(), PLACES / 2, "the rest is for others");
    server.says("host 127.0.0.1: 16 connections are open");
    let mut second = guests("127.0.0.2", address);
    assert_eq!(second.len(), PLACES / 4);
    let mut third = Guest::enter("127.0.0.3", address).expect("there is a place for it");
    let all = greedy.iter_mut().chain(&mut second).chain([&mut third]);
    all.for_each(|guest| guest.reads().expect("nobody was closed for another"));
    drop((second, third, greedy.pop()));
    let again = || Guest::enter("127.0.0.1", address).ok();
    until("who leaves may come again", again).reads().expect("it is served");
}

#[test]
fn a_host_that_comes_by_ipv4_and_by_ipv6_has_one_share_of_each() {
    let (_server, address) = listening("::");
    let mapped = SocketAddr::new("127.0.0.1".parse().expect("an address"), address.port());
    let first = guests("127.0.0.1", mapped);
    let second = guests("127.0.0.2", mapped);
    assert_eq!((first.len(), second.len()), (PLACES / 2, PLACES / 4), "IPv4 hosts are told apart");
    let own = SocketAddr::new("::1".parse().expect("an address"), address.port());
    assert_eq!(guests("::1", own).len(), PLACES / 8);
}

#[test]
fn the_owner_of_a_unix_socket_takes_all_places() {
    let server = Launch::ram("64M").with("--memory", "32M").start();
    let mut all: Vec<Client> = (0..PLACES).map(|_| server.client()).collect();
    assert!(all.iter_mut().all(|client| client.read(0, BLOCK) == Ok(vec![0; BLOCK])));
}

/// A number of the server's own, as a scrape shows it.
fn metric(http: &str, name: &str) -> Option<u64> {
    let metrics =
        run("curl", &["--silent", "--interface", "127.0.0.9", &format!("{http}metrics")]).well().out;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("spillway_server_{name} ")));
    line.map(|number| number.parse().expect("a number"))
}

#[test]
fn a_host_has_no_more_connections_than_its_limit_and_keeps_nobody_out() {
    let (server, address) = listening_with("127.0.0.1", &[("--peer-connections-max", "3")]);
    let mut first = guests("127.0.0.1", address);
    let mut second = guests("127.0.0.2", address);
    assert_eq!((first.len(), second.len()), (3, 3));
    server.says("host 127.0.0.1: 3 connections are open, the limit for each peer");
    first.iter_mut().chain(&mut second).for_each(|guest| guest.reads().expect("nobody was closed"));
    drop(first.pop());
    let again = until("who leaves may come again", || Guest::enter("127.0.0.1", address).ok());
    assert!(Guest::enter("127.0.0.1", address).is_err());
    drop((first, again));
    let uri = format!("nbd://{address}/ram0");
    let looks = || Some(run("nbdinfo", &[&uri])).filter(|said| said.code == Some(0));
    until("a real client finds a place", looks);
}

#[test]
fn limits_of_peers_are_metrics_without_a_name_of_any() {
    let http = [("--http", "127.0.0.1:0"), ("--peer-connections-max", "5")];
    let (server, address) = listening_with("127.0.0.1", &http);
    let log = server.log();
    let http = log.lines().find_map(|line| line.trim().strip_prefix("http: ")).expect("it says where");
    assert_eq!(metric(http, "peer_connections"), Some(0), "HTTP is not counted");
    let first = guests("127.0.0.1", address);
    let mut second = guests("127.0.0.2", address);
    assert_eq!((first.len(), second.len()), (5, 5));
    assert_eq!(metric(http, "peer_connections_max"), Some(5));
    assert_eq!(metric(http, "peer_connections"), Some(5));
    assert_eq!(metric(http, "peer_connections_refused_total"), Some(2 * (PLACES as u64 - 5)));
    second.truncate(2);
    drop(first);
    until("another has most", || metric(http, "peer_connections").filter(|&most| most == 2));
    let (server, _) = listening_with("127.0.0.1", &[("--http", "127.0.0.1:0")]);
    let log = server.log();
    let http = log.lines().find_map(|line| line.trim().strip_prefix("http: ")).expect("it says where");
    assert_eq!(metric(http, "peer_connections_max"), None, "there is no limit");
}

/// Each has a socket of its own, and a user one limit at both.
#[test]
fn a_limit_holds_for_all_sockets_of_a_server_together() {
    let folder = Arc::new(Scratch::new());
    let origin = "origin = { kind = \"zram\", disksize = \"1M\" }";
    let config = folder.write(
        "c.toml",
        format!("peer_connections_max = 2\n[[device]]\nname = \"a\"\n{origin}\n[[device]]\nname = \"b\"\n{origin}\n"),
    );
    let [a, b] = ["a", "b"].map(|name| folder.join(&format!("spillway/{name}.sock")));
    let server = Launch::new(&["serve", text(&config)], folder, a.clone()).start();
    // The look whether it has started was a connection too.
    let first = until("there is room", || Client::try_open(&a, "a").ok());
    let mut second = until("there is room", || Client::try_open(&b, "b").ok());
    for (socket, name) in [(&a, "a"), (&b, "b")] {
        assert!(Client::try_open(socket, name).is_err(), "a third one at {name}");
    }
    server.says("connections are open, the limit for each peer");
    drop(first);
    until("a place comes back", || Client::try_open(&a, "a").ok());
    second.write(0, &[1; 512]).expect("a write");
    server.spillway(&["ls"]).well();
    Launch::ram("1M").with("--peer-connections-max", "0").run().refused(2, "1 to 2048");
}

/// As root: another user connects.
#[test]
fn a_user_at_its_limit_keeps_no_other_user_out() {
    let script = r#"
        set -eu
        mount --bind "$1" /tmp
        folder=/tmp spillway=/tmp/program
        trap 'cat "$folder"/*.log >&2; kill $server || true' EXIT
        mkdir --mode 755 "$folder/place"
        mkfifo "$folder/hold"
        "$spillway" ram --size 16M --memory 32M --socket "$folder/place/s" --socket-mode 0666 --peer-connections-max 4 > "$folder/server.log" 2>&1 & server=$!
        until test -S "$folder/place/s"; do kill -0 $server; sleep 0.05; done
        setpriv --reuid=1234 --regid=1234 --clear-groups /usr/bin/python3 -c '
import socket, sys
def enter():
    client = socket.socket(socket.AF_UNIX)
    client.connect("/tmp/place/s")
    return client, client.recv(18, socket.MSG_WAITALL)
def is_in(greeting): return greeting[:8] == b"NBDMAGIC"
def export(client):
    client.sendall(bytes((0, 0, 0, 3)) + b"IHAVEOPT" + bytes((0, 0, 0, 1, 0, 0, 0, 0)))
    assert len(client.recv(10, socket.MSG_WAITALL)) == 10
clients = [enter() for _ in range(40)]
held = [client for client, greeting in clients if is_in(greeting)]
assert len(held) == 4, len(held)
for client in held: export(client)
print("here", flush=True)
sys.stdin.read()
' < "$folder/hold" > "$folder/said" & clients=$!
        exec 3> "$folder/hold"
        until grep -q here "$folder/said"; do kill -0 $clients; sleep 0.05; done
        grep -q 'user 1234: 4 connections are open' "$folder/server.log"
        timeout 60 nbdinfo "nbd+unix:///ram0?socket=$folder/place/s"
        setpriv --reuid=1235 --regid=1235 --clear-groups /usr/bin/python3 -c '
import socket
client = socket.socket(socket.AF_UNIX)
client.connect("/tmp/place/s")
assert client.recv(8) == b"NBDMAGIC"'
        exec 3>&-
        wait $clients
        "$spillway" stop ram0
        wait $server
        trap - EXIT
    "#;
    script_of_root(script);
}

/// Reads take three seconds.
#[test]
fn an_idle_limit_ends_who_asks_for_nothing_and_nobody_who_waits_for_an_answer() {
    let config = "[[device]]\nname = \"slow\"\norigin = { kind = \"memory\", size = \"1M\" }\n\
                  layers = [{ kind = \"delay\", read_us = 3000000 }]\n";
    let server = Launch::serve(Arc::default(), config).with("--idle-timeout", "1").start();
    let [mut idle, mut waiting] = [(); 2].map(|()| Client::open(server.socket(), "slow"));
    idle.write(0, &pattern::random(1, 0, BLOCK)).expect("a write");
    assert!(waiting.read(0, BLOCK) == Ok(pattern::random(1, 0, BLOCK)), "it was waited for");
    assert_eq!(idle.stream.read(&mut [0]).expect("the end, in order"), 0);
    assert_eq!(waiting.stream.read(&mut [0]).expect("the end, in order"), 0, "now it is idle too");
}

/// Reads take longer than clients that do not take their replies are waited for.
#[test]
fn a_stop_answers_what_takes_long_and_is_waited_for() {
    let server = Launch::slow(12_000_000).start();
    let mut client = server.client();
    let read = client.send(command::READ, 0, BLOCK as u32).expect("it is sent");
    let flushed = client.send(command::FLUSH, 0, 0).expect("it is sent");
    assert_eq!(client.reply().expect("a reply"), (0, flushed), "the read before it is under way");
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| server.spillway(&["stop", "ram0"]).well());
        assert_eq!(client.reply().expect("a reply"), (0, read));
        client.stream.read_exact(&mut [1; BLOCK]).expect("its data");
        drop(client);
        stopped.join().expect("it ends");
    });
}

/// Two network namespaces with a cable between them.
struct Cable {
    name: String,
    /// Of this end; the other has the next address.
    host: String,
}

impl Cable {
    fn new() -> Self {
        let id = std::process::id();
        let (name, host) = (format!("spw{id}"), format!("10.199.{}.1", id % 250));
        let cable = Self { name: name.clone(), host: host.clone() };
        ip(&format!("netns add {name}"));
        ip(&format!("link add {name} type veth peer name eth0 netns {name}"));
        ip(&format!("addr add {host}/30 dev {name}"));
        ip(&format!("link set {name} up"));
        ip(&format!("-n {name} addr add 10.199.{}.2/30 dev eth0", id % 250));
        ip(&format!("-n {name} link set eth0 up"));
        cable
    }

    /// Nothing comes back from the other end any more.
    fn cut(&self) {
        ip(&format!("-n {} route add blackhole {}/32", self.name, self.host));
    }

    /// Runs a program at the other end. `ip netns exec` would have it keep a copy of all mounts, other tests' too.
    fn beyond(&self, script: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name));
        command.args(["/usr/bin/python3", "-c", script]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("util-linux is there")
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.name));
    }
}

fn ip(words: &str) {
    run("ip", &words.split(' ').collect::<Vec<_>>()).well();
}

/// Of three connections one is idle, one takes nothing of what it asked for, and one shakes hands; then it goes on for ever.
const GUESTS: &str = "
import socket, struct, sys, time
def enter():
    guest = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    guest.recv(18, socket.MSG_WAITALL)
    return guest
def export(guest):
    guest.sendall(struct.pack('>I8sII', 3, b'IHAVEOPT', 1, 0))
    guest.recv(10, socket.MSG_WAITALL)
    return guest
guests = [export(enter()), export(enter()), enter()]
for number in range(8):
    guests[1].sendall(struct.pack('>IHHQQI', 0x25609513, 0, 0, number, 0, 1 << 20))
guests[1].recv(1)
print('here', flush=True)
time.sleep(1000)
";

#[test]
fn a_vanished_host_frees_its_places() {
    let cable = Cable::new();
    let (server, address) = listening(&cable.host);
    let mut local = Guest::enter(&cable.host, address).expect("there is room");
    let mut beyond = cable.beyond(GUESTS, &[&cable.host, &address.port().to_string()]);
    let mut said = [0; 4];
    beyond.stdout.as_mut().expect("it is piped").read_exact(&mut said).expect("it says so");
    let held = server.vitals().descriptors;
    cable.cut();
    let start = Instant::now();
    while server.vitals().descriptors + 3 > held {
        assert!(
            start.elapsed() < 3 * PATIENCE,
            "of {held} descriptors, {} are left",
            server.vitals().descriptors
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    local.reads().expect("an idle connection whose host lives is kept");
    beyond.kill().and_then(|()| beyond.wait()).expect("it is our child");
}
