//! What a server is asked to serve, whichever command or file asked.

use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result};
use spillway_io::SocketAccess;
use spillway_layers::page_cache::Mode;
use spillway_layers::stack::{LayerConfig, OriginConfig, StackConfig};
use spillway_layers::{limits, page_cache, zram};

use crate::cli::config::Config;
use crate::cli::distinct;
use crate::cli::naming::{self, Naming, check_template, numbered};
use crate::cli::paths;
use crate::cli::place;
use crate::cli::server_options::{ServerConfig, ServerOptions};
use crate::cli::{
    CacheOptions, DiskOptions, PageCacheMode, PageCacheOptions, RamOptions, ReachOptions, ServeOptions,
};
use crate::exit::Failure;
use crate::runtime_folder::{RuntimeFolder, check_name};

/// A server to be.
#[derive(Debug)]
pub(crate) struct ServerPlan {
    /// What is asked of the server, with paths that are absolute.
    pub(crate) server: ServerConfig,
    /// The devices, at least one, with distinct names.
    pub(crate) devices: Vec<DevicePlan>,
}

/// A device to be.
#[derive(Debug)]
pub(crate) struct DevicePlan {
    /// Checked name, in which a '%' stands for a number to come.
    pub(crate) name: String,
    /// The other names and lists of it.
    pub(crate) naming: Naming,
    /// Whether clients may only read.
    pub(crate) read_only: bool,
    /// Origin and layers.
    pub(crate) stack: StackConfig,
    /// What a crash may take of it.
    pub(crate) limits: limits::Config,
    /// Where a virtual machine monitor finds it, if anywhere.
    pub(crate) guest: Option<GuestPlan>,
    /// The options of the command line that they come from, from the origin up; none where they stand in a file.
    pub(crate) names: &'static [&'static str],
}

/// Where a virtual machine monitor finds a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestPlan {
    /// The socket, by absolute path.
    pub(crate) path: PathBuf,
    /// Whether a guest may go on after the content was lost.
    pub(crate) accept_empty: bool,
}

impl GuestPlan {
    /// What is asked for by the options of a command, or the keys of a file.
    fn new(path: Option<PathBuf>, accept_empty: bool) -> Result<Option<Self>> {
        let path =
            path.map(absolute).transpose().context("cannot resolve the path of the vhost-user socket")?;
        if path.is_none() && accept_empty {
            let words = "vhost_user_accept_empty is for a vhost-user socket: give vhost_user PATH too";
            return Err(Failure::usage(words.to_owned()).into());
        }
        Ok(path.map(|path| Self { path, accept_empty }))
    }
}

impl DevicePlan {
    /// A compressed RAM disk without a size, as devices begin that are added while their server runs.
    pub(crate) fn added(name: String) -> Self {
        let stack = alone(OriginConfig::Zram(zram::Config::default()));
        let (naming, limits) = (Naming::default(), limits::Config::default());
        Self { name, naming, read_only: false, stack, limits, guest: None, names: &["zram"] }
    }

    /// Puts its number in the place of the '%' in its names.
    pub(crate) fn take_number(&mut self, number: u32) {
        self.name = numbered(&self.name, number);
        assert!(!self.name.contains('%'), "device {} has another number to come", self.name);
        self.naming.take_number(number);
    }

    /// Whether it takes a share of the memory that it finds.
    pub(crate) fn takes_what_is_left(&self) -> bool {
        self.stack.layers.iter().any(|layer| match layer {
            LayerConfig::PageCache(config) => config.page_cache_bytes_max.is_none(),
            _ => false,
        })
    }
}

impl ServerPlan {
    fn new(mut server: ServerConfig, mut devices: Vec<DevicePlan>) -> Result<Self> {
        paths::resolve(&mut server, devices.iter_mut().map(|device| &mut device.stack))?;
        let plan = Self { server, devices };
        plan.check()?;
        assert!(!plan.devices.is_empty(), "a plan serves no device");
        Ok(plan)
    }

    /// Whether devices may be added while the server runs: to one of compressed RAM disks.
    pub(crate) fn adds(&self) -> bool {
        self.devices.iter().any(|device| matches!(device.stack.origin, OriginConfig::Zram(_)))
    }

    /// Second names of the devices.
    pub(crate) fn aliases(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().filter_map(|device| Some(device.naming.alias.as_ref()?.name.as_str()))
    }

    fn guests(&self) -> impl Iterator<Item = &GuestPlan> {
        self.devices.iter().filter_map(|device| device.guest.as_ref())
    }

    fn check(&self) -> Result<()> {
        // Only the command line, which has one, may leave the number open.
        match &self.devices[..] {
            [device] if !device.names.is_empty() => check_template(&device.name)?,
            devices => devices.iter().try_for_each(|device| check_name(&device.name))?,
        }
        naming::check(self.devices.iter().map(|device| (device.name.as_str(), &device.naming)))?;
        self.check_layers().and_then(|()| self.check_storage()).and_then(|()| self.check_others())
    }

