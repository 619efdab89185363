//! The Debian package under a real systemd: installed, started, watched, stopped and rebooted in an [`emulated`](spillway_fixture::emulated) machine.
//!
//! The machine's root is a minimal Debian, made once by mmdebstrap from the archive that apt is configured for, and unpacked anew into an image
//! for each run. `check.sh` runs there as a service, and says what it has found.

mod root;

use spillway_fixture::emulated::{Machine, Recipe, System};

pub use root::Root;

/// What boots before systemd does.
pub const RECIPE: Recipe = Recipe {
    folder: "systemd",
    modules: &["virtio_pci", "virtio_blk", "ext4"],
    programs: &[],
    init: include_str!("init.sh"),
};

/// What the guest says it has passed, before its reboot and after.
const BEFORE: [&str; 11] = [
    "installation",
    "RAM disk",
    "stop that drains for longer than its time",
    "watchdog",
    "restart that keeps the content",
    "socket activation",
    "kernel NBD device over a restart and a resize",
    "kernel NBD device over a kill, and without its server",
    "swap",
    "swap over a signal and a crash",
    "writes before the reboot",
];
const AFTER: [&str; 1] = ["content after the reboot"];

/// Runs the checks; panics at the first that fails.
pub fn run(system: &System, root: &Root) {
    boot(system, root, &BEFORE);
    boot(system, root, &AFTER);
}

fn boot(system: &System, root: &Root, checks: &[&str]) {
    // Its programs want a processor of this century.
    let machine = ["-cpu", "max", "-m", "1024", "-drive", &root.drive()].map(str::to_owned);
    let machine = Machine::boot_with(system, &machine, "systemd.show_status=no");
    for check in checks {
        assert_eq!(machine.says("passed"), *check);
        println!("    {check}");
    }
    machine.ends();
}
