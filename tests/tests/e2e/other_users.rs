//! Clients of other users: sockets and mounts that are for them, and those that are not. As root.

use spillway_tests::{Launch, script_of_root};

const USAGE: i32 = 2;

/// A server of root; a look for the greeting as user 1234 of a group.
const STAGE: &str = r#"
set -eu
mount -t tmpfs -o mode=755 none /run
mount --bind "$1" /tmp
folder=/tmp spillway=/tmp/program
server=
user="setpriv --reuid=65534 --regid=65534 --clear-groups"
trap 'cat "$folder"/*.log "$folder/refusal" >&2 || true; kill $server || true' EXIT
mkdir "$folder/place"
greets() {
    setpriv --reuid=1234 --regid="$1" --clear-groups /usr/bin/python3 -c '
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
assert client.recv(8) == b"NBDMAGIC"' "$socket" 2> "$folder/refusal"
}
greets_not() {
    if greets "$1"; then echo "group $1 got in"; exit 1; fi
    grep -q PermissionError "$folder/refusal"
}
start() {
    "$spillway" ram --size 16M "$@" > "$folder/server.log" 2>&1 & server=$!
    until "$spillway" get ram0 disksize > "$folder/said" 2>&1; do kill -0 $server; sleep 0.05; done
}
stop() { "$spillway" stop ram0; wait $server; server=; }
"#;

fn play(script: &str) {
    script_of_root(&[STAGE, script, "\ntrap - EXIT\n"].concat());
}

#[test]
fn a_socket_is_for_its_group_where_that_is_asked_for_whatever_the_umask() {
    play(
        r#"
        for mask in 000 022 077; do
            umask $mask
            socket=$folder/place/$mask.sock
            start --socket "$socket" --socket-mode 0660 --socket-group 4711
            for round in 1 2; do
                test "$(stat -c '%a %u %g' "$socket")" = "660 0 4711"
                greets 4711
                greets_not 1234
                test "$(stat -c %a "$folder/spillway-0/ram0.ctl") $(stat -c %a "$folder/spillway-0")" = "600 700"
                kill -KILL $server
                wait $server || true
                test -e "$socket"
                start --socket "$socket" --socket-mode 660 --socket-group 4711
            done
            stop
            start --socket "$socket"
            test "$(stat -c '%a %u %g' "$socket")" = "600 0 0"
            greets_not 4711
            stop
            start --socket "$socket" --socket-mode 666
            greets 1234
            stop
            test ! -e "$socket"
        done
        "#,
    );
}

/// A device that is added is found at the same socket, by a file of `serve` too.
#[test]
fn devices_of_one_socket_have_its_rights() {
    play(
        r#"
        socket=$folder/place/all.sock
        printf 'socket = "%s"\nsocket_mode = "0660"\nsocket_group = "4711"\nmount = "%s"\n[[device]]\nname = "ram0"\norigin = { kind = "zram", disksize = "16M" }\n' \
            "$socket" "$folder/mnt" > "$folder/serve.toml"
        "$spillway" serve "$folder/serve.toml" > "$folder/server.log" 2>&1 & server=$!
        until test -e "$folder/mnt/zram-control/hot_add"; do kill -0 $server; sleep 0.05; done
        id=$(cat "$folder/mnt/zram-control/hot_add")
        echo 1M > "$folder/mnt/ram$id/zram/disksize"
        setpriv --reuid=1234 --regid=4711 --clear-groups nbdinfo --size "nbd+unix:///ram$id?socket=$socket" | grep -q 1048576
        greets_not 1234
        kill $server
        wait $server
        server=
        # Another place is another matter.
        "$spillway" serve "$folder/serve.toml" --listen 127.0.0.1:0 > "$folder/server.log" 2>&1 & server=$!
        until "$spillway" get ram0 disksize > "$folder/said" 2>&1; do kill -0 $server; sleep 0.05; done
        test ! -e "$socket"
        stop
        "#,
    );
}

#[test]
fn a_group_that_cannot_be_given_ends_the_start_and_leaves_no_socket() {
    play(
        r#"
        socket=$folder/place/a.sock
        chown 65534 "$folder/place"
        if timeout 30 $user "$spillway" ram --size 16M --socket "$socket" --socket-mode 0660 --socket-group root 2> "$folder/refusal"; then
            echo "it was given"; exit 1
        fi
        grep -q "cannot have mode 0660 and group 0: Operation not permitted" "$folder/refusal"
        test ! -e "$socket"
        test ! -e "$folder/spillway-65534/ram0.ctl"
        "#,
    );
}