    /// Refuses what other users are to have of something that there will not be.
    fn check_others(&self) -> Result<()> {
        if self.server.allow_other && self.server.mount.is_none() {
            return Err(Failure::usage("allow_other is for a mount: give mount DIR too".to_owned()).into());
        }
        self.server.socket_access(self.guests().next().is_some()).map(drop)
    }

    fn check_layers(&self) -> Result<()> {
        self.devices.iter().try_for_each(|device| {
            let checked = device.stack.check();
            checked.map_err(|error| {
                Failure::usage(format!("device {}: {}", device.name, error.message())).into()
            })
        })
    }

    fn check_storage(&self) -> Result<()> {
        if let Some(mount) = &self.server.mount {
            let storage: Vec<_> =
                self.devices.iter().flat_map(|device| device.stack.backing_devices()).collect();
            place::check_place(mount, storage.iter().map(|backing| backing.path.as_path()))?;
        }
        distinct::check(self.devices.iter().map(|device| (device.name.as_str(), &device.stack)))
    }

    /// Refuses a socket for others in the runtime folder `folder`, and a mount over the server's sockets, there or where they are asked
    /// for: no client would find them.
    pub(crate) fn check_sockets(&self, folder: &RuntimeFolder) -> Result<()> {
        let SocketAccess { mode, group } = self.server.socket_access(self.guests().next().is_some())?;
        let sockets =
            || self.server.socket.as_deref().into_iter().chain(self.guests().map(|guest| &*guest.path));
        for socket in sockets() {
            // Its folder stays closed to others, whatever they may do with the socket.
            let others = mode & 0o077 != 0 || group.is_some();
            if others && socket.parent() == Some(folder.path()) {
                let text = format!(
                    "{} lies in the runtime folder, which is closed to others: give a socket in another folder for a socket_mode or socket_group",
                    socket.display()
                );
                return Err(Failure::usage(text).into());
            }
        }
        let Some(mount) = &self.server.mount else { return Ok(()) };
        place::check_place(mount, [folder.path()].into_iter().chain(sockets().filter_map(Path::parent)))
    }

    /// What `spillway ram` asks for.
    pub(crate) fn ram(options: RamOptions) -> Result<Self> {
        let (name, read_only) = (options.server.named(options.name, "ram"), options.read_only);
        let stack = alone(OriginConfig::Zram(options.zram.config()));
        let device = DevicePlan { read_only, stack, ..DevicePlan::added(name) };
        Self::one(device, options.reach, options.server)
    }

    /// What `spillway disk` asks for.
    pub(crate) fn disk(options: DiskOptions) -> Result<Self> {
        let file = options.file.config();
        let (name, read_only) = (options.server.named(options.name, "disk"), file.read_only);
        let layers = paged(options.page_cache, PageCacheMode(Some(Mode::Writeback)))?.into_iter().collect();
        let stack = StackConfig { origin: OriginConfig::File(file), layers };
        let (limits, names) = (options.limits.config(), &["--origin", "--page-cache"]);
        let device = DevicePlan { read_only, stack, limits, names, ..DevicePlan::added(name) };
        Self::one(device, options.reach, options.server)
    }

    /// What `spillway cache` asks for.
    pub(crate) fn cache(options: CacheOptions) -> Result<Self> {
        let mut file = options.file.config();
        // What is cached is written back, whatever clients may do.
        let read_only = std::mem::take(&mut file.read_only);
        let origin = OriginConfig::File(file);
        let paged = paged(options.page_cache, PageCacheMode(None))?;
        let layers = [LayerConfig::WriteCache(options.cache.config())].into_iter().chain(paged).collect();
        let stack = StackConfig { origin, layers };
        let (limits, names) = (options.limits.config(), &["--origin", "--cache", "--page-cache"]);
        let name = options.server.named(options.name, "cache");
        let device = DevicePlan { read_only, stack, limits, names, ..DevicePlan::added(name) };
        Self::one(device, options.reach, options.server)
    }

    /// Serves one device, whose clients reach it as its command says.
    fn one(device: DevicePlan, reach: ReachOptions, server: ServerOptions) -> Result<Self> {
        let naming = Naming::new(reach.hidden, reach.read_only_name, reach.read_only_name_hidden)?;
        let guest = GuestPlan::new(reach.vhost_user, reach.vhost_user_accept_empty)?;
        Self::new(server.config(), vec![DevicePlan { naming, guest, ..device }])
    }

