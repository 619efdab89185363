//! Nothing but origins stands on storage that something else of this server uses.
//!
//! Locks refuse most of it when a device is opened, but not a file and a loop device over it, and not in words that help. Nor does anything
//! but an origin stand on a device of the server itself, whose requests would wait for each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use spillway_core::sync::Mutex;
use spillway_core::{Error, Kind, OpenStorage};
use spillway_io::Footprint;
use spillway_layers::open_context::BackingDevice;
use spillway_layers::stack::StackConfig;

use crate::address::{Address, Scheme};
use crate::cli::place::DISK;
use crate::exit::Failure;

/// A device by its name, and what it stands on.
pub(crate) type NamedStack<'a> = (&'a str, &'a StackConfig);

/// A use of a path.
struct Use {
    device: String,
    backing: BackingDevice,
    footprint: Option<Footprint>,
}

/// What the devices of a server have open, and the folder where they are files themselves.
#[derive(Default)]
pub(crate) struct InUse {
    mount: OnceLock<PathBuf>,
    /// Held for a look and a note only: what is opened is noted first.
    uses: Mutex<Vec<Noted>>,
}

/// A use of a path, from before it is opened on.
struct Noted {
    of: Use,
    lives: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Noted {
    /// A use that lasts as long as its `holder`.
    fn new<T: ?Sized + Send + Sync + 'static>(of: Use, holder: &Arc<T>) -> Self {
        let holder = Arc::downgrade(holder);
        Self { of, lives: Box::new(move || holder.strong_count() > 0) }
    }
}

impl InUse {
    /// The server's devices are files below `mount` from now on.
    pub(crate) fn mounted(&self, mount: &Path) {
        assert!(self.mount.set(mount.to_owned()).is_ok(), "a server mounts once");
    }

    /// Has `open` open what a device asks for, while others are opened. [`Kind::Busy`] where that is a cache or a spill file and something
    /// else of this server, or one of its devices.
    pub(crate) fn open(
        &self,
        device: &str,
        backing: &BackingDevice,
        open: impl FnOnce(&BackingDevice) -> Result<OpenStorage, Error>,
    ) -> Result<OpenStorage, Error> {
        let asked = Use::new(device, backing.clone());
        if let Some(served) = self.served().find(|served| asked.stands_on(served)) {
            let text = format!("{} is {}, which this server shows", backing.path.display(), served.display());
            return Err(Error::new(Kind::Busy, text));
        }
        let opening = Arc::new(());
        self.note(asked, &opening)?;
        let opened = open(backing)?;
        // Again: what was made has a footprint of its own now.
        self.uses.lock().push(Noted::new(Use::new(device, backing.clone()), &opened.storage));
        Ok(opened)
    }

    /// Notes a use that is `opening`, or refuses it for another one.
    fn note(&self, asked: Use, opening: &Arc<()>) -> Result<(), Error> {
        let mut uses = self.uses.lock();
        uses.retain(|noted| (noted.lives)());
        let conflicts = |other: &&Noted| asked.conflicts(&other.of) && !asked.follows(&other.of);
        if let Some(other) = uses.iter().find(conflicts) {
            return Err(Error::new(Kind::Busy, asked.refusal(&other.of)));
        }
        uses.push(Noted::new(asked, opening));
        Ok(())
    }

    fn served(&self) -> impl Iterator<Item = PathBuf> {
        let folders =
            self.mount.get().and_then(|mount| fs::read_dir(mount).ok()).into_iter().flatten().flatten();
        folders.map(|folder| folder.path().join(DISK))
    }
}

/// Refuses a cache or a spill file that is anything else of these devices as well. Two origins may be one: locks decide.
pub(crate) fn check<'a>(devices: impl IntoIterator<Item = NamedStack<'a>>) -> Result<()> {
    let uses: Vec<Use> = devices.into_iter().flat_map(uses).collect();
    for (index, one) in uses.iter().enumerate() {
        if let Some(other) = uses[..index].iter().find(|other| one.conflicts(other)) {
            return Err(Failure::usage(one.refusal(other)).into());
        }
    }
    Ok(())
}

fn uses((device, config): NamedStack<'_>) -> Vec<Use> {
    config.backing_devices().into_iter().map(|backing| Use::new(device, backing)).collect()
}

impl Use {
    fn new(device: &str, backing: BackingDevice) -> Self {
        Self { device: device.to_owned(), footprint: Footprint::of(&backing.path), backing }
    }

    /// Whether the two cannot be one. Two origins may: locks decide, where there are any.
    fn conflicts(&self, other: &Self) -> bool {
        match self.is_origin() && other.is_origin() {
            true => self.is_same_export(other),
            false => self.is_same(other),
        }
    }

