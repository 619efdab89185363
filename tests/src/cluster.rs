//! Ceph clusters on loopback, whose images are the origins of devices under test.
//!
//! A script starts and ends the daemons: see its head. They end with the process of the test, however that ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;

use crate::tool::{self, Said};
use crate::{Scratch, text, until};

const SCRIPT: &str = include_str!("../scripts/ceph.sh");

/// Seconds for a tool of Ceph, which waits without end for a cluster that does not answer.
const TOOL_SECONDS: &str = "60";

static SHARED: OnceLock<Cluster> = OnceLock::new();

/// Where OSDs keep objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// In memory, up to 2 GiB each; an OSD that is killed loses all.
    Memory,
    /// In a file, up to 4 GiB each; what was acknowledged survives a kill.
    Bluestore,
}

/// The client that has locked an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Like `client.4118`.
    pub client: String,
    /// Like `127.0.0.1:0/3612402556`.
    pub address: String,
    /// Like `auto 139984459905664`: the name of the lock.
    pub lock: String,
}

/// A monitor `mon.a`, and OSDs `osd.0` and so on, a daemon `mgr.x` where a test asks for it, and a pool `rbd`, which has a copy on each of at most three OSDs.
/// Clients need a key. Dropping it ends the daemons.
///
/// Images are named as Ceph's tools name them: `rbd/IMAGE`.
pub struct Cluster {
    folder: Scratch,
    osds: usize,
    script: Child,
    orders: Mutex<Orders>,
}

impl Cluster {
    /// The one of all tests that break nothing: an OSD in memory. Images need names of their own.
    pub fn shared() -> &'static Self {
        SHARED.get_or_init(|| Self::start(1, Store::Memory))
    }

    /// A new one, ready for clients.
    pub fn start(osds: usize, store: Store) -> Self {
        Self::with(osds, store, &[])
    }

    /// The same with more lines of configuration, for the OSDs unless one of them begins another section.
    pub fn with(osds: usize, store: Store, lines: &[&str]) -> Self {
        let folder = Scratch::new();
        let store = if store == Store::Memory { "memstore" } else { "bluestore" };
        let mut script = Command::new("bash");
        script.args(["-c", SCRIPT, "ceph.sh", text(folder.path()), &osds.to_string(), store]).args(lines);
        // In a group of its own: it cleans up after a terminal has ended the test.
        script.process_group(0).env_remove("CEPH_ARGS").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().expect("bash is installed");
        let output = BufReader::new(script.stdout.take().expect("it is piped"));
        let mut orders = Orders { input: script.stdin.take(), output };
        orders.until_ready();
        Self { folder, osds, script, orders: Mutex::new(orders) }
    }

    /// Starts the daemon `mgr.x`, which tells the monitor how much is stored: quotas of pools are kept from now on.
    pub fn keep_quotas(&self) {
        self.order("start", "mgr.x");
        until("it reports", || self.ceph(&["mgr", "stat"]).contains(r#""available": true"#).then_some(()));
    }

    /// The most bytes that a pool may hold, 0 for no limit, and waits until the cluster refuses more or does no longer.
    pub fn set_quota(&self, bytes: u64, is_full: bool) {
        self.ceph(&["osd", "pool", "set-quota", "rbd", "max_bytes", &bytes.to_string()]);
        let flags = || self.ceph(&["osd", "pool", "ls", "detail"]);
        until("the quota counts", || (flags().contains(",full_quota,") == is_full).then_some(()));
    }

    /// The configuration for clients.
    pub fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// Runs `rbd` and returns what it says; panics where it fails.
    pub fn rbd(&self, arguments: &[&str]) -> String {
        self.run("rbd", arguments).well().out
    }

    /// The same with `ceph`.
    pub fn ceph(&self, arguments: &[&str]) -> String {
        self.run("ceph", arguments).well().out
    }

    /// Runs a tool of Ceph that may fail.
    pub fn run(&self, tool: &str, arguments: &[&str]) -> Said {
        tool::finish(&mut self.command(tool, arguments))
    }

    /// A tool of Ceph, to be run. It is ended after 60 s.
    pub fn command(&self, tool: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args([TOOL_SECONDS, tool]).args(arguments);
        command.env("CEPH_CONF", self.conf()).env_remove("CEPH_ARGS");
        command
    }

    /// Runs `rbd` for an answer in JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let said = self.rbd(&[arguments, &["--format", "json"]].concat());
        serde_json::from_str(&said).unwrap_or_else(|why| panic!("{why}: {said}"))
    }

    /// Creates an image of so many MiB as Ceph's tools do without being told more, and returns its name.
    pub fn image(&self, name: &str, mib: usize) -> String {
        self.image_with(name, mib, &[])
    }

    /// The same with options of `rbd create`.
    pub fn image_with(&self, name: &str, mib: usize, options: &[&str]) -> String {
        let (image, size) = (format!("rbd/{name}"), format!("{mib}M"));
        self.rbd(&[&["create", "--size", &size, &image], options].concat());
        image
    }

    /// Creates an image with that content, and returns its name.
    pub fn import(&self, name: &str, content: &[u8]) -> String {
        let (image, folder) = (format!("rbd/{name}"), Scratch::new());
        self.rbd(&["import", "--no-progress", text(&folder.write("content", content)), &image]);
        image
    }

    /// What an image or snapshot holds, as another client sees it.
    pub fn export(&self, image: &str) -> Vec<u8> {
        let mut command = self.command("rbd", &["export", "--no-progress", image, "-"]);
        let output = command.stdin(Stdio::null()).output().expect("it was run before");
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rbd export {image}: {}: {why}", output.status);
        output.stdout
    }

    /// Bytes of an image.
    pub fn size(&self, image: &str) -> u64 {
        self.json(&["info", image])["size"].as_u64().expect("an image has a size")
    }

    /// Bytes of an image without snapshots that are stored, in whole objects.
    pub fn used(&self, image: &str) -> u64 {
        let found = self.json(&["du", image]);
        found["images"][0]["used_size"].as_u64().unwrap_or_else(|| panic!("{found}"))
    }

    /// Clients that have an image open for writing.
    pub fn watchers(&self, image: &str) -> usize {
        self.json(&["status", image])["watchers"].as_array().map_or(0, Vec::len)
    }

    /// Who has locked an image.
    pub fn owner(&self, image: &str) -> Option<Owner> {
        let found = self.json(&["lock", "ls", image]);
        let lock = found.get(0)?;
        let word = |key: &str| lock[key].as_str().unwrap_or_else(|| panic!("{found}")).to_owned();
        Some(Owner { client: word("locker"), address: word("address"), lock: word("id") })
    }

    /// Kills a daemon.
    pub fn kill(&self, daemon: &str) {
        self.order("kill", daemon);
    }

    /// Starts a daemon that was killed, without waiting until it serves.
    pub fn restart(&self, daemon: &str) {
        self.order("start", daemon);
    }

    /// Stops a daemon as a machine that hangs does: its connections stay.
    pub fn stop(&self, daemon: &str) {
        self.order("stop", daemon);
    }

    /// Ends what [`Cluster::stop`] began.
    pub fn go_on(&self, daemon: &str) {
        self.order("continue", daemon);
    }

    /// All OSDs by name.
    pub fn osds(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.osds).map(|number| format!("osd.{number}"))
    }

    /// Stops all OSDs.
    pub fn stop_osds(&self) {
        self.osds().for_each(|osd| self.stop(&osd));
    }

    /// Ends what [`Cluster::stop_osds`] began.
    pub fn go_on_osds(&self) {
        self.osds().for_each(|osd| self.go_on(&osd));
    }

    /// Waits until the monitor takes all OSDs for alive.
    pub fn until_up(&self) {
        let up = format!(" {} up", self.osds);
        until("all OSDs are up", || self.ceph(&["osd", "stat"]).contains(&up).then_some(()));
    }

    fn order(&self, verb: &str, daemon: &str) {
        // A test that has failed while it gave an order leaves no half of one.
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.give(&format!("{verb} {daemon}\n"));
    }

    /// The last words of all daemons.
    fn last_words(&self) -> String {
        let files =
            self.osds().chain(["mon.a".to_owned()]).map(|daemon| self.folder.join(&format!("{daemon}.out")));
        let files: Vec<_> = files.collect();
        tool::run("tail", &[&["-n".into(), "20".into()], &files[..]].concat()).out
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemons said:\n{}", self.last_words());
        }
        self.orders.get_mut().unwrap_or_else(PoisonError::into_inner).input = None;
        let _ = self.script.wait();
    }
}