    /// What a file asks for; the command line overrides it.
    pub(crate) fn serve(options: ServeOptions) -> Result<Self> {
        let config = Config::read(&options.config)?;
        let guests = config.devices.iter().any(|device| device.vhost_user.is_some());
        let devices = config.devices.into_iter().map(|device| {
            Ok(DevicePlan {
                naming: Naming::new(device.hidden, device.read_only_name, device.read_only_name_hidden)?,
                guest: GuestPlan::new(device.vhost_user, device.vhost_user_accept_empty)?,
                name: device.name,
                read_only: device.read_only,
                stack: StackConfig { origin: device.origin, layers: device.layers },
                limits: device.limits,
                names: &[],
            })
        });
        Self::new(options.server.over(config.server, guests), devices.collect::<Result<_>>()?)
    }
}

/// The page cache that is asked for, or else `preset`, if that is one.
fn paged(options: PageCacheOptions, preset: PageCacheMode) -> Result<Option<LayerConfig>> {
    match options.page_cache.unwrap_or(preset) {
        PageCacheMode(Some(mode)) => {
            Ok(Some(LayerConfig::PageCache(page_cache::Config { mode, ..options.config.config() })))
        }
        PageCacheMode(None) if options.config.gives("page_cache_bytes_max") => {
            let words =
                "--page-cache-bytes-max is for a page cache: give --page-cache writeback or writethrough too";
            Err(Failure::usage(words.to_owned()).into())
        }
        PageCacheMode(None) => Ok(None),
    }
}

