//! Scripts in which an ordinary user, nobody, has servers and mounts beside root.

use std::fs;
use std::path::Path;

use crate::{Scratch, binary, tool};

/// In a new mount namespace, unmounts what the folder `$1` does not hold of all that tests have mounted: a copy keeps its disk busy
/// when its own test has unmounted it.
pub const WITHOUT_OTHERS: &str = r#"
mounts=$(cat /proc/self/mounts)
while read -r _ other _; do
    case $other in
        "$1"/*) ;;
        */spw-*) umount --lazy --internal-only --no-canonicalize "$other" 2> /dev/null || true ;;
    esac
done << MOUNTS
$mounts
MOUNTS
"#;

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
    copy_program(&program);
    let (place, program) = (folder.path().to_str().expect("text"), program.to_str().expect("text"));
    tool::run("chown", &["-R", "65534:65534", place]).well();
    let namespace = [WITHOUT_OTHERS, NAMESPACE, who].concat();
    let script = ["sh", "-c", &namespace, "sh", place, program, script];
    tool::run("unshare", &[&["--mount", "--propagation", "slave"], &script[..]].concat()).well();
}

/// A copy of the program for users who may not reach it. By another program: what another test starts meanwhile would have a file of this one
/// open, and a program that is open for writing does not run.
pub fn copy_program(to: &Path) {
    tool::run("cp", &[binary::path(), to]).well();
}
