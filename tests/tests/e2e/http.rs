//! Metrics, control and a page over HTTP, with the clients that people use.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value as Json, json};
use spillway_tests::raw::{Client, command};
use spillway_tests::tool::{self, Said};
use spillway_tests::{Browser, Launch, Scratch, Server, pattern, text, until};

use crate::tour::figures;

const USAGE: i32 = 2;

/// A token for tests.
const TOKEN: &str = "0123456789abcdef0123";

/// A RAM disk with a spill file under a write-back policy that does something, with HTTP at a socket.
fn at_socket() -> (Server, PathBuf) {
    let launch = Launch::ram("64M");
    let folder = launch.folder();
    let (place, spill) = (folder.join("http"), folder.join("spill"));
    let server = launch.with("--http", format!("unix:{}", text(&place))).with("--spill", spill).start();
    (server, place)
}

/// The same at a port.
pub(crate) fn at_port(launch: Launch) -> (Server, String) {
    let server = launch.with("--http", "127.0.0.1:0").start();
    let log = server.log();
    let place = log.lines().find_map(|line| line.trim().strip_prefix("http: ")).expect("it says where");
    let place = place.trim_end_matches('/').to_owned();
    (server, place)
}

/// The text of a document of this repository.
fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    fs::read_to_string(path).expect("a document")
}

pub(crate) fn curl(arguments: &[&str]) -> Said {
    tool::run("curl", &[&["--silent", "--show-error", "--max-time", "60"], arguments].concat())
}

fn json_of(said: Said) -> Json {
    let said = said.well();
    serde_json::from_str(&said.out).unwrap_or_else(|why| panic!("{why}: {said}"))
}

/// Metrics of a server as the reference parser of OpenMetrics reads them: value by name and labels.
pub(crate) fn parsed(metrics: &str) -> BTreeMap<String, f64> {
    const SCRIPT: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
samples = {}
for family in text_string_to_metric_families(open(sys.argv[1]).read()):
    assert family.documentation and family.type in ('counter', 'gauge', 'histogram'), family
    for sample in family.samples:
        key = sample.name + ''.join(f' {name}={value}' for name, value in sorted(sample.labels.items()))
        assert key not in samples, key
        samples[key] = sample.value
print(json.dumps(samples))
";
    let folder = Scratch::new();
    let path = folder.write("metrics", metrics);
    let said = tool::run("/usr/bin/python3", &["-c", SCRIPT, text(&path)]).well();
    serde_json::from_str(&said.out).expect("the script prints JSON")
}

#[test]
fn the_lines_of_the_manual_do_what_it_says() {
    let (mut server, place) = at_socket();
    let manual = document("http.md");
    let blocks = manual.split("```sh\n").skip(1).map(|block| block.split("```").next().expect("its end"));
    let script: String = blocks.filter(|block| block.contains("curl ")).collect();
    assert!(script.lines().count() > 10, "{script}");
    let run =
        tool::run("sh", &["-e", "-c", &script.replace("/run/user/1000/spillway-http", text(&place))]).well();
    for part in ["\"ram0\"", "spillway_server_memory_used_bytes", "mem_limit", "\"errno\":\"EINVAL\""] {
        assert!(run.out.contains(part), "{part} is not in {run}");
    }
    assert!(server.ends().success(), "its last line stops the server: {}", server.log());
}

#[test]
fn metrics_are_the_attributes() {
    let (server, place) = at_socket();
    server.client().write(0, &pattern::half_random(1, 0, 1 << 20)).expect("a write");
    let metrics = curl(&["--unix-socket", text(&place), "http://localhost/metrics"]).well().out;
    let samples = parsed(&metrics);
    for (attribute, sample) in [
        ("mem_used_total", "spillway_zram_mem_used_total_bytes device=ram0 part=zram"),
        ("num_writes", "spillway_zram_num_writes_pages_total device=ram0 part=zram"),
        ("max_comp_streams", "spillway_zram_max_comp_streams device=ram0 part=zram"),
        ("spill_size", "spillway_zram_spill_size_bytes device=ram0 part=zram"),
    ] {
        let value = server.value("ram0", attribute).as_f64();
        assert_eq!(samples.get(sample).copied(), value, "{attribute} in {metrics}");
    }
    assert_eq!(samples["spillway_device_bytes_total device=ram0 operation=write"], (1 << 20) as f64);
    assert_eq!(samples["spillway_device_size_bytes device=ram0"], (64 << 20) as f64);
    assert!(samples["spillway_server_memory_used_bytes"] > 1e6);
}