fn alone(origin: OriginConfig) -> StackConfig {
    StackConfig { origin, layers: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::server_options::Driver;
    use crate::cli::{Cli, Command};
    use crate::scratch::Scratch;
    use clap::Parser;

    fn plan(line: &str) -> Result<ServerPlan> {
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Ram(options) => ServerPlan::ram(options),
            Command::Disk(options) => ServerPlan::disk(options),
            Command::Cache(options) => ServerPlan::cache(options),
            Command::Serve(options) => ServerPlan::serve(options),
            other => panic!("{other:?} serves nothing"),
        }
    }

    #[test]
    fn options_become_attributes() {
        let plan = plan("spillway ram --size 1G --algorithm zstd --streams 3 --memory 64M").unwrap();
        let OriginConfig::Zram(zram) = &plan.devices[0].stack.origin else { panic!("not zram") };
        assert_eq!((zram.disksize, zram.comp_algorithm), (1 << 30, "zstd"));
        assert_eq!((zram.max_comp_streams, plan.server.memory), (3, Some(64 << 20)));
        assert_eq!((plan.devices[0].name.as_str(), plan.server.driver), ("ram0", Driver::Auto));
    }

    #[test]
    fn paths_are_resolved_while_the_working_folder_is_known() {
        let line = "spillway disk --origin image.raw --socket s --read-only --http unix:h --tls-certificates c \
                    --origin-tls-certificates o --ceph-conf f --ceph-keyring k";
        let plan = plan(line).unwrap();
        assert!(plan.server.http.unwrap().starts_with("unix:/"));
        assert!(plan.server.tls_certificates.unwrap().is_absolute());
        let OriginConfig::File(file) = &plan.devices[0].stack.origin else { panic!("not a file") };
        assert!(file.path.is_absolute() && file.read_only && plan.devices[0].read_only);
        for path in [&file.tls_certificates, &file.ceph_conf, &file.ceph_keyring] {
            assert!(path.as_ref().is_some_and(|path| path.is_absolute()), "{path:?}");
        }
        assert!(plan.server.socket.unwrap().is_absolute());
        let ram = self::plan("spillway ram --size 1G --spill s").unwrap();
        let OriginConfig::Zram(zram) = &ram.devices[0].stack.origin else { panic!("not zram") };
        assert!(zram.spill.as_ref().is_some_and(|path| path.is_absolute() && path.ends_with("s")));
    }

    #[test]
    fn paths_in_a_file_are_resolved_too_but_for_what_is_no_path() {
        let scratch = Scratch::new("plan-paths");
        let cached = "origin = { kind = \"file\", path = \"o\" }\n\
                      layers = [{ kind = \"write_cache\", path = \"c\" }]";
        let spilled = "origin = { kind = \"zram\", disksize = \"1G\", spill = \"s\" }";
        let remote = "origin = { kind = \"file\", path = \"nbd://host/x\" }";
        let devices = [("a", cached), ("b", spilled), ("c", remote)];
        let text = devices.map(|(name, origin)| format!("[[device]]\nname = \"{name}\"\n{origin}\n"));
        scratch.write("c.toml", &text.concat());
        let plan = plan(&format!("spillway serve {}/c.toml", scratch.path().display())).unwrap();
        let backing = plan.devices.iter().flat_map(|device| device.stack.backing_devices());
        let found: Vec<_> = backing.map(|backing| (backing.role, backing.path.is_absolute())).collect();
        assert_eq!(found, [("origin", true), ("cache", true), ("spill", true), ("origin", false)]);
    }

    #[test]
    fn a_cache_stands_on_its_origin() {
        let line = "spillway cache --origin o --cache c --block-size 512 --high-watermark 80 --max-age 9";
        let asked = plan(line).unwrap();
        let [LayerConfig::WriteCache(config)] = &asked.devices[0].stack.layers[..] else {
            panic!("no cache")
        };
        assert!(config.path.is_absolute() && config.path.ends_with("c"));
        assert_eq!((config.block_size, config.high_watermark), (512, 80));
        assert_eq!((config.low_watermark, config.max_age), (45, Some(9)));
        assert_eq!(asked.devices[0].name, "cache0");
        assert!(plan("spillway cache --origin /a --cache /a").is_err());
    }

    #[test]
    fn a_disk_has_a_page_cache_unless_none_is_asked_for_and_a_cache_one_that_is() {
        let layers = |line: &str| plan(line).map(|plan| plan.devices[0].stack.layers.clone());
        assert!(layers("spillway disk --origin o --page-cache none").unwrap().is_empty());
        let asked = layers("spillway disk --origin o --page-cache-bytes-max 64M").unwrap();
        let [LayerConfig::PageCache(config)] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!((config.mode, config.page_cache_bytes_max), (Mode::Writeback, Some(64 << 20)));
        let through = "spillway cache --origin o --cache c --ack committed --page-cache writethrough";
        assert!(matches!(
            layers(through).unwrap()[..],
            [LayerConfig::WriteCache(_), LayerConfig::PageCache(_)]
        ));
        let refusal = |line: &str| plan(line).unwrap_err().to_string();
        let committed = refusal("spillway cache --origin o --cache c --ack committed --page-cache writeback");
        assert!(committed.contains("leave one out"), "{committed}");
        let none = "spillway disk --origin o --page-cache none --page-cache-bytes-max 64M";
        assert!(refusal(none).contains("give --page-cache"));
        let cache = layers("spillway cache --origin o --cache c").unwrap();
        assert!(matches!(cache[..], [LayerConfig::WriteCache(_)]), "{cache:?}");
    }

    #[test]
    fn the_command_line_overrides_the_file() {
        let scratch = Scratch::new("plan");
        let device = |name: &str| format!("[[device]]\nname = \"{name}\"\norigin = {{ kind = \"zram\" }}\n");
        scratch.write("c.toml", &format!("memory = \"64M\"\nworkers = 7\nlisten = \"a:1\"\n{}", device("a")));
        let path = scratch.path().display();
        let plan_of = |more: &str| plan(&format!("spillway serve {path}/c.toml {more}"));
        let from_file = plan_of("").unwrap().server;
        assert_eq!((from_file.memory, from_file.workers), (Some(64 << 20), Some(7)));
        assert_eq!((from_file.listen.as_deref(), from_file.poll_us), (Some("a:1"), 100));
        scratch.write("p.toml", &format!("poll_us = 70\n{}", device("a")));
        let look = |more: &str| plan(&format!("spillway serve {path}/p.toml {more}")).unwrap().server.poll_us;
        assert_eq!((look(""), look("--poll-us 0")), (70, 0));
        let overridden = plan_of("--memory 1G --socket /tmp/s").unwrap().server;
        assert_eq!((overridden.memory, overridden.listen), (Some(1 << 30), None));
        scratch.write("c.toml", &format!("{}{}", device("a"), device("a")));
        assert!(plan_of("").unwrap_err().to_string().contains("two devices are named \"a\""));
    }

    #[test]
    fn a_file_may_not_keep_in_memory_what_it_calls_committed() {
        let scratch = Scratch::new("plan-ack");
        let layers = |above: &str| {
            let cache = "{ kind = \"write_cache\", path = \"/c\", ack = \"committed\" }";
            let origin = "origin = { kind = \"file\", path = \"/o\" }";
            let text = format!("[[device]]\nname = \"d\"\n{origin}\nlayers = [{cache}, {above}]\n");
            scratch.write("c.toml", &text);
            plan(&format!("spillway serve {}/c.toml", scratch.path().display())).map(|_| ())
        };
        let refusal = layers("{ kind = \"trace\" }, { kind = \"page_cache\" }").unwrap_err().to_string();
        assert!(
            refusal.contains("device d: ack committed") && refusal.contains("leave one out"),
            "{refusal}"
        );
        layers("{ kind = \"page_cache\", mode = \"writethrough\" }").expect("it commits");
    }

    #[test]
    fn bad_names_are_refused() {
        assert!(plan("spillway ram --name ../x").is_err());
    }
}