/// The way to the script.
struct Orders {
    /// Absent at the end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Orders {
    fn until_ready(&mut self) {
        let mut said = String::new();
        while !said.ends_with("ready\n") {
            let count = self.output.read_line(&mut said).expect("the script says text");
            assert_ne!(count, 0, "there is no Ceph cluster: {said}");
        }
    }

    fn give(&mut self, order: &str) {
        let input = self.input.as_mut().expect("it is open until the end");
        input.write_all(order.as_bytes()).expect("the script lives as long");
        let mut said = String::new();
        self.output.read_line(&mut said).expect("the script says text");
        assert_eq!(said, "done\n", "{order}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::pattern;

    /// Of all daemons.
    fn ids(cluster: &Cluster) -> Vec<String> {
        let daemons = cluster.osds().chain(["mon.a".to_owned()]);
        let id = |daemon: String| fs::read_to_string(cluster.folder.join(&format!("{daemon}.pid")));
        daemons.map(|daemon| id(daemon).expect("it runs").trim_end().to_owned()).collect()
    }

    /// Whether it neither runs nor can: nobody may have asked yet how it ended.
    fn has_ended(id: &str) -> bool {
        fs::read_to_string(format!("/proc/{id}/status")).map_or(true, |status| status.contains("State:\tZ"))
    }

    #[test]
    fn what_was_written_survives_kills_and_nothing_survives_the_cluster() {
        let cluster = Cluster::start(1, Store::Bluestore);
        let content = pattern::random(1, 0, 1 << 20);
        let image = cluster.import("image", &content);
        ["osd.0", "mon.a"].iter().for_each(|daemon| cluster.kill(daemon));
        ["osd.0", "mon.a"].iter().for_each(|daemon| cluster.restart(daemon));
        assert!(cluster.export(&image) == content);
        cluster.stop_osds();
        let (ids, folder) = (ids(&cluster), cluster.folder.path().to_owned());
        drop(cluster);
        assert!(ids.iter().all(|id| has_ended(id)) && !folder.exists());
    }

    #[test]
    fn daemons_end_with_the_script() {
        let mut cluster = Cluster::start(1, Store::Memory);
        let ids = ids(&cluster);
        cluster.script.kill().expect("it is our child");
        until("the daemons end", || ids.iter().all(|id| has_ended(id)).then_some(()));
    }

    #[test]
    fn a_client_without_a_key_is_refused() {
        let cluster = Cluster::shared();
        let said = cluster.run("rbd", &["--id", "nobody", "ls"]);
        assert!(said.code != Some(0) && said.err.contains("couldn't connect"), "{said}");
    }
}
