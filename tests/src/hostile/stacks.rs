//! The stacks that ship, each as a server that a round attacks.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::door::Door;
use super::web::Rights;
use super::{Chance, Size, machine};
use crate::{Launch, Scratch, text};

const MIB: u64 = 1 << 20;

/// Bytes of the write cache and of the file behind it: writes find it full before long.
const CACHE: u64 = 48 * MIB;
const ORIGIN: u64 = 1 << 30;

/// What a stack promises of data when its server is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    Nothing,
    /// What a flush has covered.
    Flushed,
    /// What was acknowledged.
    Acknowledged,
}

/// A stack by name.
pub struct Stack {
    /// How it is called on the command line.
    pub name: &'static str,
    build: fn(Setting) -> Target,
}

/// What every stack is built in.
struct Setting {
    folder: Arc<Scratch>,
    memory: u64,
    chance: Chance,
}

/// A server to attack, with what its clients need to know.
pub(super) struct Target {
    pub(super) launch: Launch,
    /// The budget in bytes.
    pub(super) memory: u64,
    /// Bytes of a file that is mapped and may be resident besides.
    pub(super) mapped: u64,
    pub(super) exports: Vec<Export>,
    /// Where its NBD clients come in.
    pub(super) door: Door,
    /// What its clients over HTTP may do, where there are any.
    pub(super) web: Option<Rights>,
    /// Where the first of them is served by vhost-user.
    pub(super) guest: PathBuf,
    /// What lies outside the folder of the server.
    _elsewhere: Option<Scratch>,
}

/// A device of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Export {
    pub(super) name: &'static str,
    /// In bytes.
    pub(super) size: u64,
    pub(super) keeps: Keeps,
    /// Bytes of which each part of a write is there whole or not at all when the server was killed before a flush.
    pub(super) unit: usize,
}

/// All of them.
pub const STACKS: &[Stack] = &[
    Stack { name: "ram-lz4", build: |setting| ram(setting, "lz4") },
    Stack { name: "ram-zstd", build: |setting| ram(setting, "zstd") },
    Stack { name: "disk", build: |setting| disk(setting, "none") },
    Stack { name: "disk-cached", build: |setting| disk(setting, "writeback") },
    Stack { name: "cache-s", build: received_cache },
    Stack { name: "cache-p", build: mapped_cache },
    Stack { name: "cache-committed", build: |setting| cache(setting, "committed", Keeps::Acknowledged) },
    Stack { name: "serve", build: serve },
    Stack { name: "tls-required", build: |setting| protected(setting, "required", |s| ram(s, "lz4")) },
    Stack { name: "tls-optional", build: |setting| protected(setting, "optional", received_cache) },
    Stack { name: "http-socket", build: |setting| with_http(setting, Rights::All, serve) },
    Stack { name: "http-port", build: |setting| with_http(setting, Rights::Look, |s| disk(s, "writeback")) },
    Stack { name: "http-token", build: |setting| with_http(setting, token(), received_cache) },
];

impl Stack {
    /// The stack called `name`.
    pub fn find(name: &str) -> Option<&'static Self> {
        STACKS.iter().find(|stack| stack.name == name)
    }

    /// The command that repeats a round.
    pub fn repeat(&self, seed: u64, size: Size) -> String {
        let short = if size == Size::SHORT { " --size short" } else { "" };
        format!("cargo xtask hostile --rounds 1 --stack {} --seed {seed}{short}", self.name)
    }

    /// A server of this stack, of a size that `chance` draws.
    pub(super) fn target(&self, chance: &mut Chance) -> Target {
        let memory = chance.pick(&[48 * MIB, 64 * MIB, 128 * MIB]);
        let setting = Setting { folder: Arc::new(Scratch::new()), memory, chance: chance.fork() };
        let mut target = (self.build)(setting);
        target.launch = target.launch.with("--memory", memory.to_string());
        target
    }
}

impl Setting {
    /// A file of `len` bytes that takes no room yet.
    fn file(&self, name: &str, len: u64) -> PathBuf {
        let path = self.folder.join(name);
        sparse(&path, len);
        path
    }

    fn guest(&self) -> PathBuf {
        self.folder.join("guest.sock")
    }

    /// The one device of a server, for machines too.
    fn over_one(self, launch: Launch, export: Export) -> Target {
        let launch = launch.with("--vhost-user", self.guest());
        self.over(launch, vec![export])
    }

    fn over(self, launch: Launch, exports: Vec<Export>) -> Target {
        let (door, guest) = (Door::plain(launch.socket()), self.guest());
        let (memory, mapped) = (self.memory, machine::MEMORY);
        Target { launch, memory, mapped, exports, door, web: None, guest, _elsewhere: None }
    }
}

impl Export {
    const fn new(name: &'static str, size: u64, keeps: Keeps) -> Self {
        Self { name, size, keeps, unit: 4096 }
    }
}