#[test]
fn what_is_no_mode_no_group_or_for_no_socket_is_refused_before_anything_is_served() {
    let launch = Launch::ram("16M");
    for mode in ["", "0", "660x", "+660", "066", "0800", "1660", "07777", "0466", "6666666666666"] {
        launch.clone().with("--socket-mode", mode).run().refused(USAGE, "0600 to 0777");
    }
    for group in ["", "no such group", "4294967295", "a\nb"] {
        launch.clone().with("--socket-group", group).run().refused(USAGE, "there is no group");
    }
    launch.clone().flag("--allow-other").run().refused(USAGE, "give mount DIR");
    assert!(!launch.socket().exists(), "something was served");
    let folder = std::sync::Arc::new(spillway_tests::Scratch::new());
    let own = folder.join("spillway/ram0.sock");
    let plain = Launch::new(&["ram", "--size", "16M", "--socket-mode", "0660"], folder, own.clone());
    plain.run().refused(USAGE, "closed to others");
    plain.with("--socket", &own).run().refused(USAGE, "closed to others");
}

#[test]
fn a_mount_is_for_other_users_where_that_is_asked_for() {
    play(
        r#"
        other="setpriv --reuid=1234 --regid=1234 --clear-groups"
        disk=$folder/mnt/ram0/disk
        chmod 755 "$folder"
        start --socket "$folder/place/a.sock" --mount "$folder/mnt"
        if $other ls "$folder/mnt" 2> "$folder/refusal"; then echo "another user looks in"; exit 1; fi
        stop
        start --socket "$folder/place/a.sock" --mount "$folder/mnt" --allow-other
        head -c 100000 /dev/urandom > "$folder/bytes"
        chmod 644 "$folder/bytes"
        $other dd if="$folder/bytes" of="$disk" conv=notrunc status=none
        $other head -c 100000 "$disk" | cmp - "$folder/bytes"
        test "$($other cat "$folder/mnt/ram0/zram/disksize")" = 16777216
        for file in ram0/zram/mem_limit ram0/zram/reset zram-control/hot_remove; do
            if $other sh -c "echo 1 > '$folder/mnt/$file'" 2> "$folder/refusal"; then echo "another user wrote $file"; exit 1; fi
            grep -q "Permission denied" "$folder/refusal"
        done
        if $other cat "$folder/mnt/zram-control/hot_add" 2> "$folder/refusal"; then echo "another user added a device"; exit 1; fi
        stop
        start --socket "$folder/place/a.sock" --mount "$folder/mnt" --allow-other --read-only
        $other head -c 100 "$disk" > "$folder/said"
        if $other dd if="$folder/bytes" of="$disk" conv=notrunc status=none 2> "$folder/refusal"; then echo "it was written"; exit 1; fi
        stop
        "#,
    );
}

/// Who may let others in is a matter of the system's.
#[test]
fn a_user_lets_others_into_a_mount_where_the_system_allows_that() {
    play(
        r#"
        chmod 755 "$folder"
        : > "$folder/fuse.conf"
        chmod 644 "$folder/fuse.conf"
        mount --bind "$folder/fuse.conf" /etc/fuse.conf
        serve="$user $spillway ram --size 16M --mount $folder/mnt --allow-other"
        if timeout 30 $serve > "$folder/server.log" 2> "$folder/refusal"; then echo "it was allowed"; exit 1; fi
        grep -q "user_allow_other.*/etc/fuse.conf" "$folder/refusal"
        if grep -q " $folder/mnt " /proc/self/mountinfo; then echo "it was mounted"; exit 1; fi
        echo user_allow_other > "$folder/fuse.conf"
        $serve --background > "$folder/server.log" 2>&1
        setpriv --reuid=1234 --regid=1234 --clear-groups head -c 100 "$folder/mnt/ram0/disk" > "$folder/said"
        head -c 100 "$folder/mnt/ram0/disk" | cmp - "$folder/said"
        $user "$spillway" stop ram0
        umount /etc/fuse.conf
        "#,
    );
}