    /// Whether both are one export of an NBD server, to which one writes again after an outage what the other may have replaced.
    fn is_same_export(&self, other: &Self) -> bool {
        let export = |of: &Self| {
            let nbd = Scheme::of(&of.backing.path) == Scheme::Nbd;
            let parsed = nbd.then(|| Address::parse(&of.backing.path.to_string_lossy()).ok()).flatten();
            // With TLS or without, it is the same export.
            parsed.map(|(address, export)| (address.place, export))
        };
        let read_only = self.backing.read_only && other.backing.read_only;
        !read_only && export(self).is_some_and(|own| export(other) == Some(own))
    }

    /// Whether the other is of the same device, which may be about to let it go: the lock decides.
    fn follows(&self, other: &Self) -> bool {
        self.device == other.device && self.backing.role == other.backing.role
    }

    fn refusal(&self, other: &Self) -> String {
        let what = if self.is_same_export(other) { "export" } else { "file or device, or overlap" };
        format!(
            "{} ({}) and {} ({}) are the same {what}: give {} one of its own",
            other.backing.path.display(),
            other.role(),
            self.backing.path.display(),
            self.role(),
            if self.is_origin() { other.role() } else { self.role() }
        )
    }

    fn stands_on(&self, path: &Path) -> bool {
        let both = self.footprint.as_ref().zip(Footprint::of(path));
        both.is_some_and(|(own, other)| own.overlaps(&other))
    }

    fn is_origin(&self) -> bool {
        self.backing.role == "origin"
    }

    /// A path that cannot be opened is like no other path; it is refused then.
    fn is_same(&self, other: &Self) -> bool {
        let both = self.footprint.as_ref().zip(other.footprint.as_ref());
        self.backing.path == other.backing.path || both.is_some_and(|(one, other)| one.overlaps(other))
    }

    fn role(&self) -> String {
        format!("the {} of {}", self.backing.role, self.device)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc;

    use super::*;
    use crate::scratch::Scratch;
    use spillway_io::FileOptions;
    use spillway_layers::stack::{LayerConfig, OriginConfig};
    use spillway_layers::{file, write_cache};

    #[test]
    fn what_is_open_is_not_opened_as_anything_else_nor_is_a_device_of_the_server() {
        let scratch = Scratch::new("in-use");
        let path = |name: &str| scratch.path().join(name);
        ["a", "b"].into_iter().for_each(|name| scratch.write(name, &"x".repeat(4096)));
        std::os::unix::fs::symlink("a", path("soft")).unwrap();
        fs::create_dir_all(path("mount/ram0")).unwrap();
        fs::hard_link(path("b"), path("mount/ram0/disk")).unwrap();
        let in_use = InUse::default();
        let open_for = |device: &str, role: &'static str, name: &str| {
            let (path, read_only) = (path(name), role == "origin");
            let options = FileOptions { path: path.clone(), read_only, ..FileOptions::default() };
            let backing = BackingDevice { role, path, read_only, ..BackingDevice::default() };
            in_use.open(device, &backing, |_| spillway_io::open(&options))
        };
        let open = |role, name: &str| open_for("x", role, name);
        let refusal = |role, name: &str| match open_for("y", role, name) {
            Err(error) => (error.kind, error.message().to_owned()),
            Ok(_) => panic!("{name} is opened"),
        };
        let spill = open("spill", "a").unwrap();
        for role in ["spill", "origin"] {
            let (kind, words) = refusal(role, "soft");
            assert!(kind == Kind::Busy && words.contains("the spill of x"), "{words}");
        }
        let again = open("spill", "soft").err().expect("it is locked");
        assert!(again.kind == Kind::Busy && !again.message().contains("the spill of x"), "{again}");
        drop(spill);
        let origin = open("origin", "soft").unwrap();
        assert_eq!(refusal("spill", "a").0, Kind::Busy);
        open("origin", "a").expect("locks decide");
        drop(origin);
        open("spill", "b").expect("it is no device yet");
        in_use.mounted(&path("mount"));
        let (kind, words) = refusal("spill", "b");
        assert!(kind == Kind::Busy && words.contains("which this server shows"), "{words}");
        open("spill", "a").unwrap();
    }

