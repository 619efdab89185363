//! No write cache stands on storage that something else of this server uses.
//!
//! Locks refuse most of it when a device is opened, but not a file and a loop device over it, and not in words that help.

use std::path::Path;

use anyhow::Result;
use spillway_io::Footprint;
use spillway_layers::stack::{LayerConfig, OriginConfig, StackConfig};

use crate::exit::Failure;

/// A device by its name, and what it stands on.
pub(crate) type Named<'a> = (&'a str, &'a StackConfig);

/// A use of a path.
struct Use<'a> {
    device: &'a str,
    path: &'a Path,
    cache: bool,
    footprint: Option<Footprint>,
}

/// Refuses a cache that is its own origin, or another device's origin or cache.
pub(crate) fn check<'a>(devices: impl IntoIterator<Item = Named<'a>>) -> Result<()> {
    let uses: Vec<Use> = devices.into_iter().flat_map(uses).collect();
    for (index, one) in uses.iter().enumerate() {
        let same = |other: &&Use| (one.cache || other.cache) && one.is_same(other);
        if let Some(other) = uses[..index].iter().find(same) {
            return Err(Failure::usage(format!(
                "{} ({}) and {} ({}) are the same file or device, or overlap: give each cache one of its own",
                other.path.display(),
                other.role(),
                one.path.display(),
                one.role()
            ))
            .into());
        }
    }
    Ok(())
}

fn uses<'a>((device, StackConfig { origin, layers }): Named<'a>) -> Vec<Use<'a>> {
    let used = |path, cache| Use { device, path, cache, footprint: Footprint::of(path) };
    let mut uses = Vec::new();
    if let OriginConfig::File(file) = origin {
        uses.push(used(file.path.as_path(), false));
    }
    for layer in layers {
        if let LayerConfig::WriteCache(cache) = layer {
            uses.push(used(cache.path.as_path(), true));
        }
    }
    uses
}

impl Use<'_> {
    /// What does not exist is refused when it is opened.
    fn is_same(&self, other: &Self) -> bool {
        let both = self.footprint.as_ref().zip(other.footprint.as_ref());
        self.path == other.path || both.is_some_and(|(one, other)| one.overlaps(other))
    }

    fn role(&self) -> String {
        format!("the {} of {}", if self.cache { "cache" } else { "origin" }, self.device)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::scratch::Scratch;
    use spillway_layers::stack::FileConfig;
    use spillway_layers::write_cache;

    fn device(name: &'static str, origin: PathBuf, cache: Option<PathBuf>) -> (&'static str, StackConfig) {
        let origin = OriginConfig::File(FileConfig { path: origin, ..FileConfig::default() });
        let layer = |path| LayerConfig::WriteCache(write_cache::Config { path, ..Default::default() });
        (name, StackConfig { origin, layers: cache.map(layer).into_iter().collect() })
    }

    fn check(devices: &[(&'static str, StackConfig)]) -> Result<()> {
        super::check(devices.iter().map(|(name, stack)| (*name, stack)))
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
        assert!(check(&[with("none", "none")]).is_err(), "one path, though nothing is there");
        check(&[with("none", "nothing")]).expect("it is refused when it is opened");
    }
}
