//! A cluster with images, and servers that are started over them and stopped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use spillway_fixture::{Cluster, Store};

use crate::measure::results;
use crate::peers::fio::{Case, Contender, JOB_BYTES, case, fio};
use crate::peers::servers::{Folder, binary, server};
use crate::spill::write_zeroes;

/// Bytes of an image, of a file in its place, and of an export.
pub(super) const BYTES: u64 = JOB_BYTES;

const OSDS: usize = 3;

/// Blocks of it are written with content before anything is measured.
pub(super) const FILL: Case = case("fill", "write", 1024, 1, 4);

/// Of librbd, whose default is to have one, with the policy `writearound`.
const NO_CACHE: &str = "rbd cache = false";

/// The name of our device at every server, of which one runs at a time.
const DEVICE: &str = "device";

pub(super) struct Rig {
    cluster: Cluster,
    /// Cache devices and files.
    pub(super) disk: Folder,
    sockets: Folder,
    spillway: PathBuf,
}

impl Rig {
    pub(super) fn new() -> Result<Self> {
        let (disk, sockets, spillway) = (Folder::on_disk()?, Folder::new()?, binary()?);
        let cluster = Cluster::with(OSDS, Store::Memory, &["[client]", NO_CACHE]);
        // Without what differs by run: paths, addresses, its identity.
        let conf = fs::read_to_string(cluster.conf())?;
        let lines: Vec<&str> =
            conf.lines().filter(|line| !line.contains('/') && !line.contains("fsid")).collect();
        results::text(&format!("ceph.conf of a monitor and {OSDS} OSDs:\n{}", lines.join("\n")))?;
        Ok(Self { cluster, disk, sockets, spillway })
    }

    /// librbd in fio, on a new image of that name with content.
    pub(super) fn librbd(&self, image: &'static str) -> Result<Contender> {
        self.cluster.image(image, (BYTES >> 20) as usize);
        let contender = librbd("librbd", image, self.cluster.conf());
        fio(&contender, &FILL, "")?;
        Ok(contender)
    }

    /// librbd in fio on the same image, with its cache.
    pub(super) fn with_its_cache(&self, image: &str, policy: &str) -> Result<Contender> {
        let (conf, cache) = (self.disk.0.join("cached.conf"), format!("rbd cache policy = {policy}"));
        fs::write(&conf, fs::read_to_string(self.cluster.conf())?.replace(NO_CACHE, &cache))?;
        Ok(librbd("librbd with its cache", image, conf))
    }

    /// A file with content in the place of an image; its path.
    pub(super) fn file(&self, name: &str) -> Result<PathBuf> {
        let path = self.disk.0.join(name);
        let place = format!("--filename={}", path.display());
        let target = vec!["--ioengine=psync".into(), "--end_fsync=1".into(), place];
        let file = Contender { name: "file", child: None, target, ceph_conf: None, takes: |_| true };
        fio(&file, &FILL, "")?;
        Ok(path)
    }

    /// Bytes of an image, as Ceph's own tool reads them.
    pub(super) fn export(&self, image: &str) -> Vec<u8> {
        self.cluster.export(&format!("rbd/{image}"))
    }

    /// `spillway disk` or `spillway cache` with these words behind it. Its caches are cold.
    pub(super) fn ours(&self, kind: &str, origin: &Path, more: &[&str]) -> Result<Server<'_>> {
        let (spillway, conf) = (text(&self.spillway)?.to_owned(), self.cluster.conf());
        let words = [&spillway, kind, "--name", DEVICE, "--socket", "SOCKET", "--origin", text(origin)?];
        let words = [&words, &["--ceph-conf", text(&conf)?][..], more].concat();
        let contender = server("spillway", &self.sockets.0, DEVICE, &words)?;
        Ok(Server { contender, rig: self })
    }

    /// `spillway cache` over an empty cache device on the disk, whose blocks the file system has allocated.
    pub(super) fn cached(&self, origin: &Path) -> Result<Server<'_>> {
        let device = self.disk.0.join("cache");
        write_zeroes(&device, BYTES)?;
        self.ours("cache", origin, &["--cache", text(&device)?])
    }

    /// qemu-nbd with its driver for images.
    pub(super) fn qemu(&self, image: &str) -> Result<Contender> {
        let address = format!("rbd:rbd/{image}:conf={}", self.cluster.conf().display());
        let words = ["qemu-nbd", "-t", "-e", "4", "-f", "raw", "--cache=none", "-k", "SOCKET", &address];
        server("qemu-nbd rbd", &self.sockets.0, "", &words)
    }

    /// Runs a command of ours to its end.
    fn command(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.spillway);
        command.args(words).env("SPILLWAY_RUNTIME_DIR", &self.sockets.0).stdin(Stdio::null());
        let output = command.output().context("spillway cannot be started")?;
        let why = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "spillway {}: {why}", words.join(" "));
        Ok(())
    }
}

/// A server of ours, which is stopped in order when it is dropped: a killed one would leave the image locked.
pub(super) struct Server<'a> {
    pub(super) contender: Contender,
    rig: &'a Rig,
}

impl Server<'_> {
    /// Writes back all that is dirty; the seconds that takes.
    pub(super) fn drain(&self) -> Result<f64> {
        let start = Instant::now();
        self.rig.command(&["drain", DEVICE])?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// All bytes of the device.
    pub(super) fn content(&self) -> Result<Vec<u8>> {
        let (uri, copy) = (self.uri()?, self.rig.disk.0.join("copy"));
        let status = Command::new("nbdcopy").arg(uri).arg(&copy).status();
        ensure!(status.context("nbdcopy cannot be started")?.success(), "nbdcopy {uri} failed");
        let content = fs::read(&copy)?;
        fs::remove_file(&copy)?;
        Ok(content)
    }

    fn uri(&self) -> Result<&str> {
        self.contender.target.iter().find_map(|word| word.strip_prefix("--uri=")).context("its address")
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let stopped = self.rig.command(&["stop", DEVICE]);
        let child = self.contender.child.as_mut().expect("a server has one");
        match stopped.map(|()| child.wait()) {
            Ok(Ok(status)) if status.success() => {}
            Err(why) => eprintln!("warning: the server is killed: {why}"),
            Ok(ended) => eprintln!("warning: spillway: failed while it stopped ({ended:?})"),
        }
    }
}

/// librbd in fio.
fn librbd(name: &'static str, image: &str, conf: PathBuf) -> Contender {
    let words = ["--ioengine=rbd", "--clientname=admin", "--pool=rbd"];
    let mut target: Vec<String> = words.map(String::from).to_vec();
    target.push(format!("--rbdname={image}"));
    Contender { name, child: None, target, ceph_conf: Some(conf), takes: |_| true }
}

/// The address of an image as our origin.
pub(super) fn address(image: &str) -> PathBuf {
    format!("rbd:rbd/{image}").into()
}

pub(super) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is text")
}