    /// What is opened for one device may hang. Others are opened meanwhile, but not the same.
    #[test]
    fn an_opening_that_takes_long_keeps_no_other_from_being_opened() {
        let scratch = Scratch::new("slow");
        ["a", "b"].into_iter().for_each(|name| scratch.write(name, &"x".repeat(4096)));
        let in_use = InUse::default();
        let backing = |name: &str| {
            let path = scratch.path().join(name);
            BackingDevice { role: "spill", path, ..BackingDevice::default() }
        };
        let opened = |backing: &BackingDevice| {
            spillway_io::open(&FileOptions { path: backing.path.clone(), ..FileOptions::default() })
        };
        let ((begun, begins), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
        std::thread::scope(|scope| {
            let (in_use, backing, opened) = (&in_use, &backing, &opened);
            let slow = scope.spawn(move || {
                in_use.open("slow", &backing("a"), |backing| {
                    begun.send(()).unwrap();
                    goes_on.recv().unwrap();
                    opened(backing)
                })
            });
            begins.recv().unwrap();
            drop(in_use.open("quick", &backing("b"), opened).expect("nobody has it"));
            let refused = in_use.open("quick", &backing("a"), |_| panic!("it is being opened"));
            let words = refused.err().expect("it is the other's").message().to_owned();
            assert!(words.contains("the spill of slow"), "{words}");
            go_on.send(()).unwrap();
            assert!(slow.join().unwrap().is_ok());
        });
        let failed = in_use.open("quick", &backing("b"), |_| Err(Error::new(Kind::Io, "broken")));
        assert_eq!(failed.err().map(|error| error.kind), Some(Kind::Io));
        in_use.open("other", &backing("b"), opened).expect("what could not be opened is forgotten");
    }

    fn device(name: &'static str, origin: PathBuf, cache: Option<PathBuf>) -> (&'static str, StackConfig) {
        let origin = OriginConfig::File(file::Config { path: origin, ..file::Config::default() });
        let layer = |path| LayerConfig::WriteCache(write_cache::Config { path, ..Default::default() });
        (name, StackConfig { origin, layers: cache.map(layer).into_iter().collect() })
    }

    fn check(devices: &[(&'static str, StackConfig)]) -> Result<()> {
        super::check(devices.iter().map(|(name, stack)| (*name, stack)))
    }

    #[test]
    fn paths_where_nothing_is_yet_are_compared_too() {
        let scratch = Scratch::new("distinct-new");
        let path = |name: &str| scratch.path().join(name);
        std::fs::create_dir(path("folder")).unwrap();
        std::os::unix::fs::symlink("folder", path("link")).unwrap();
        let with = |name, cache: &str| device(name, path(&format!("origin of {name}")), Some(path(cache)));
        for other in ["folder/new", "link/new", "folder/../link/./new", "no-folder/new"] {
            let first = if other == "no-folder/new" { other } else { "folder/new" };
            let refusal = check(&[with("x", first), with("y", other)]).unwrap_err().to_string();
            assert!(
                refusal.contains("the cache of x") && refusal.ends_with("give the cache of y one of its own"),
                "{refusal}"
            );
        }
        check(&[with("x", "folder/new"), with("y", "folder/newer")]).unwrap();
        check(&[with("x", "folder/new"), with("y", "new")]).unwrap();
    }

    #[test]
    fn an_export_is_the_origin_of_one_device_unless_all_only_read() {
        let over = |name, uri: &str, read_only| {
            let file = file::Config { path: uri.into(), read_only, ..file::Config::default() };
            (name, StackConfig { origin: OriginConfig::File(file), layers: vec![] })
        };
        let pair = |one, other, read_only| check(&[over("x", one, read_only), over("y", other, read_only)]);
        let refusal = pair("nbd://host/a", "nbd://host:10809/%61", false).unwrap_err().to_string();
        assert!(refusal.contains("are the same export"), "{refusal}");
        pair("nbd://host/a", "nbd://host/a", true).expect("they only read");
        pair("nbd://host/a", "nbd://host/b", false).expect("another export");
        pair("rbd:pool/a", "rbd:pool/a", false).expect("the lock decides");
    }

    #[test]
    fn a_cache_is_nothing_else_by_whatever_path() {
        let scratch = Scratch::new("distinct");
        let path = |name: &str| scratch.path().join(name);
        ["a", "b", "c"].into_iter().for_each(|name| scratch.write(name, ""));
        std::fs::hard_link(path("a"), path("hard")).unwrap();
        std::os::unix::fs::symlink("a", path("soft")).unwrap();
        let with = |origin: &str, cache: &str| device("x", path(origin), Some(path(cache)));
        for other in ["a", "hard", "soft"] {
            for devices in [
                vec![with("a", other)],
                vec![with(other, "a")],
                vec![with("b", "a"), with("c", other)],
                vec![device("y", path("a"), None), with("b", other)],
                vec![with("b", "a"), device("y", path(other), None)],
            ] {
                let refusal = check(&devices).unwrap_err().to_string();
                assert!(refusal.contains("the cache of x") && refusal.contains("same file"), "{refusal}");
            }
        }
        check(&[with("a", "b"), device("y", path("c"), None)]).unwrap();
        check(&[device("x", path("a"), None), device("y", path("soft"), None)]).expect("no cache");
        check(&[with("none", "nothing")]).expect("it is refused when it is opened");
    }
}
