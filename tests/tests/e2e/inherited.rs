//! What a program has from the one that started it.

use std::process::Command;

use spillway_tests::{Launch, Server, binary, tool};

/// What a test that failed has attached goes.
struct Attached<'a>(&'a Server);

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.spillway(&["detach", "ram0"]);
        }
    }
}

/// The kernel then keeps no ends of children for who asks: what was done would look like a failure.
#[test]
fn commands_wait_for_other_programs_though_their_starter_ignores_its_children() {
    let server = Launch::ram("16M").mounted().start();
    let _attached = Attached(&server);
    let run = |arguments: &[&str]| {
        let mut command = Command::new("bash");
        command.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""]).arg(binary::path()).args(arguments);
        tool::finish(command.env("SPILLWAY_RUNTIME_DIR", server.folder().path())).well()
    };
    assert!(run(&["attach", "ram0", "--via", "loop"]).out.contains("/dev/loop"));
    run(&["detach", "ram0"]);
}
