//! Scripts in which an ordinary user, nobody, has servers and mounts beside root.

use std::fs;

use crate::{Scratch, binary, tool};

/// Where nobody has set up devices, /dev/fuse is for root alone; everywhere else it is for all.
const NAMESPACE: &str = r#"
set -eu
mknod "$1/fuse" c 10 229
chmod 666 "$1/fuse"
mount --bind "$1/fuse" /dev/fuse
"#;

const USER: &str = r#"exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c "$3" sh "$1" "$2""#;
const ROOT: &str = r#"exec sh -c "$3" sh "$1" "$2""#;

/// Runs a script of that user, in a mount namespace in which it may mount. The script gets a folder that is the user's, with a
/// folder `mnt` in it, and the program.
pub fn script_of_user(script: &str) {
    run(USER, script);
}

/// The same as root.
pub fn script_of_root(script: &str) {
    run(ROOT, script);
}

fn run(who: &str, script: &str) {
    tool::run("fusermount3", &["--version"]).well();
    let folder = Scratch::new();
    fs::create_dir(folder.join("mnt")).expect("the folder is ours");
    // What this user may not reach is copied to where it may.
    let program = folder.join("program");
    fs::copy(binary::path(), &program).expect("a copy");
    let (place, program) = (folder.path().to_str().expect("text"), program.to_str().expect("text"));
    tool::run("chown", &["-R", "65534:65534", place]).well();
    let namespace = format!("{NAMESPACE}{who}");
    let script = ["sh", "-c", &namespace, "sh", place, program, script];
    tool::run("unshare", &[&["--mount", "--propagation", "slave"], &script[..]].concat()).well();
}
