//! What keeps a device busy, in words: its clients, the loop devices over its file, what is mounted there, and programs below a mount.

use std::fs;
use std::path::{Path, PathBuf};

use spillway_core::session::Peer;
use spillway_core::{Error, Kind};
use spillway_io::fuse::{loop_devices_below, mounts_below, places_of};
use spillway_io::nbd_device::{NbdDevice, is_swap};
use spillway_io::processes::look_at_others;
use spillway_io::program_of;

use crate::runtime_folder::RuntimeFolder;
use crate::server::device::Device;

/// Occupants that are named; of further ones the number is said.
const NAMED_MAX: usize = 8;

/// Refuses what clients of `device` are in the way of; `advice` is what to do.
pub(crate) fn refusal(device: &Device, kind: Kind, advice: &str) -> Error {
    let (name, clients) = (device.name(), device.export.clients());
    let state = match clients {
        0 if device.export.is_kept() => {
            let text = format!(
                "device {name} is kept for the block device that it is attached as: spillway attach {name} --reconnect, or spillway detach {name} --force"
            );
            return Error::new(kind, text);
        }
        0 => "being changed".to_owned(),
        1 => format!("a client is connected ({})", in_words(&of(device))),
        _ => format!("{clients} clients are connected ({})", in_words(&of(device))),
    };
    Error::new(kind, format!("device {name}: {state}; {advice}"))
}

/// Who uses a device: its clients, and the loop devices over its file.
fn of(device: &Device) -> Vec<String> {
    let folder = device.file.as_deref().and_then(Path::parent);
    let loops = folder.map(loops_below).unwrap_or_default();
    let mut all: Vec<_> = device.export.peers().into_iter().filter_map(client).collect();
    if all.is_empty() && loops.is_empty() {
        all.push(
            "a program that has ended: spillway attach and nbd-client give their connections to the kernel"
                .to_owned(),
        );
    }
    loops.into_iter().chain(all).collect()
}

/// A client by its address or its program. One that has ended has left its connection to the kernel or to another program.
fn client(peer: Peer) -> Option<String> {
    match peer {
        Peer::Unknown => Some("a program that is not seen from here".to_owned()),
        Peer::Address(address) => Some(address.to_string()),
        Peer::Program(thread) => program_of(thread),
    }
}

/// Loop devices over files below `folder`, with where they are mounted.
pub(crate) fn loops_below(folder: &Path) -> Vec<String> {
    loop_devices_below(folder).iter().map(|device| device_in_words(device)).collect()
}

/// Refuses a device of a server in `folder` that is attached by the kernel's NBD client, with where it is mounted. A connection that the kernel
/// has lost keeps no device busy.
pub(crate) fn expect_detached(device: &Device, folder: &RuntimeFolder) -> Result<(), Error> {
    let attached = NbdDevice::all_of(&folder.backend(device.name()));
    if attached.is_empty() || device.export.clients() == 0 {
        return Ok(());
    }
    let name = device.name();
    let devices: Vec<_> = attached.iter().map(|one| device_in_words(one.path())).collect();
    Err(Error::new(Kind::Busy, format!("{name} is in use: {} (spillway detach {name})", in_words(&devices))))
}

/// Whether the kernel swaps to a device of a server in `folder`, over a connection that it has.
pub(crate) fn is_swap_of(device: &Device, folder: &RuntimeFolder) -> bool {
    let attached = NbdDevice::all_of(&folder.backend(device.name()));
    device.export.clients() > 0 && attached.iter().any(|one| is_swap(one.path()))
}

/// A block device, and where it is mounted.
pub(crate) fn device_in_words(device: &Path) -> String {
    let places: Vec<_> = places_of(device).iter().map(|place| place.display().to_string()).collect();
    let mounted =
        if places.is_empty() { String::new() } else { format!(", mounted at {}", places.join(" and ")) };
    format!("{}{mounted}", device.display())
}

/// What this process can see below `place`, a mount or a device: mounts, and programs that have something there open or run there.
pub(crate) fn below(place: &Path) -> Vec<String> {
    let mounts = mounts_below(place).into_iter().map(|mount| format!("a mount at {}", mount.display()));
    let below = place.to_owned();
    let users = look_at_others(move |process| uses(process, &below).then(|| program_of(process))?);
    mounts.chain(users.map(|(_, program)| program)).collect()
}

/// Whether a process has something below `place` open, as its working folder, or runs it. Asks nothing of the file system there.
fn uses(process: u32, place: &Path) -> bool {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let open = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten().map(|file| file.path());
    let links = ["cwd", "root", "exe"].map(|name| folder.join(name)).into_iter().chain(open);
    links.filter_map(|link| fs::read_link(link).ok()).any(|target| target.starts_with(place))
}

/// Names, each once, and how many there are besides.
pub(crate) fn in_words(all: &[String]) -> String {
    let mut each: Vec<&str> = Vec::new();
    all.iter().for_each(|one| {
        if !each.contains(&one.as_str()) {
            each.push(one)
        }
    });
    let more = each.len().saturating_sub(NAMED_MAX);
    each.truncate(NAMED_MAX);
    let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("{}{rest}", each.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn each_is_named_once_and_of_many_the_number() {
        let all = |count: usize| (0..count).map(|number| format!("p{}", number % 10)).collect::<Vec<_>>();
        assert_eq!(in_words(&all(2)), "p0, p1");
        assert_eq!(in_words(&all(30)), "p0, p1, p2, p3, p4, p5, p6, p7, and 2 more");
        assert_eq!(in_words(&[]), "");
    }

    #[test]
    fn a_client_is_named_by_what_is_known_of_it() {
        let address = "[::1]:7".parse().unwrap();
        assert_eq!(client(Peer::Address(address)).as_deref(), Some("[::1]:7"));
        let own = client(Peer::Program(std::process::id())).expect("it runs");
        assert!(own.ends_with(&format!("(pid {})", std::process::id())), "{own}");
        assert_eq!(client(Peer::Program(u32::MAX)), None);
        assert!(client(Peer::Unknown).is_some());
    }

    #[test]
    fn programs_below_a_folder_are_found_by_what_they_have_open() {
        let scratch = Scratch::new("below");
        scratch.write("folder/file", "");
        let file = fs::File::open(scratch.path().join("folder/file")).unwrap();
        let mut reader = std::process::Command::new("sleep").arg("1000").stdin(file).spawn().unwrap();
        let found = below(&scratch.path().join("folder"));
        let beside = below(&scratch.path().join("fold"));
        reader.kill().unwrap();
        reader.wait().unwrap();
        assert!(found.iter().any(|one| one.ends_with(&format!("(pid {})", reader.id()))), "{found:?}");
        assert!(beside.is_empty(), "{beside:?}");
    }
}