/// A server with every kind of part: no two of their numbers are the same metric.
#[test]
fn rules_and_dashboard_name_metrics_that_there_are() {
    let folder = Arc::new(Scratch::new());
    let place = |name: &str| folder.write(name, vec![0; 16 << 20]);
    let (origin, cache, other) = (place("origin"), place("cache"), place("other"));
    let config = format!(
        "[[device]]\nname = \"a\"\norigin = {{ kind = \"file\", path = {:?} }}\nlayers = [{{ kind = \"write_cache\", path = {:?} }}]\n\
         [[device]]\nname = \"b\"\norigin = {{ kind = \"file\", path = {:?} }}\nlayers = [{{ kind = \"page_cache\" }}]\n\
         [[device]]\nname = \"c\"\norigin = {{ kind = \"zram\", disksize = \"64M\", spill = {:?}, spill_size = \"80M\" }}\n\
         [[device]]\nname = \"d\"\norigin = {{ kind = \"memory\", size = \"16M\" }}\nlayers = [{{ kind = \"volatile\" }}, {{ kind = \"trace\" }}, \
         {{ kind = \"fault\" }}, {{ kind = \"delay\", read_us = 1 }}, {{ kind = \"rate\", bytes_per_second = \"1G\" }}, {{ kind = \"delay\", read_us = 1 }}]\n\
         [[device]]\nname = \"e\"\norigin = {{ kind = \"null\", size = \"16M\" }}\nlayers = [{{ kind = \"rate\", bytes_per_second = \"1M\" }}]\n",
        text(&origin),
        text(&cache),
        text(&other),
        text(&folder.join("spill")),
    );
    let (server, place) = at_port(Launch::serve(folder.clone(), config));
    // What is at risk has an age where that has a limit.
    server.spillway(&["set", "b", "at_risk_seconds_max", "3600"]).well();
    let mut client = Client::open(server.socket(), "b");
    // Each is timed, where of writes only one in many is.
    client.ask(command::FLUSH, 0, 0).expect("a flush");
    client.write(0, &[1; 4096]).expect("a write");
    // Long work has metrics while it runs, and an estimate once it has begun.
    let image = folder.write("image", pattern::random(1, 0, 16 << 20));
    let mut load = server.command(&["load", "e", text(&image)]).spawn().expect("it was built");
    let samples = until("the estimate is there", || {
        let samples = parsed(&curl(&[&format!("{place}/metrics")]).well().out);
        samples.contains_key("spillway_work_left_seconds device=e kind=load").then_some(samples)
    });
    load.kill().and_then(|()| load.wait()).expect("it runs");
    let names: Vec<&str> = samples.keys().map(|key| key.split(' ').next().expect("a name")).collect();
    for file in ["alerts.yml", "grafana.json"] {
        let said = document(file);
        let asked = said.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let mut asked: Vec<_> = asked.filter(|word| word.starts_with("spillway_")).collect();
        asked.sort_unstable();
        asked.dedup();
        assert!(asked.len() > 3, "{file} names {asked:?}");
        for name in asked {
            assert!(names.contains(&name), "{file} names {name}, which a server does not have");
        }
    }
    states_have_rules(&samples);
    let _: Json = serde_json::from_str(&document("grafana.json")).expect("JSON");
}

