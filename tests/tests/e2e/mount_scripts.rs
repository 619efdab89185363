//! Shell scripts over a mount: the kernel's guide to zram, and what an ordinary user types. As root: loop devices and
//! namespaces need it.

use std::fs;
use std::sync::Arc;

use spillway_tests::{Launch, Scratch, script_of_root, script_of_user, tool};

/// The sequence of the kernel's guide to zram, with lz4 for lzo and files of the mount for those of sysfs and the device: algorithm,
/// size, limits, swap and a file system, statistics, compaction, reset, hot add and remove, write-back; and the errno of each wrong word.
const KERNEL_SESSION: &str = r#"
set -eu
zram=$1/zram disk=$1/disk place=$2
control=${1%/*}/zram-control devices=${1%/*}
fails() { if (eval "$2") 2> "$place.err"; then echo "$2 succeeded"; exit 1; fi; grep -q "$1" "$place.err" || { cat "$place.err"; exit 1; }; }
test "$(cat $zram/initstate)" = 0
cat $zram/comp_algorithm | grep -q "\[lz4\] lz4hc zstd deflate $"
echo 2 > $zram/max_comp_streams
test "$(cat $zram/max_comp_streams)" = 2
fails "Invalid argument" "echo bogus > $zram/comp_algorithm"
echo zstd > $zram/comp_algorithm
cat $zram/comp_algorithm | grep -q "\[zstd\]"
test -z "$(cat $zram/recomp_algorithm)"
echo "algo=lz4hc priority=1" > $zram/recomp_algorithm
echo "algo=deflate priority=2" > $zram/recomp_algorithm
head -n 1 $zram/recomp_algorithm | grep -q '^#1: lz4 \[lz4hc\] zstd deflate $'
tail -n 1 $zram/recomp_algorithm | grep -q '^#2: lz4 lz4hc zstd \[deflate\] $'
echo "priority=2 level=9 deflate.winbits=-12" > $zram/algorithm_params
fails "Invalid argument" "echo algo=bogus > $zram/recomp_algorithm"
fails "Invalid argument" "echo algo=zstd priority=4 > $zram/recomp_algorithm"
fails "Invalid argument" "echo type=idle > $zram/recompress"
fails "Invalid argument" "echo 0 > $zram/disksize"
fails "No medium found" "cat $disk"
echo 64M > $zram/disksize
test "$(cat $zram/disksize)" = 67108864
test "$(stat -c %s $disk)" = 67108864
test "$(cat $zram/initstate)" = 1
fails "Device or resource busy" "echo 32M > $zram/disksize"
fails "Device or resource busy" "echo lz4 > $zram/comp_algorithm"
fails "Device or resource busy" "echo algo=lz4 > $zram/recomp_algorithm"
echo 32M > $zram/mem_limit
fails "No such device" "echo idle > $zram/writeback"
fails "Device or resource busy" "echo $place.spill > $zram/backing_dev"
fails "Permission denied" "cat $zram/reset"
fails "Permission denied" "echo 1 > $zram/mm_stat"
loop=$(losetup --find --show --direct-io=on $disk)
trap 'umount $place 2>/dev/null || :; losetup --detach $loop 2>/dev/null || :' EXIT
fails "Device or resource busy" "echo 1 > $zram/reset"
/usr/sbin/mkswap $loop > /dev/null
/usr/sbin/mkfs.ext4 -q -F $loop
mount $loop $place
head -c 8388608 /dev/zero | tr '\0' x > $place/file
sync $place/file
test "$(wc -w < $zram/mm_stat)" = 9
test "$(wc -w < $zram/io_stat)" = 4
set -- $(cat $zram/mm_stat)
test "$1" -gt 0 && test "$4" = 33554432
grep -q "version: 1" $zram/debug_stat
test "$(wc -l < $zram/block_state)" -gt 2048
if grep -vE '^ {0,11}[0-9]+ {1,12}[0-9]+[.]000000 [s.][w.][h.][i.][r.][n.]$' $zram/block_state; then exit 1; fi
fails "Invalid argument" "echo type=old > $zram/recompress"
fails "Invalid argument" "echo algo=zstd > $zram/recompress"
echo all > $zram/idle
grep -q ' [.][.].i[.][.]$' $zram/block_state
echo "type=idle algo=deflate max_pages=8" > $zram/recompress
echo "priority=2" > $zram/recompress
test "$(cat $zram/recompressed_pages)" -gt 0
echo 0 > $zram/mem_used_max
echo 1 > $zram/compact
umount $place
losetup --detach $loop
trap - EXIT
for try in 1 2 3 4 5 6 7 8 9; do echo 1 > $zram/reset 2> $place.err && break; sleep 0.2; done
test "$(cat $zram/disksize)" = 0
cat $zram/comp_algorithm | grep -q "\[lz4\]"
test -z "$(cat $zram/recomp_algorithm)"
fails "Permission denied" "echo 1 > $control/hot_add"
fails "Permission denied" "cat $control/hot_remove"
fails "No such device" "echo 1 > $control/hot_remove"
id=$(cat $control/hot_add)
test "$id" = 1
zram=$devices/ram$id/zram disk=$devices/ram$id/disk
test "$(cat $zram/initstate)" = 0
test "$(cat $zram/disksize)" = 0
fails "No medium found" "cat $disk"
fails "Invalid argument" "cat $zram/block_state"
echo zstd > $zram/comp_algorithm
test "$(cat $zram/backing_dev)" = none
fails "No such file or directory" "echo $place/none/spill > $zram/backing_dev"
fails "Block device required" "echo $place > $zram/backing_dev"
fails "Not a directory" "echo $place.err/spill > $zram/backing_dev"
fails "Device or resource busy" "echo $devices/ram0/disk > $zram/backing_dev"
echo off > $zram/writeback_compressed
test "$(cat $zram/compressed_writeback)" = 0
echo y > $zram/compressed_writeback
echo 8 > $zram/writeback_batch_size
echo $place.spill > $zram/backing_dev
test "$(cat $zram/backing_dev)" = $place.spill
echo 64M > $zram/disksize
test "$(stat -c '%s %a' $place.spill)" = "33554432 600"
fails "Device or resource busy" "echo $place.spill > $zram/backing_dev"
test -z "$(cat $zram/block_state)"
loop=$(losetup --find --show --direct-io=on $disk)
trap 'umount $place 2>/dev/null || :; losetup --detach $loop 2>/dev/null || :' EXIT
/usr/sbin/mkfs.ext4 -q -F $loop
mount $loop $place
head -c 1048576 /dev/urandom > $place/file
sync $place/file
fails "Device or resource busy" "echo $id > $control/hot_remove"
fails "Numerical result out of range" "echo page_index=16384 > $zram/writeback"
echo 100 > $zram/writeback_limit
echo 1 > $zram/writeback_limit_enable
fails "Input/output error" "echo huge > $zram/writeback"
test "$(cat $zram/writeback_limit)" = 0
test "$(grep -c ' .wh...$' $zram/block_state)" = 100
echo 0 > $zram/writeback_limit_enable
echo all > $zram/idle
echo idle > $zram/writeback
set -- $(cat $zram/bd_stat)
test "$1" -ge 256 && test "$3" -ge "$1"
umount $place
losetup --detach $loop
trap - EXIT
for try in 1 2 3 4 5 6 7 8 9; do echo 1 > $zram/reset 2> $place.err && break; sleep 0.2; done
test "$(cat $zram/backing_dev)" = none
test "$(awk '{ print $1 }' $zram/bd_stat)" = 0
echo $place.spill > $zram/backing_dev
echo 32M > $zram/disksize
for try in 1 2 3 4 5 6 7 8 9; do echo $id > $control/hot_remove 2> $place.err && break; sleep 0.2; done
test ! -e $devices/ram$id
fails "No such device" "echo $id > $control/hot_remove"
fails "Invalid argument" "echo -1 > $control/hot_remove"
fails "Invalid argument" "echo ram$id > $control/hot_remove"
test "$(cat $control/hot_add)" = $id
test "$(cat $devices/ram$id/zram/comp_algorithm)" = "[lz4] lz4hc zstd deflate "
echo $id > $control/hot_remove
test "$(ls $devices)" = "ram0
zram-control"
"#;

#[test]
fn a_zram_session_of_the_kernel_runs_unchanged_with_the_path_replaced() {
    let folder = Arc::new(Scratch::new());
    let socket = folder.join("s");
    let launch = Launch::new(&["ram"], folder, socket.clone()).with("--socket", socket).mounted();
    let server = launch.start();
    let place = Scratch::new();
    let device = server.file("ram0").parent().expect("a folder").to_owned();
    let arguments =
        ["-c", KERNEL_SESSION, "sh", device.to_str().expect("text"), place.path().to_str().expect("text")];
    let said = tool::run("bash", &arguments);
    ["err", "spill"].iter().for_each(|name| _ = fs::remove_file(place.path().with_extension(name)));
    said.well();
}

/// What an ordinary user types, in a mount namespace of its own: mount, use, see that it is used, stop.
const UNPRIVILEGED: &str = r#"
set -eu
folder=$1 spillway=$2
trap 'cat "$folder"/log "$folder"/refusal >&2' EXIT
export SPILLWAY_RUNTIME_DIR=$folder
"$spillway" ram --size 16M --mount "$folder/mnt" --background > "$folder/log" 2>&1
disk=$folder/mnt/ram0/disk
grep -q "$folder/mnt .*fuse.spillway" /proc/self/mountinfo
head -c 1000001 /dev/urandom > "$folder/data"
dd if="$folder/data" of="$disk" bs=64K conv=notrunc status=none
head -c 1000001 "$disk" | cmp - "$folder/data"
exec 7< "$disk"
if "$spillway" stop ram0 2> "$folder/refusal"; then echo "stopped under an open file"; exit 1; fi
grep -q "is in use" "$folder/refusal"
exec 7<&-
"$spillway" stop ram0
! grep -q "$folder/mnt " /proc/self/mountinfo
"#;

/// Root attaches, through sudo, what an ordinary user has mounted, and cannot look into.
const ATTACHED: &str = r#"
set -eu
folder=$1 spillway=$2
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/user/65534
chown 65534:65534 /run/user/65534
trap 'cat "$folder"/log >&2' EXIT
user="setpriv --reuid=65534 --regid=65534 --clear-groups"
$user "$spillway" ram --name lent0 --size 16M --mount "$folder/mnt" --background > "$folder/log" 2>&1
if ls "$folder/mnt" 2> "$folder/refusal"; then echo "root looks into the mount"; exit 1; fi
export SUDO_UID=65534
loop=$("$spillway" attach lent0 --via loop)
if $user cat "$folder/mnt/lent0/disk" 2> "$folder/refusal"; then echo "it is not held"; exit 1; fi
head -c 1000000 /dev/urandom > "$folder/data"
dd if="$folder/data" of="$loop" bs=64K conv=fsync,notrunc status=none
"$spillway" resize lent0 32M
test "$(blockdev --getsize64 "$loop")" = 33554432
"$spillway" detach lent0
test ! -e "/sys/block/${loop#/dev/}/loop/backing_file"
chmod 644 "$folder/data"
$user head -c 1000000 "$folder/mnt/lent0/disk" | cmp - "$folder/data"
unset SUDO_UID
$user "$spillway" stop lent0
"#;

/// The mount of an ordinary user is gone, and another file lies in its place: the one client of the device is another.
const REPLACED: &str = r#"
set -eu
folder=$1 spillway=$2
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/user/65534
chown 65534:65534 /run/user/65534
disk=$folder/mnt/lent0/disk
let_go() { losetup --noheadings --output NAME --associated "$disk" | while read -r loop; do losetup --detach "$loop"; done; }
trap 'cat "$folder"/log "$folder"/refusal >&2; let_go' EXIT
user="setpriv --reuid=65534 --regid=65534 --clear-groups"
$user "$spillway" ram --name lent0 --size 16M --mount "$folder/mnt" --background > "$folder/log" 2>&1
$user fusermount3 -u "$folder/mnt"
$user mkdir "$folder/mnt/lent0"
$user truncate --size 16M "$disk"
mkfifo "$folder/orders"
stay='import nbd, sys; client = nbd.NBD(); client.connect_uri(sys.argv[1]); open(sys.argv[2], "w").close(); sys.stdin.read()'
/usr/bin/python3 -c "$stay" "nbd+unix:///lent0?socket=/run/user/65534/spillway/lent0.sock" "$folder/connected" < "$folder/orders" &
exec 8> "$folder/orders"
until test -e "$folder/connected"; do kill -0 $!; sleep 0.05; done
export SUDO_UID=65534
if "$spillway" attach lent0 --via loop 2> "$folder/refusal"; then echo "another file is attached"; exit 1; fi
grep -q "is not the file of a server of user 65534" "$folder/refusal"
exec 8>&-
wait
unset SUDO_UID
$user "$spillway" stop lent0
"#;

/// Two servers of a user, made before and after the system made the folder of its session, and root. Whatever a shell says of folders,
/// all are the same user's.
const NAMES: &str = r#"
set -eu
folder=$1 spillway=$2
mount -t tmpfs -o mode=755 none /run
user="setpriv --reuid=65534 --regid=65534 --clear-groups"
clean() {
    $user "$spillway" stop early || true
    $user "$spillway" stop late || true
    rmdir /tmp/spillway-65534 || true
}
trap 'cat "$folder"/log "$folder"/refusal >&2; clean' EXIT
$user "$spillway" ram --name early --size 16M --background > "$folder/log" 2>&1
mkdir -p /run/user/65534
chown 65534:65534 /run/user/65534
$user env XDG_RUNTIME_DIR="$folder" TMPDIR="$folder" "$spillway" ram --name late --size 16M --background >> "$folder/log" 2>&1
test -e /run/user/65534/spillway/late.ctl
for shell in "XDG_RUNTIME_DIR=$folder" "XDG_RUNTIME_DIR=/run/user/65534" "TMPDIR=$folder" "XDG_RUNTIME_DIR="; do
    test "$($user env "$shell" "$spillway" ls --json | grep -c '"name": "\(early\|late\)"')" = 2
    for name in early late; do
        $user env "$shell" "$spillway" get "$name" disksize | grep -qx 16777216
        code=0
        $user env "$shell" "$spillway" ram --name "$name" --size 16M --background 2> "$folder/refusal" || code=$?
        test "$code" = 4
        grep -q "device $name is taken" "$folder/refusal"
    done
done
if "$spillway" ls | grep "early\|late"; then echo "root sees what is not its own"; exit 1; fi
export SUDO_UID=65534
test "$("$spillway" ls --json | grep -c '"name": "\(early\|late\)"')" = 2
"$spillway" set early max_comp_streams 3
test "$($user "$spillway" get early max_comp_streams)" = 3
"$spillway" stop late
unset SUDO_UID
mkdir "$folder/own"
chown 65534:65534 "$folder/own"
$user env SPILLWAY_RUNTIME_DIR="$folder/own" "$spillway" ram --name early --size 16M --background >> "$folder/log" 2>&1
$user env SPILLWAY_RUNTIME_DIR="$folder/own" "$spillway" stop early
$user "$spillway" get early disksize | grep -qx 16777216
code=0
$user env SPILLWAY_RUNTIME_DIR=/root "$spillway" ls 2> "$folder/refusal" || code=$?
test "$code" = 2
$user "$spillway" stop early
"#;

#[test]
fn a_user_s_servers_are_the_same_in_every_shell() {
    script_of_root(NAMES);
}

#[test]
fn root_attaches_no_other_file_that_lies_where_a_mount_was() {
    script_of_root(REPLACED);
}

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    script_of_user(UNPRIVILEGED);
}

#[test]
fn root_attaches_through_sudo_what_an_ordinary_user_has_mounted() {
    script_of_root(ATTACHED);
}