fn sparse(path: &std::path::Path, len: u64) {
    let made = File::create(path).and_then(|file| file.set_len(len));
    made.unwrap_or_else(|why| panic!("cannot create {}: {why}", path.display()));
}

fn ram(mut setting: Setting, algorithm: &str) -> Target {
    let (text, size) = setting.chance.pick(&[("1G", 1 << 30), ("64G", 64 << 30), ("4T", 4 << 40)]);
    let socket = setting.folder.join("ram.sock");
    let launch = Launch::new(&["ram", "--size", text], setting.folder.clone(), socket.clone());
    let launch = launch.with("--socket", socket).with("--algorithm", algorithm);
    setting.over_one(launch, Export::new("", size, Keeps::Nothing))
}

fn disk(setting: Setting, page_cache: &str) -> Target {
    let origin = setting.file("origin", ORIGIN);
    let launch = Launch::disk(setting.folder.clone(), &origin).with("--page-cache", page_cache);
    setting.over_one(launch, Export::new("", ORIGIN, Keeps::Flushed))
}

fn cache(mut setting: Setting, ack: &str, keeps: Keeps) -> Target {
    let (origin, cache) = (setting.file("origin", ORIGIN), setting.file("cache", CACHE));
    let launch = Launch::cache(setting.folder.clone(), &origin, &cache).with("--ack", ack);
    let block = setting.chance.pick(&["512", "4096", "4096", "65536"]);
    // A commit covers the blocks that are there: of a write that is under way, some.
    let unit = if block == "512" { 512 } else { 4096 };
    let export = Export { unit, ..Export::new("", ORIGIN, keeps) };
    setting.over_one(launch.with("--block-size", block), export)
}

fn received_cache(setting: Setting) -> Target {
    cache(setting, "received", Keeps::Flushed)
}

/// What `build` makes, with TLS.
fn protected(setting: Setting, tls: &str, build: fn(Setting) -> Target) -> Target {
    let folder = setting.folder.clone();
    let target = build(setting);
    let door = Door::with_tls(target.launch.socket(), &folder);
    let launch = target.launch.with("--tls-certificates", folder.path()).with("--tls", tls);
    Target { launch, door, ..target }
}

/// What `build` makes, with clients over HTTP that may do so much.
fn with_http(setting: Setting, rights: Rights, build: fn(Setting) -> Target) -> Target {
    let folder = setting.folder.clone();
    let target = build(setting);
    let launch = match &rights {
        Rights::All => target.launch.with("--http", format!("unix:{}", text(&folder.join("http")))),
        Rights::Look => target.launch.with("--http", "127.0.0.1:0"),
        Rights::Token(token) => {
            let file = folder.write("token", token);
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("the file is ours");
            target.launch.with("--http", "127.0.0.1:0").with("--http-token-file", file)
        }
    };
    Target { launch, web: Some(rights), ..target }
}

fn token() -> Rights {
    Rights::Token("0123456789abcdef0123".into())
}

/// On tmpfs, where stores are durable, or on the file system of temporary files, where msync is.
fn mapped_cache(mut setting: Setting) -> Target {
    let elsewhere = setting.chance.one_in(2).then(Scratch::on_tmpfs);
    let origin = setting.file("origin", ORIGIN);
    let cache = elsewhere.as_ref().unwrap_or(&setting.folder).join("cache");
    sparse(&cache, CACHE);
    let launch = Launch::cache(setting.folder.clone(), &origin, &cache).with("--mode", "p");
    let target = setting.over_one(launch, Export::new("", ORIGIN, Keeps::Flushed));
    Target { mapped: target.mapped + CACHE, _elsewhere: elsewhere, ..target }
}

/// Two devices in one budget: a slow one in RAM, and a write cache over a slow file.
fn serve(setting: Setting) -> Target {
    let (origin, cache) = (setting.file("origin", ORIGIN), setting.file("cache", CACHE));
    let text = format!(
        r#"
        [[device]]
        name = "slow"
        vhost_user = "{}"
        origin = {{ kind = "zram", disksize = "1G" }}
        layers = [
            {{ kind = "rate", bytes_per_second = "400M", seek_us = 100 }},
            {{ kind = "delay", read_us = 500, write_us = 500, flush_us = 5000, jitter_percent = 50 }},
            {{ kind = "trace" }},
        ]
        [[device]]
        name = "cached"
        origin = {{ kind = "file", path = "{}" }}
        layers = [{{ kind = "delay", write_us = 1000, flush_us = 5000 }}, {{ kind = "write_cache", path = "{}" }}]
        "#,
        setting.guest().display(),
        origin.display(),
        cache.display()
    );
    let launch = Launch::serve(setting.folder.clone(), text);
    let exports =
        vec![Export::new("slow", 1 << 30, Keeps::Nothing), Export::new("cached", ORIGIN, Keeps::Flushed)];
    setting.over(launch, exports)
}
