//! What a server says when it is ready: one line about itself, then how to reach each device.

use std::fmt::Write;
use std::path::Path;

use spillway_core::size::human;
use spillway_export::control::DeviceRow;

use crate::address::quoted;
use crate::memory::ServerMemory;
use crate::server::device::Device;
use crate::server::endpoints::GUEST_QUEUES;

/// The words for a server with these `devices`, and with its `log` in a file where nobody can see it otherwise.
pub(crate) fn compose(
    devices: &[&Device],
    memory: &ServerMemory,
    workers: usize,
    driver: &str,
    http: Option<&str>,
    log: Option<&Path>,
) -> String {
    let rows: Vec<_> = devices.iter().map(|device| summary(&device.row(), &device.stack.notes)).collect();
    let workers = counted(workers as u64, "worker");
    let mut text = format!(
        "spillway: {}; memory {} ({}); {workers}, {driver}; pid {}\n",
        rows.join(", "),
        human(memory.bytes),
        memory.reason,
        std::process::id()
    );
    devices.iter().for_each(|device| describe(device, &mut text));
    text.extend(http.map(|place| format!("  http: {place}\n")));
    text.extend(log.map(|path| format!("  log: {}\n", path.display())));
    text
}

/// `ram0 4G (zram, lz4, 2 streams)`.
fn summary(row: &DeviceRow, notes: &[String]) -> String {
    let size = if row.disksize == 0 { "without size".to_owned() } else { human(row.disksize) };
    let mut parts = vec![row.stack.clone()];
    parts.extend(row.algorithm.clone());
    parts.extend(row.streams.map(|streams| counted(streams, "stream")));
    parts.extend(row.read_only.then(|| "read-only".to_owned()));
    parts.extend(notes.iter().cloned());
    format!("{} {size} ({})", row.name, parts.join(", "))
}

fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn describe(device: &Device, text: &mut String) {
    let name = device.name();
    let written = if device.export.geometry().size == 0 {
        writeln!(text, "  {name} is exported once it has a size: spillway set {name} disksize 4G")
    } else {
        let commands = device.address.commands(name, "    ");
        writeln!(text, "  {}\n{}", device.address.uri(name), commands.trim_end())
    };
    let alias = device
        .alias()
        .map_or(Ok(()), |alias| writeln!(text, "  {} (for reading only)", device.address.uri(alias)));
    let file = device.file.as_ref().map_or(Ok(()), |path| {
        let path = path.display();
        // A folder of its own: what lies in one that is there would be hidden.
        let folder = format!("/mnt/{name}");
        writeln!(
            text,
            "  {path}\n    sudo mkdir -p {folder}\n    sudo spillway attach {name} --mkfs ext4 {folder}"
        )
    });
    let guest = device.guest.as_ref().map_or(Ok(()), |guest| {
        let path = &guest.plan.path;
        writeln!(text, "  vhost-user:{}\n    {}", path.display(), qemu_command(name, path))
    });
    written.and(alias).and(file).and(guest).expect("writing to a string cannot fail");
}

/// How QEMU takes a device. By itself it wants a queue for each processor of the guest, and refuses one with more than there are.
fn qemu_command(name: &str, socket: &Path) -> String {
    let socket = quoted(&format!("socket,id={name},path={},reconnect=1", socket.display()));
    format!(
        "qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem \\\n      \
         -chardev {socket} -device vhost-user-blk-pci,chardev={name},num-queues={GUEST_QUEUES} ..."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_of_any_size_is_given_as_many_queues_as_there_are() {
        let command = qemu_command("ram0", Path::new("/run/user/1000/ram0.sock"));
        let (_, device) = command.split_once("-device ").expect("it has a device");
        assert_eq!(device, "vhost-user-blk-pci,chardev=ram0,num-queues=16 ...");
        let manual = include_str!("../../../../docs/vhost-user.md");
        assert!(manual.contains(device), "the manual shows another one");
    }

    #[test]
    fn a_device_is_summed_up_in_a_few_words() {
        let row = DeviceRow {
            name: "ram0".into(),
            stack: "zram".into(),
            algorithm: Some("lz4".into()),
            streams: Some(1),
            disksize: 4 << 30,
            ..Default::default()
        };
        assert_eq!(summary(&row, &[]), "ram0 4G (zram, lz4, 1 stream)");
        let file =
            DeviceRow { name: "d".into(), stack: "file".into(), read_only: true, ..Default::default() };
        assert_eq!(
            summary(&file, &["O_DIRECT in blocks of 512".into()]),
            "d without size (file, read-only, O_DIRECT in blocks of 512)"
        );
    }
}