/// Each state of a connection that is not well has one rule. An outage passes by itself, and what was taken over does not.
fn states_have_rules(samples: &BTreeMap<String, f64>) {
    let text = document("alerts.yml");
    let rules = text.split("spillway_file_connection{state").skip(1);
    let rules: Vec<&str> = rules.map(|rest| rest.split('"').nth(1).expect("states")).collect();
    let states = samples
        .keys()
        .filter_map(|key| key.strip_prefix("spillway_file_connection device=a part=file state="));
    let unwell: Vec<&str> = states.filter(|state| !["local", "up"].contains(state)).collect();
    assert!(unwell.len() > 3, "{unwell:?}");
    for state in unwell {
        let named = rules.iter().filter(|rule| rule.split('|').any(|named| named == state)).count();
        assert_eq!(named, 1, "rules for {state}: {rules:?}");
    }
    assert!(rules.contains(&"fenced"), "{rules:?}");
}

/// The cache reads from the file and writes to it at once: each passes what its client asks for.
#[test]
fn what_passes_between_parts_is_counted_and_timed() {
    let folder = Arc::new(Scratch::new());
    let origin = folder.write("origin", vec![7; 1 << 20]);
    let config = format!(
        "[[device]]\nname = \"a\"\norigin = {{ kind = \"file\", path = {:?} }}\n\
         layers = [{{ kind = \"page_cache\", mode = \"writethrough\", readahead_bytes_max = 0 }}]\n",
        text(&origin)
    );
    let (server, place) = at_port(Launch::serve(folder.clone(), config));
    let mut client = Client::open(server.socket(), "a");
    client.write(65536, &[1; 8192]).expect("a write");
    assert_eq!(client.read(0, 4096).expect("a read"), [7; 4096]);
    client.read(0, 4096).expect("a hit");
    let device = json_of(curl(&[&format!("{place}/api/devices")]))[0].clone();
    let passed = &device["passed"][0];
    assert_eq!(
        (&passed["part"], &passed["read_bytes"], &passed["write_bytes"]),
        (&json!("file"), &json!(4096), &json!(8192))
    );
    let samples = parsed(&curl(&[&format!("{place}/metrics")]).well().out);
    let sample = |name: &str, operation: &str| {
        samples[&format!("spillway_part_{name} device=a operation={operation} part=file")]
    };
    assert_eq!((sample("bytes_total", "read"), sample("bytes_total", "write")), (4096.0, 8192.0));
    assert_eq!(
        (sample("latency_seconds_count", "read"), sample("latency_seconds_count", "write")),
        (1.0, 1.0)
    );
    assert!(sample("latency_seconds_sum", "write") > 0.0);
}

#[test]
fn a_port_without_a_token_shows_and_changes_nothing() {
    let (server, place) = at_port(Launch::ram("16M"));
    let attribute = format!("{place}/api/devices/ram0/attributes/mem_limit");
    assert_eq!(json_of(curl(&[&format!("{place}/api/server")]))["changes"], false);
    let refused = json_of(curl(&["-X", "PUT", "-d", "1048576", &attribute]));
    assert_eq!(refused["error"]["errno"], "EACCES", "{refused}");
    let foreign = json_of(curl(&["-H", "Host: evil.example", &attribute]));
    assert!(
        foreign["error"]["message"].as_str().is_some_and(|words| words.contains("evil.example")),
        "{foreign}"
    );
    assert_eq!(server.value("ram0", "mem_limit"), 0);
}

