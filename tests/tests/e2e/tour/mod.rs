//! A tour of a whole life, as its users live it: started by the words of the packaged unit, loaded, watched in a browser, limited, drained,
//! resized, stopped, and started again.

pub(crate) mod figures;
mod pictures;

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::{Value as Json, json};
use spillway_tests::raw::Client;
use spillway_tests::{Browser, Launch, Scratch, Server, pattern, text, tool, until};

use crate::service::{EXTENDED, Supervisor};

const UNIT: &str = "tools/packaging/spillway@.service";
const TOKEN: &str = "0123456789abcdef0123";

/// What the image on the RAM disk, and the pattern on the cache, have.
const IMAGE: usize = 16 << 20;
const PATTERN: usize = 4 << 20;

/// Where the load begins on either device, and where pages that do not compress begin on the RAM disk.
const LOADED: u64 = 32 << 20;
const INCOMPRESSIBLE: u64 = 48 << 20;

/// Limits of the RAM disk, and of the data at risk.
const MEMORY: u64 = 16 << 20;
const AT_RISK: u64 = 1 << 20;

/// How large the cached disk becomes.
const GROWN: u64 = 96 << 20;

/// A service with two devices: the RAM disk `ram` with a spill file that keeps, and `disk`, a write cache over a file.
struct Tour {
    folder: Arc<Scratch>,
    address: String,
    words: Vec<String>,
}

impl Tour {
    fn new() -> Self {
        let folder = Arc::new(Scratch::new());
        let file = |name: &str, size: u64| {
            let path = folder.join(name);
            File::create(&path).and_then(|file| file.set_len(size)).expect("the folder is ours");
            path
        };
        let token = folder.write("token", TOKEN);
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("it is ours");
        let address = format!("127.0.0.1:{}", free_port());
        let config = format!(
            "memory = \"256M\"\nhttp = {address:?}\nhttp_token_file = {token:?}\n\
             [[device]]\nname = \"ram\"\n\
             origin = {{ kind = \"zram\", disksize = \"64M\", spill = {:?}, spill_size = \"96M\", keep = true }}\n\
             [[device]]\nname = \"disk\"\norigin = {{ kind = \"file\", path = {:?} }}\n\
             layers = [{{ kind = \"write_cache\", path = {:?} }}]\n",
            folder.join("spill"),
            file("origin", 64 << 20),
            file("cache", 32 << 20),
        );
        let words = words_of_unit(&folder.write("tour.toml", config));
        Self { folder, address, words }
    }

    /// Starts it as the unit does, and waits until it says that it is ready.
    fn starts(&self, supervisor: &Supervisor) -> Server {
        let words: Vec<_> = self.words.iter().map(String::as_str).collect();
        let launch = Launch::new(&words, self.folder.clone(), self.socket("ram"));
        let server = supervisor.runs(launch).start();
        assert_eq!(supervisor.hears_but(EXTENDED), "READY=1\nSTATUS=serving ram, disk");
        server
    }

    /// Stops it as the service manager does.
    fn stops(&self, mut server: Server) {
        server.signal(Signal::TERM);
        assert!(server.ends().success(), "{}", server.log());
    }

    /// The socket that it makes where the unit lets it make sockets.
    fn socket(&self, device: &str) -> PathBuf {
        self.folder.join("spillway").join(format!("{device}.sock"))
    }

    fn uri(&self, device: &str) -> String {
        format!("nbd+unix:///{device}?socket={}", text(&self.socket(device)))
    }

    fn client(&self, device: &str) -> Client {
        Client::open(&self.socket(device), device)
    }

    /// A browser whose user has given the token as the password that it was asked for.
    fn browser(&self) -> Browser {
        let mut browser = Browser::open(&format!("http://any:{TOKEN}@{}/", self.address));
        browser.go(&format!("http://{}/", self.address));
        browser
    }

    fn curl(&self, arguments: &[&str], path: &str) -> String {
        let (bearer, address) =
            (format!("Authorization: Bearer {TOKEN}"), format!("http://{}/{path}", self.address));
        let common = ["--silent", "--show-error", "--fail", "--max-time", "60", "-H", &bearer, &address];
        tool::run("curl", &[&common, arguments].concat()).well().out
    }

    fn ask(&self, path: &str) -> Json {
        serde_json::from_str(&self.curl(&[], path)).expect("JSON")
    }

    fn at_rest(&self, browser: &mut Browser, server: &Server) {
        figures::are_the_attributes(browser, server, &|path| self.ask(path));
    }

    /// Bytes that clients have written to a device, as Prometheus sees it.
    fn written(&self, device: &str) -> f64 {
        let sample = format!("spillway_device_bytes_total{{device=\"{device}\",operation=\"write\"}} ");
        let metrics = self.curl(&[], "metrics");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&sample));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {sample} in {metrics}"))
    }
}

/// A port that no client of another test gets by chance: those are above.
fn free_port() -> u16 {
    let mut ports = (20_000..30_000).cycle().skip(std::process::id() as usize % 10_000);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a port is free")
}

