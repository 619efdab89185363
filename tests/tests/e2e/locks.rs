//! Files that other programs use: QEMU's tools, and loop devices. As root, for these.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::Signal;
use spillway_tests::{Launch, LoopDevice, Scratch, Server, copy_program, pattern, text, tool, until};

const MIB: usize = 1 << 20;

/// Exit code as documented.
const BUSY: i32 = 4;

/// A program of QEMU that has an image open.
struct Qemu(Child);

impl Qemu {
    fn over(image: &Path, options: &[&str]) -> Self {
        let socket = image.with_extension("qemu");
        let mut command = Command::new("qemu-nbd");
        command.args(["--format=raw", "--persistent", "--socket"]).arg(&socket).args(options).arg(image);
        let child = command.stdin(Stdio::null()).spawn().expect("qemu-utils are there");
        until("qemu-nbd listens", || socket.exists().then_some(()));
        Self(child)
    }

    /// As a refusal names it.
    fn name(&self) -> String {
        format!("in use (qemu-nbd (pid {}))", self.0.id())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn disk(folder: &Arc<Scratch>, name: &str, origin: &Path) -> Launch {
    let launch = Launch::new(&["disk", "--name", name], folder.clone(), folder.join(&format!("{name}.sock")));
    let socket = launch.socket().to_owned();
    launch.with("--origin", origin).with("--socket", socket)
}

fn image(folder: &Scratch, name: &str) -> PathBuf {
    folder.write(name, pattern::random(1, 0, 8 * MIB))
}

fn end(mut server: Server) {
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "{}", server.log());
}

#[test]
fn what_qemu_writes_is_neither_served_nor_an_image() {
    let folder = Arc::new(Scratch::new());
    let (taken, free) = (image(&folder, "taken"), image(&folder, "free"));
    let server = Launch::ram("16M").start();
    let qemu = Qemu::over(&taken, &[]);
    disk(&folder, "writer", &taken).run().refused(BUSY, &qemu.name());
    disk(&folder, "reader", &taken).flag("--read-only").run().refused(BUSY, &qemu.name());
    Launch::cache(folder.clone(), &free, &taken).flag("--create").run().refused(BUSY, &qemu.name());
    Launch::cache(folder.clone(), &taken, &free).flag("--create").run().refused(BUSY, &qemu.name());
    Launch::ram("8M").with("--spill", &taken).run().refused(BUSY, &qemu.name());
    server.spillway(&["load", "ram0", text(&taken)]).refused(BUSY, &qemu.name());
    server.spillway(&["save", "ram0", text(&taken), "--force"]).refused(BUSY, &qemu.name());
    drop(qemu);
    assert!(std::fs::read(&taken).expect("it is there") == pattern::random(1, 0, 8 * MIB), "it was changed");
    server.spillway(&["load", "ram0", text(&taken)]).well();
    end(disk(&folder, "writer", &taken).start());
}

#[test]
fn what_qemu_reads_is_read_and_not_written() {
    let folder = Arc::new(Scratch::new());
    let image = image(&folder, "image");
    let qemu = Qemu::over(&image, &["--read-only"]);
    disk(&folder, "writer", &image).run().refused(BUSY, &qemu.name());
    end(disk(&folder, "reader", &image).flag("--read-only").start());
}

#[test]
fn qemu_refuses_what_a_server_uses_as_far_as_it_does() {
    let folder = Arc::new(Scratch::new());
    let (path, copy) = (folder.join("image"), folder.join("copy"));
    let (path, copy) = (text(&path), text(&copy));
    tool::run("qemu-img", &["create", "-q", "-f", "qcow2", path, "8M"]).well();
    let write = ["-f", "raw", "-c", "write 0 4k", path];
    // Of a raw image qemu-img reads nothing for this, and so locks nothing.
    let read =
        |options: &[&str]| tool::run("qemu-img", &[&["info", "-f", "qcow2"], options, &[path]].concat());
    let convert = || tool::run("qemu-img", &["convert", "-f", "raw", "-O", "raw", path, copy]);
    let writer = disk(&folder, "writer", Path::new(path)).start();
    read(&[]).refused(1, "lock");
    convert().refused(1, "lock");
    tool::run("qemu-io", &write).refused(1, "lock");
    read(&["-U"]).well();
    end(writer);
    let readers = ["one", "two"].map(|name| disk(&folder, name, Path::new(path)).flag("--read-only").start());
    read(&[]).well();
    convert().well();
    tool::run("qemu-io", &write).refused(1, "lock");
    readers.into_iter().for_each(end);
    tool::run("qemu-io", &write).well();
}

/// Mounted or not, the kernel writes to the file when it likes.
#[test]
fn a_file_below_a_loop_device_is_not_served() {
    let folder = Arc::new(Scratch::new());
    let (taken, free) = (image(&folder, "taken"), image(&folder, "free"));
    let device = LoopDevice::over(&taken);
    let name = format!("in use ({})", device.path().display());
    disk(&folder, "writer", &taken).run().refused(BUSY, &name);
    disk(&folder, "reader", &taken).flag("--read-only").run().refused(BUSY, &name);
    Launch::cache(folder.clone(), &free, &taken).flag("--create").run().refused(BUSY, &name);
    Launch::ram("8M").with("--spill", &taken).run().refused(BUSY, &name);
    end(disk(&folder, "writer", device.path()).start());
    drop(device);
    end(disk(&folder, "writer", &taken).start());
}

/// An ordinary user may not ask a loop device what stands behind it, but the system shows everybody its path.
#[test]
fn a_file_below_a_loop_device_is_not_served_for_an_ordinary_user() {
    let folder = Arc::new(Scratch::new());
    let taken = image(&folder, "taken");
    let device = LoopDevice::over(&taken);
    let program = folder.join("program");
    copy_program(&program);
    tool::run("chown", &["-R", "65534:65534", text(folder.path())]).well();
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "env"];
    let place = format!("SPILLWAY_RUNTIME_DIR={}", folder.path().display());
    let words = [text(&program), "disk", "--name", "user", "--origin", text(&taken)];
    let said = tool::run("setpriv", &[&user[..], &[&place], &words].concat());
    said.refused(BUSY, &format!("in use ({})", device.path().display()));
}

/// The file of a loop device may lie where nobody answers. Of other files that need not be asked.
#[test]
fn a_loop_device_over_a_mount_that_hangs_holds_no_server_up() {
    let stopped = Launch::ram("16M").mounted().start();
    let device = stopped.spillway(&["attach", "ram0", "--via", "loop"]).well().out;
    stopped.signal(Signal::STOP);
    let folder = Arc::new(Scratch::new());
    let origin = image(&folder, "image");
    let (started, starts) = std::sync::mpsc::channel();
    let starting = std::thread::spawn(move || {
        end(disk(&folder, "other", &origin).start());
        started.send(()).expect("it is waited for");
    });
    let outcome = starts.recv_timeout(spillway_tests::PATIENCE);
    stopped.signal(Signal::CONT);
    until("it is detached", || (stopped.spillway(&["detach", "ram0"]).code == Some(0)).then_some(()));
    assert!(outcome.is_ok(), "a server waits for {}", device.trim());
    starting.join().expect("it has said so");
}

/// Everybody who may read a folder may lock it for ever.
#[test]
fn the_lock_of_a_folder_holds_no_server_up() {
    let launch = Launch::ram("16M");
    let folder = std::fs::File::open(launch.socket().parent().expect("a folder")).expect("it is ours");
    folder.lock().expect("nobody else has it");
    end(launch.start());
}