#[test]
fn a_token_lets_its_holder_change_everything_and_nobody_else_look() {
    let launch = Launch::ram("16M");
    let token = launch.folder().write("token", format!("{TOKEN}\nthe rest is not read\n"));
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let (server, place) = at_port(launch.with("--http-token-file", &token));
    let (bearer, attribute) =
        (format!("Authorization: Bearer {TOKEN}"), format!("{place}/api/devices/ram0/attributes/mem_limit"));
    for arguments in [vec![], vec!["-u", "any:wrong"], vec!["-H", "Authorization: Bearer"]] {
        let arguments = [&arguments[..], &["-o", "/dev/null", "-w", "%{http_code}", &place]].concat();
        assert_eq!(curl(&arguments).well().out, "401");
    }
    let put = |header: &str, value: &str| {
        let arguments =
            ["-H", &bearer, "-H", header, "-X", "PUT", "-d", value, "-w", "%{http_code}", &attribute];
        curl(&arguments).well().out
    };
    assert_eq!(put("Origin: ", "1048576"), "204");
    assert_eq!(server.value("ram0", "mem_limit"), 1 << 20);
    assert!(put("Origin: http://evil.example", "4096").ends_with("403"));
    assert_eq!(server.value("ram0", "mem_limit"), 1 << 20, "a page of others changes nothing");
    let (user, address) = (format!("any:{TOKEN}"), format!("{place}/api/server"));
    assert_eq!(json_of(curl(&["-u", &user, &address]))["changes"], true);
}

#[test]
fn places_and_tokens_that_cannot_be_are_refused_at_the_start() {
    let folder = Scratch::new();
    let file = |name: &str, content: &str, mode| {
        let path = folder.write(name, content);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        path
    };
    let (short, open) = (file("short", "abc\n", 0o600), file("open", TOKEN, 0o644));
    let at = |place: &str| Launch::ram("1M").with("--http", place);
    at("0.0.0.0:0").run().refused(USAGE, "http_token_file");
    at("127.0.0.1:0").with("--http-token-file", &short).run().refused(USAGE, "16 to 1024 characters");
    at("127.0.0.1:0").with("--http-token-file", &open).run().refused(USAGE, "chmod 0600");
    at("nonsense").run().refused(1, "nonsense");
    Launch::ram("1M").with("--http-token-file", &short).run().refused(USAGE, "give http too");
    let (_server, place) = at_port(Launch::ram("1M"));
    at(place.trim_start_matches("http://")).run().refused(1, "cannot listen");
}

#[test]
fn clients_that_stay_keep_no_server_from_its_end() {
    let (mut server, place) = at_port(Launch::ram("1M"));
    let address = place.trim_start_matches("http://");
    let mut kept = TcpStream::connect(address).expect("it listens");
    kept.write_all(b"GET /api/server HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is sent");
    assert!(kept.read(&mut [0; 4096]).expect("an answer") > 0);
    let mut half = TcpStream::connect(address).expect("it listens");
    half.write_all(b"PUT /api/devices/ram0/attributes/mem_limit HTTP/1.1\r\nContent-Length: 9\r\n\r\n1")
        .expect("it is sent");
    server.spillway(&["stop", "ram0"]).well();
    assert!(server.ends().success(), "{}", server.log());
    assert_eq!(kept.read(&mut [0; 16]).unwrap_or(0), 0, "the connection ends");
}

/// Has a thread stop, however this one ends.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_browser_shows_figures_that_move_and_are_the_attributes() {
    let launch = Launch::ram("64M");
    let folder = launch.folder();
    let (server, place) = at_port(launch.with("--spill", folder.join("spill")));
    let (stop, mut browser) = (AtomicBool::new(false), Browser::open(&place));
    let writes = "JSON.parse(document.querySelector('[data-attribute=num_writes]').dataset.value)";
    let flow = "document.querySelector('.between').textContent";
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            while !stop.load(Ordering::Relaxed) {
                client.write(0, &pattern::half_random(1, 0, 4096)).expect("a write");
            }
        });
        let _stops = Stops(&stop);
        let before = browser.shows(writes);
        browser.shows(&format!("{writes} > {before} && / 1 client: write (?!0.0 )/.test({flow})"));
    });
    figures::are_the_attributes(&mut browser, &server, &|path| json_of(curl(&[&format!("{place}/{path}")])));
    let shown = "document.body.textContent.includes('nothing can be changed here')";
    assert_eq!(browser.evaluate(&format!("{shown} && !document.querySelector('button, input')")), true);
}