/// The command line of the packaged unit behind the program, with this configuration.
fn words_of_unit(config: &Path) -> Vec<String> {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(UNIT);
    let unit = fs::read_to_string(unit).expect("a unit");
    let line =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/spillway ")).expect("it starts");
    assert!(
        line.contains("/etc/spillway/%i.toml") && unit.contains("Environment=SPILLWAY_RUNTIME_DIR="),
        "{unit}"
    );
    line.replace("/etc/spillway/%i.toml", text(config)).split(' ').map(str::to_owned).collect()
}

/// fio, which reads and writes both devices until this is dropped.
struct Load(Child);

impl Load {
    fn begin(tour: &Tour) -> Self {
        let mut fio = Command::new("fio");
        fio.args([
            "--ioengine=nbd",
            "--thread",
            "--time_based",
            "--runtime=10m",
            "--rw=randrw",
            "--iodepth=4",
        ]);
        fio.args(["--refill_buffers", "--buffer_compress_percentage=60", "--bsrange=4k-32k"]);
        let range = [format!("--offset={LOADED}"), "--size=16M".into()];
        for (device, rate) in [("ram", "12M,5M"), ("disk", "6M,2M")] {
            let (name, uri) = (format!("--name={device}"), format!("--uri={}", tour.uri(device)));
            fio.args([&name, &uri, &format!("--rate={rate}")]).args(&range);
        }
        fio.arg(format!("--aux-path={}", text(tour.folder.path())));
        Self(
            fio.stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .expect("fio is installed: apt-get install fio"),
        )
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The value that the page shows for something, as an expression: `mark` is attribute or field.
fn value(device: &str, mark: &str, name: &str) -> String {
    format!(
        "JSON.parse(document.querySelector('[data-device=\"{device}\"] [data-{mark}=\"{name}\"]').dataset.value)"
    )
}

/// Waits until the page shows for an attribute what `holds`, a condition behind the value.
fn shows(browser: &mut Browser, device: &str, attribute: &str, holds: &str) {
    browser.shows(&format!("{} {holds}", value(device, "attribute", attribute)));
}

/// Presses a button of a device, and waits for what the page says of it.
fn press(browser: &mut Browser, device: &str, selector: &str, outcome: &str) {
    browser.press(&format!("[data-device=\"{device}\"] {selector}"));
    browser.shows(&format!(
        "document.querySelector('[data-device=\"{device}\"] [role=status]').textContent.includes({:?})",
        outcome
    ));
}

#[test]
fn a_service_is_loaded_watched_limited_drained_resized_stopped_and_started_again() {
    let tour = Tour::new();
    // Each start has its own, which has heard nothing of the other.
    let supervisors = [Supervisor::new(), Supervisor::new()];
    let server = tour.starts(&supervisors[0]);
    let mut browser = tour.browser();
    let image = tour.folder.write("image", pattern::half_random(7, 0, IMAGE));
    tool::run("nbdcopy", &["--flush", text(&image), &tour.uri("ram")]).well();
    tour.client("disk").write(0, &pattern::random(8, 0, PATTERN)).expect("a write");

    let load = Load::begin(&tour);
    figures_move(&tour, &mut browser);
    pages_spill(&tour, &server, &mut browser);
    memory_is_limited_by_http(&tour, &server, &mut browser);
    pictures::are_sound(&mut browser);
    risk_is_limited_by_the_page(&server, &mut browser);
    drop(load);
    the_cache_is_drained_by_the_page(&tour, &server, &mut browser);
    the_disk_is_resized(&tour, &server, &mut browser);
    tour.at_rest(&mut browser, &server);
    nothing_was_wrong(&tour, &mut browser);

    let stored = server.value("ram", "orig_data_size");
    tour.stops(server);
    browser.shows("!document.querySelector('#trouble').hidden");
    let server = tour.starts(&supervisors[1]);
    browser.shows(&format!("document.querySelector('#trouble').hidden && document.querySelector('[data-field=pid]')?.textContent === '{}'", server.pid()));
    assert_eq!((server.value("ram", "orig_data_size"), stored == json!(0)), (stored, false));
    content_is_there(&tour, &image);
    tour.at_rest(&mut browser, &server);
    tour.stops(server);
}

fn figures_move(tour: &Tour, browser: &mut Browser) {
    for device in ["ram", "disk"] {
        let before = tour.written(device);
        until("the metric of what was written grows", || (tour.written(device) > before).then_some(()));
        browser.shows(&format!("{} === 1", value(device, "field", "clients")));
    }
    for (device, counter) in
        [("ram", "num_reads"), ("ram", "num_writes"), ("disk", "reads"), ("disk", "writes")]
    {
        let before = browser.shows(&value(device, "attribute", counter));
        shows(browser, device, counter, &format!("> {before}"));
    }
    browser.shows("/write [1-9]/.test(document.querySelector('[data-device=ram] .between').textContent)");
}

/// While clients write.
fn risk_is_limited_by_the_page(server: &Server, browser: &mut Browser) {
    let select = "const choice = document.querySelector('[data-device=disk] select'); choice.value = 'at_risk_bytes_max'; \
                  choice.dispatchEvent(new Event('change'))";
    browser.evaluate(&format!("{{ {select} }}"));
    browser.fill("[data-device=disk] input", "1");
    press(browser, "disk", "form button", "a size from 4K to 4E");
    browser.fill("[data-device=disk] input", "1M");
    press(browser, "disk", "form button", "at_risk_bytes_max is set");
    assert_eq!(server.value("disk", "at_risk_bytes_max"), AT_RISK);
    let number = |attribute: &str| server.value("disk", attribute).as_u64().expect("a number");
    let flushes = || number("at_risk_flushes");
    until("what was at risk before is durable", || (number("at_risk_bytes") <= AT_RISK).then_some(()));
    let before = flushes();
    until("the limit has begun flushes", || {
        let at_risk = number("at_risk_bytes");
        assert!(at_risk <= AT_RISK, "{at_risk} bytes are at risk");
        (flushes() > before + 1).then_some(())
    });
    shows(browser, "disk", "at_risk_bytes", &format!("<= {AT_RISK}"));
    shows(browser, "disk", "at_risk_flushes", &format!("> {before}"));
}

fn pages_spill(tour: &Tour, server: &Server, browser: &mut Browser) {
    let before = browser.shows(&value("ram", "attribute", "mem_used_total"));
    server.spillway(&["set", "ram", "idle", "all"]).well();
    server.spillway(&["set", "ram", "writeback", "idle"]).well();
    shows(browser, "ram", "spill_bytes", "> 0");
    shows(browser, "ram", "mem_used_total", &format!("< {before}"));
    browser.shows(
        "/spill file.*of 96.0 MiB/.test(document.querySelector('[data-device=ram] .meters').textContent)",
    );
    assert!(tour.curl(&[], "metrics").contains("spillway_zram_spill_bytes"));
}

/// Data that does not fit goes to the spill file.
fn memory_is_limited_by_http(tour: &Tour, server: &Server, browser: &mut Browser) {
    tour.curl(&["-X", "PUT", "-d", "\"16M\""], "api/devices/ram/attributes/mem_limit");
    shows(browser, "ram", "mem_limit", &format!("=== {MEMORY}"));
    let mut client = tour.client("ram");
    for at in (0..16 << 20).step_by(1 << 20) {
        client.write(INCOMPRESSIBLE + at, &pattern::random(9, at, 1 << 20)).expect("a write");
        let used = server.value("ram", "mem_used_total").as_u64().expect("a number");
        assert!(used <= MEMORY, "{used} bytes are used");
    }
    drop(client);
    shows(browser, "ram", "mem_used_total", &format!("> {}", MEMORY / 2));
    shows(browser, "ram", "mem_used_total", &format!("<= {MEMORY}"));
}

fn the_cache_is_drained_by_the_page(tour: &Tour, server: &Server, browser: &mut Browser) {
    shows(browser, "disk", "dirty_blocks", "> 0");
    press(browser, "disk", "button", "draining has begun");
    shows(browser, "disk", "drain_state", "=== 'complete'");
    shows(browser, "disk", "dirty_blocks", "=== 0");
    assert_eq!(server.value("disk", "dirty_blocks"), 0);
    let origin = fs::read(tour.folder.join("origin")).expect("a file");
    assert!(origin[..PATTERN] == pattern::random(8, 0, PATTERN), "the origin has what was written");
}

fn the_disk_is_resized(tour: &Tour, server: &Server, browser: &mut Browser) {
    let origin = File::options().write(true).open(tour.folder.join("origin"));
    origin.and_then(|origin| origin.set_len(GROWN)).expect("a file");
    server.spillway(&["resize", "disk"]).well();
    browser.shows(&format!("{} === {GROWN}", value("disk", "field", "disksize")));
    assert_eq!(tour.client("disk").size, GROWN);
}

/// The page has had no error, and has asked this server alone.
fn nothing_was_wrong(tour: &Tour, browser: &mut Browser) {
    let refused: Vec<_> = browser.complaints();
    // The value that it was to refuse.
    let others: Vec<_> = refused.iter().filter(|one| !one.contains("at_risk_bytes_max")).collect();
    assert!(others.is_empty() && refused.len() == 1, "{refused:?}");
    let own = [format!("http://{}/", tour.address), format!("http://any:{TOKEN}@{}/", tour.address)];
    let foreign: Vec<_> =
        browser.requests().iter().filter(|url| !own.iter().any(|own| url.starts_with(own))).collect();
    assert!(foreign.is_empty() && browser.requests().len() > 5, "{foreign:?}");
}

/// Image and pattern are there after a start.
fn content_is_there(tour: &Tour, image: &Path) {
    let back = tour.folder.join("back");
    tool::run("nbdcopy", &[&tour.uri("ram"), text(&back)]).well();
    let back = fs::read(back).expect("a file");
    assert!(back[..IMAGE] == fs::read(image).expect("a file")[..], "the image is as it was");
    assert!(back[INCOMPRESSIBLE as usize..] == pattern::random(9, 0, 16 << 20), "what was written last, too");
    let read = tour.client("disk").read(0, PATTERN).expect("a read");
    assert!(read == pattern::random(8, 0, PATTERN), "the pattern is as it was");
}
