//! What the server of another user may have root's commands do: nothing but what that user could do itself. Each test is a trick of such
//! a server against `sudo spillway`. As root.

use spillway_tests::script_of_root;

/// A server of a few lines: it answers the line of a listing by rows with the file that it is given, and all else by "done"; or as it
/// is told.
const LIAR: &str = r#"
liar=$(cat << 'LIAR'
import json, os, socket, sys
path, kind, text = sys.argv[1:4]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path + ".new")
listener.listen(8)
os.rename(path + ".new", path)
row = {"name": "ram0", "stack": "zram", "disksize": 16 << 20, "read_only": False, "clients": 0, "exports": [text]}
listed = {"v": 2, "result": {"devices": [row]}}
while True:
    client, _ = listener.accept()
    for line in client.makefile():
        op = json.loads(line)["op"]
        try:
            if kind == "endless":
                while True: client.sendall(b"x" * 65536)
            elif kind == "refuses" and op != "list":
                answer = {"v": 2, "error": {"errno": "EBUSY", "code": 16, "message": text}}
            else:
                answer = listed if op == "list" else {"v": 2, "result": "done"}
            client.sendall((json.dumps(answer) + "\n").encode())
        except OSError:
            break
LIAR
)
"#;

/// Root's belongings: a server with an attached device whose file system is mounted, a loop device over a plain file with another one,
/// and a tmpfs. `intact` says whether they are all there; `expect WORDS COMMAND...` that a command is refused so.
const STAGE: &str = r#"
set -eu
mount -t tmpfs -o mode=755 none /run
mount --bind "$1" /tmp
folder=/tmp spillway=/tmp/program
user="setpriv --reuid=65534 --regid=65534 --clear-groups"
run=$folder/spillway-65534 root=$folder/root liars= loop= plain=
chown 0:0 "$folder"
chmod 711 "$folder"
mkdir "$root" "$root/mnt" "$root/data" "$root/plain" "$root/tmpfs" "$root/files" "$root/files/ram0" "$run"
chown 65534:65534 "$run"
chmod 700 "$run"
end() {
    trap - EXIT
    cat "$folder"/*.log "$folder/refusal" >&2 || true
    umount "$root/data" "$root/plain" "$root/tmpfs" || true
    for loop in $loop $plain; do losetup --detach "$loop" || true; done
    for id in $liars $servers; do kill "$id" || true; done
}
trap end EXIT
"$spillway" ram --name ram0 --size 16M --mount "$root/mnt" > "$folder/root.log" 2>&1 & servers=$!
until test -e "$folder/spillway-0/ram0.ctl"; do kill -0 $servers; sleep 0.05; done
"$spillway" attach ram0 --via loop --mkfs ext4 "$root/data" > "$folder/loop"
loop=$(cat "$folder/loop")
truncate --size 16M "$root/files/ram0/disk"
plain=$(losetup --find --show "$root/files/ram0/disk")
mkfs.ext4 -q "$plain"
mount "$plain" "$root/plain"
mount -t tmpfs none "$root/tmpfs"
mv "$folder/spillway-0/ram0.ctl" "$folder/spillway-0/mine.ctl"
export SUDO_UID=65534
lie() {
    $user rm -f "$run/ram0.ctl"
    $user /usr/bin/python3 -c "$liar" "$run/ram0.ctl" "$1" "$2" > "$folder/liar.log" 2>&1 & liars="$liars $!"
    until test -e "$run/ram0.ctl"; do kill -0 $!; sleep 0.02; done
}
intact() {
    for place in data plain tmpfs; do
        grep -q " $root/$place " /proc/self/mountinfo || { echo "$place was unmounted: $1"; exit 1; }
    done
    test -e "/sys/block/${loop#/dev/}/loop/backing_file" || { echo "the loop device is gone: $1"; exit 1; }
    test "$(blockdev --getsize64 "$loop")" = 16777216 || { echo "it was resized: $1"; exit 1; }
    test -e "/sys/block/${plain#/dev/}/loop/backing_file" || { echo "the other loop device is gone: $1"; exit 1; }
}
expect() {
    words=$1; shift
    if timeout 50 "$@" > "$folder/said" 2> "$folder/refusal"; then echo "it was done: $*"; exit 1; fi
    grep -q -- "$words" "$folder/refusal" || { echo "it was refused otherwise: $*"; exit 1; }
    intact "$*"
}
nothing_happens_at() {
    lie rows "$1"
    expect "$2" "$spillway" detach ram0
    expect "$2" "$spillway" attach ram0 --via loop
    "$spillway" resize ram0 32M
    intact "resize with $1"
}
"#;

fn play(trick: &str) {
    script_of_root(&[LIAR, STAGE, trick].concat());
}

#[test]
fn a_path_that_leads_into_the_mount_of_root_by_a_link_is_not_followed() {
    play(
        r#"
        $user ln -s "$root/mnt" "$run/way"
        nothing_happens_at "$run/way/ram0/disk" "spillway: "
        "#,
    );
}

#[test]
fn the_path_of_roots_own_mount_is_refused() {
    play(r#"nothing_happens_at "$root/mnt/ram0/disk" "spillway: ""#);
}

#[test]
fn a_plain_file_under_a_loop_device_of_root_is_refused() {
    play(r#"nothing_happens_at "$root/files/ram0/disk" "is not the file of a server of user 65534""#);
}

#[test]
fn a_path_with_dots_is_refused_in_paths_and_in_names() {
    play(
        r#"
        nothing_happens_at "$run/../root/files/ram0/disk" "is not the file of a server of user 65534"
        expect "not allowed" "$spillway" detach ../spillway-0/ram0
        expect "not allowed" "$spillway" resize ../spillway-0/mine 1G
        "#,
    );
}

#[test]
fn a_mount_of_root_that_is_bound_elsewhere_is_refused() {
    play(
        r#"
        mkdir "$folder/bound"
        mount --bind "$root/mnt" "$folder/bound"
        nothing_happens_at "$folder/bound/ram0/disk" "spillway: "
        umount "$folder/bound"
        "#,
    );
}

/// A loop device over the file of the user is the user's; one over another file of that name is not.
#[test]
fn a_loop_device_over_another_file_is_left_alone() {
    play(
        r#"
        $user "$spillway" ram --name ram0 --size 16M --mount "$folder/mnt" > "$folder/user.log" 2>&1 & servers="$servers $!"
        until grep -q " $folder/mnt " /proc/self/mountinfo; do kill -0 $!; sleep 0.05; done
        lie rows "$folder/mnt/ram0/disk"
        expect "is not attached" "$spillway" detach ram0
        mkdir "$folder/own"
        "$spillway" attach ram0 --via loop --mkfs ext4 "$folder/own" > "$folder/said"
        own=$(cat "$folder/said")
        # Another test may get the device as soon as it is free.
        is_own() { test "$(cat "/sys/block/${own#/dev/}/loop/backing_file")" = "$folder/mnt/ram0/disk"; }
        is_own
        grep " $folder/own " /proc/self/mountinfo | grep nosuid | grep -q nodev || { echo "programs of root's"; exit 1; }
        mount -t tmpfs "$own" "$folder/fuse" 2> "$folder/refusal" || mount -t tmpfs "$own" "$root/files"
        "$spillway" detach ram0
        grep -q " $root/files " /proc/self/mountinfo || { echo "a file system with the name of the device was unmounted"; exit 1; }
        umount "$root/files"
        intact "detach of the user's own"
        ! is_own 2> "$folder/refusal"
        "#,
    );
}

#[test]
fn a_socket_of_another_user_is_not_believed() {
    play(
        r#"
        $user ln -s "$folder/spillway-0/mine.ctl" "$run/ram0.ctl"
        expect "user 0 answers, not user 65534" "$spillway" resize ram0 32M
        expect "spillway: " "$spillway" attach ram0 --via loop
        $user rm "$run/ram0.ctl"
        mkdir "$folder/other"
        chown 1234:1234 "$folder/other"
        setpriv --reuid=1234 --regid=1234 --clear-groups /usr/bin/python3 -c "$liar" "$folder/other/ram0.ctl" rows /none > "$folder/liar.log" 2>&1 & liars="$liars $!"
        until test -e "$folder/other/ram0.ctl"; do kill -0 $!; sleep 0.02; done
        mv "$folder/other/ram0.ctl" "$run/ram0.ctl"
        expect "user 1234 answers, not user 65534" "$spillway" resize ram0 32M
        expect "spillway: " "$spillway" attach ram0 --via loop
        "#,
    );
}

#[test]
fn an_answer_without_end_has_one() {
    play(
        r#"
        lie endless /none
        ulimit -v 4000000
        expect "longer than 4194304 bytes" "$spillway" resize ram0 32M
        expect "no server has a device" "$spillway" detach ram0
        "#,
    );
}

#[test]
fn a_terminal_gets_words_and_no_commands() {
    play(
        r#"
        escape=$(printf 'a\033]0;title\007\302\2332J')
        lie refuses "$escape"
        expect 'a\\u001b\]0;title\\u0007\\u009b2J' "$spillway" resize ram0 32M
        lie rows "/$escape/ram0/disk"
        expect 'spillway: ' "$spillway" detach ram0
        $user touch "$run/$escape.ctl"
        expect 'no server has a device' "$spillway" detach other
        if grep -q "$(printf '\033')" "$folder/refusal"; then echo "a command got through"; exit 1; fi
        "#,
    );
}

/// The path leads to the user's own mount and to root's, in turn, as fast as it can.
#[test]
fn a_path_that_changes_all_the_time_leads_to_nothing_of_roots() {
    play(
        r#"
        $user "$spillway" ram --name ram0 --size 16M --mount "$folder/mnt" > "$folder/user.log" 2>&1 & servers="$servers $!"
        until grep -q " $folder/mnt " /proc/self/mountinfo; do kill -0 $!; sleep 0.05; done
        lie rows "$run/way/ram0/disk"
        swap='import os, sys
while True:
    for place in sys.argv[2:]:
        os.symlink(place, sys.argv[1] + ".new"); os.rename(sys.argv[1] + ".new", sys.argv[1])'
        $user /usr/bin/python3 -c "$swap" "$run/way" "$folder/mnt" "$root/mnt" "$root/files" > "$folder/swap.log" 2>&1 & liars="$liars $!"
        until test -e "$run/way"; do sleep 0.02; done
        for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
            "$spillway" attach ram0 --via loop --shared > "$folder/said" 2> "$folder/refusal" || true
            "$spillway" resize ram0 32M 2> "$folder/refusal" || true
            "$spillway" detach ram0 > "$folder/said" 2> "$folder/refusal" || true
            intact "round $round"
        done
        kill $!
        $user rm -f "$run/way"
        $user ln -s "$folder/mnt" "$run/way"
        "$spillway" detach ram0 2> "$folder/refusal" || grep -q "is not attached" "$folder/refusal"
        "#,
    );
}

/// A user may take over its processes, with all that they have open. This one would have root's loop device.
#[test]
fn no_process_of_the_user_holds_a_device_of_roots() {
    play(
        r#"
        $user "$spillway" ram --name ram0 --size 16M --mount "$folder/mnt" > "$folder/user.log" 2>&1 & server=$!
        servers="$servers $server"
        until grep -q " $folder/mnt " /proc/self/mountinfo; do kill -0 $!; sleep 0.05; done
        lie rows "$folder/mnt/ram0/disk"
        look='import os, sys, time
while True:
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            for name in os.listdir(f"/proc/{process}/fd"):
                if os.readlink(f"/proc/{process}/fd/{name}").startswith("/dev/loop"): open(sys.argv[1], "w").close()
        except OSError: pass'
        $user /usr/bin/python3 -c "$look" "$run/found" > "$folder/look.log" 2>&1 & liars="$liars $!"
        kill -STOP $server
        "$spillway" attach ram0 --via loop > "$folder/said" & attach=$!
        mount -t fusectl none /sys/fs/fuse/connections 2> "$folder/refusal" || true
        number=$(grep " $folder/mnt " /proc/self/mountinfo | cut -d ' ' -f 3)
        waiting=/sys/fs/fuse/connections/${number#0:}/waiting
        until test "$(cat "$waiting")" != 0; do kill -0 $attach; sleep 0.05; done
        kill -CONT $server
        wait $attach
        "$spillway" resize ram0 32M
        "$spillway" detach ram0
        test ! -e "$run/found" || { echo "the user has had a device of root's open"; exit 1; }
        "#,
    );
}
