//! Nothing but origins stands on storage that something else of this server uses.
//!
//! Locks refuse most of it when a device is opened, but not a file and a loop device over it, and not in words that help.

use anyhow::Result;
use spillway_io::Footprint;
use spillway_layers::stack::StackConfig;
use spillway_layers::surroundings::BackingDevice;

use crate::exit::Failure;

/// A device by its name, and what it stands on.
pub(crate) type Named<'a> = (&'a str, &'a StackConfig);

/// A use of a path.
struct Use<'a> {
    device: &'a str,
    backing: BackingDevice,
    footprint: Option<Footprint>,
}

/// Refuses a cache or a spill file that is anything else of these devices as well. Two origins may be one: locks decide.
pub(crate) fn check<'a>(devices: impl IntoIterator<Item = Named<'a>>) -> Result<()> {
    let uses: Vec<Use> = devices.into_iter().flat_map(uses).collect();
    for (index, one) in uses.iter().enumerate() {
        let same = |other: &&Use| !(one.is_origin() && other.is_origin()) && one.is_same(other);
        if let Some(other) = uses[..index].iter().find(same) {
            return Err(Failure::usage(format!(
                "{} ({}) and {} ({}) are the same file or device, or overlap: give {} one of its own",
                other.backing.path.display(),
                other.role(),
                one.backing.path.display(),
                one.role(),
                if one.is_origin() { other.role() } else { one.role() }
            ))
            .into());
        }
    }
    Ok(())
}

fn uses<'a>((device, config): Named<'a>) -> Vec<Use<'a>> {
    let used = |backing: BackingDevice| Use { device, footprint: Footprint::of(&backing.path), backing };
    config.backing_devices().into_iter().map(used).collect()
}

impl Use<'_> {
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

    use super::*;
    use crate::scratch::Scratch;
    use spillway_layers::stack::{LayerConfig, OriginConfig};
    use spillway_layers::{file, write_cache};

    fn device(name: &'static str, origin: PathBuf, cache: Option<PathBuf>) -> (&'static str, StackConfig) {
        let origin = OriginConfig::File(file::Config { path: origin, read_only: false });
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
