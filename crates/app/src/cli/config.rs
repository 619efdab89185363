//! The file of `spillway serve`: TOML, unknown keys refused.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use spillway_layers::limits;
use spillway_layers::options::{Reading, unknown};
use spillway_layers::stack::{LayerConfig, OriginConfig};

use crate::cli::server_options::ServerConfig;
use crate::exit::Failure;

/// The documented example.
const EXAMPLE: &str = include_str!("../../../../docs/serve-example.toml");

/// Help of `spillway serve`: an example that can be copied.
pub(crate) fn help() -> String {
    format!("The file is TOML. An example that can be copied:\n\n{}", EXAMPLE.trim_end())
}

/// Everything that a file may say.
#[derive(Debug)]
pub(crate) struct Config {
    /// What is asked of the server.
    pub(crate) server: ServerConfig,
    /// The devices.
    pub(crate) devices: Vec<DeviceConfig>,
}

/// One device.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceConfig {
    /// Name by which clients and commands find it.
    pub(crate) name: String,
    /// Whether clients may only read.
    #[serde(default)]
    pub(crate) read_only: bool,
    /// Whether NBD clients are not shown its name.
    #[serde(default)]
    pub(crate) hidden: bool,
    /// A second name, by which clients can only read.
    #[serde(default)]
    pub(crate) read_only_name: Option<String>,
    /// Whether they are not shown that.
    #[serde(default)]
    pub(crate) read_only_name_hidden: bool,
    /// Where the data lives.
    pub(crate) origin: OriginConfig,
    /// What stands on it, bottom up.
    #[serde(default)]
    pub(crate) layers: Vec<LayerConfig>,
    /// What a crash may take of it.
    #[serde(default)]
    pub(crate) limits: limits::Config,
    /// Socket for a virtual machine monitor.
    #[serde(default)]
    pub(crate) vhost_user: Option<PathBuf>,
    /// Whether a guest may go on after the content was lost.
    #[serde(default)]
    pub(crate) vhost_user_accept_empty: bool,
}

/// The key of the devices, beside the server's options.
const DEVICE: &str = "device";

impl<'a> Deserialize<'a> for Config {
    fn deserialize<D: Deserializer<'a>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_map(Keys)
    }
}

struct Keys;

impl<'a> Visitor<'a> for Keys {
    type Value = Config;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a description of devices")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Config, A::Error> {
        let (mut server, mut devices) = (Reading::<ServerConfig>::default(), Vec::new());
        while let Some(key) = map.next_key::<String>()? {
            if key == DEVICE {
                devices = map.next_value()?;
            } else if !server.take(&key, &mut map)? {
                map.next_value::<IgnoredAny>()?;
                return Err(A::Error::custom(unknown::<ServerConfig>(&key, &[DEVICE])));
            }
        }
        Ok(Config { server: server.end()?, devices })
    }
}

impl Config {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let refuse = |why: String| Failure::usage(format!("{}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|why| refuse(why.to_string()))?;
        let config: Self = toml::from_str(&text).map_err(|why| refuse(why.to_string()))?;
        config.check().map_err(|error| refuse(error.to_string()))?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        anyhow::ensure!(
            !self.devices.is_empty(),
            "there is no device: add a [[device]] with name and origin"
        );
        anyhow::ensure!(
            self.server.socket.is_none() || self.server.listen.is_none(),
            "both socket and listen are given: leave one out"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn read(text: &str) -> Result<Config> {
        let scratch = Scratch::new("config");
        scratch.write("c.toml", text);
        Config::read(&scratch.path().join("c.toml"))
    }

    #[test]
    fn the_documented_example_is_accepted() {
        let config = read(EXAMPLE).unwrap();
        let names: Vec<_> = config.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["ram0", "scratch", "slow"]);
        assert_eq!(config.devices[2].layers.len(), 2);
    }

    #[test]
    fn every_commented_line_of_the_example_is_accepted_too() {
        let full =
            ["[[", "name =", "origin =", "layers =", "limits =", "vhost_user", "hidden", "read_only_name"]
                .iter()
                .fold(EXAMPLE.to_owned(), |text, key| text.replace(&format!("# {key}"), key));
        let devices = read(&full).unwrap().devices;
        assert_eq!(devices.len(), 6);
        assert!(devices[0].vhost_user.is_some() && devices[0].vhost_user_accept_empty);
        assert!(devices[0].hidden && devices[0].read_only_name.is_some() && devices[0].read_only_name_hidden);
        let socket = EXAMPLE.replace("# socket", "socket");
        assert!(read(&socket).unwrap().server.socket.is_some());
        let both = socket.replace("# listen", "listen");
        assert!(read(&both).unwrap_err().to_string().contains("leave one out"));
    }

    #[test]
    fn mistakes_are_named() {
        let device = "[[device]]\nname = \"a\"\n";
        for (text, part) in [
            ("", "add a [[device]]"),
            ("memroy = 1", "memroy"),
            ("[[device]]\norigin = { kind = \"zram\" }", "name"),
            (device, "origin"),
            (&format!("{device}origin = {{ kind = \"floppy\" }}"), "floppy"),
            (&format!("{device}origin = {{ kind = \"zram\", disk_size = 1 }}"), "disk_size"),
            (&format!("{device}origin = {{ kind = \"zram\" }}\nreadonly = true"), "readonly"),
            ("driver = \"kqueue\"", "io_uring"),
            ("workers = 0", "workers"),
            ("memory = \"lots\"", "memory cannot be \"lots\": give a size from 32M"),
            ("memory = true", "memory cannot be true: give a size from 32M"),
            ("memory = \"16M\"", "memory cannot be 16777216: give a size from 32M"),
            ("poll_us = 1001", "poll_us cannot be 1001: give a whole number from 0 to 1000"),
            ("background = true", "there is no key `background`; there are: `memory`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("c.toml"), "{text}: {error}");
        }
    }
}
