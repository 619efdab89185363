//! The file of `spillway serve`: TOML, unknown keys refused.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Deserialize;
use spillway_core::size;
use spillway_layers::stack::{LayerConfig, OriginConfig};

use crate::exit::Failure;
use crate::server_options::{Driver, POLL_US_MAX};

/// The documented example.
const EXAMPLE: &str = include_str!("../../../docs/serve-example.toml");

/// Help of `spillway serve`: an example that can be copied.
pub(crate) fn help() -> String {
    format!("The file is TOML. An example that can be copied:\n\n{}", EXAMPLE.trim_end())
}

/// Everything that a file may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Budget of the server.
    #[serde(default, deserialize_with = "memory")]
    pub(crate) memory: Option<u64>,
    /// How system calls are made.
    pub(crate) driver: Option<Driver>,
    /// Threads that serve clients.
    pub(crate) workers: Option<NonZeroUsize>,
    /// Microseconds for which a worker looks for news before it sleeps.
    #[serde(default, deserialize_with = "poll_us")]
    pub(crate) poll_us: Option<u16>,
    /// One unix socket for all devices.
    pub(crate) socket: Option<PathBuf>,
    /// One TCP address for all devices.
    pub(crate) listen: Option<String>,
    /// Folder below which the devices are shown as files.
    pub(crate) mount: Option<PathBuf>,
    /// The devices.
    #[serde(default, rename = "device")]
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
    /// Where the data lives.
    pub(crate) origin: OriginConfig,
    /// What stands on it, bottom up.
    #[serde(default)]
    pub(crate) layers: Vec<LayerConfig>,
}

/// A whole number of bytes, or text such as `"4G"`.
fn memory<'a, D: serde::Deserializer<'a>>(source: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "memory is no size: give a whole number of bytes, or text such as \"4G\"")]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Size::deserialize(source)? {
        Size::Bytes(bytes) => Ok(Some(bytes)),
        Size::Text(text) => size::parse(&text)
            .map(Some)
            .map_err(|error| serde::de::Error::custom(format!("memory: {}", error.message()))),
    }
}

/// At most what the option allows.
fn poll_us<'a, D: serde::Deserializer<'a>>(source: D) -> Result<Option<u16>, D::Error> {
    match u16::deserialize(source)? {
        micros @ 0..=POLL_US_MAX => Ok(Some(micros)),
        micros => {
            let text = format!("poll_us = {micros} is too long: give 0 to {POLL_US_MAX} microseconds");
            Err(serde::de::Error::custom(text))
        }
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
            self.socket.is_none() || self.listen.is_none(),
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
        let full = ["[[", "name =", "origin =", "layers ="]
            .iter()
            .fold(EXAMPLE.to_owned(), |text, key| text.replace(&format!("# {key}"), key));
        assert_eq!(read(&full).unwrap().devices.len(), 5);
        let socket = EXAMPLE.replace("# socket", "socket");
        assert!(read(&socket).unwrap().socket.is_some());
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
            ("memory = \"lots\"", "memory: size \"lots\""),
            ("memory = true", "memory is no size"),
            ("poll_us = 1001", "0 to 1000 microseconds"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("c.toml"), "{text}: {error}");
        }
    }
}
