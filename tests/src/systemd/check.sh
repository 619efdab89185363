#!/bin/bash
# Run by systemd in the guest, once after its installation and once after a reboot; says "passed WHAT" or "failed: WHY" on the serial line.
stty -F /dev/ttyS1 raw -echo
exec > /dev/ttyS1 2> /check.log < /dev/null
failed() {
    { tail -n 20 /check.log; journalctl --no-pager --lines=60; } > /dev/ttyS0
    echo "failed: $*"
    systemctl poweroff --force
    exit
}
passed() { echo "passed $*"; }
# Waits for a condition; a busy host is no defect.
until_holds() {
    local deadline=$((SECONDS + 240))
    until eval "$1"; do
        [ $SECONDS -lt $deadline ] || failed "waited in vain: $1"
        sleep 0.2
    done
}
shows() { [ "$(systemctl show --value --property "$2" "$1")" = "$3" ] || failed "$1: $2 is $(systemctl show --value --property "$2" "$1"), not $3"; }
uri() { echo "nbd+unix:///$2?socket=/run/$1/spillway/$2.sock"; }
copy_in() { nbdcopy "$@" || failed "nbdcopy $*"; }
# Whether a device begins with a file.
compare() {
    nbdcopy "$1" - | cmp --bytes="$(stat --format=%s "$2")" - "$2" || failed "$1 does not hold $2"
}
# CODE WORDS COMMAND...: whether a command is refused so.
refused() {
    local code=$1 words=$2 said=0
    shift 2
    "$@" > /said 2>&1 || said=$?
    [ $said = "$code" ] || failed "$* ended with $said, not $code: $(cat /said)"
    grep -q -- "$words" /said || failed "$* was refused otherwise: $(cat /said)"
}
override() { # UNIT, lines of its section Service
    mkdir -p "/etc/systemd/system/$1.d"
    printf '[Service]\n%s\n' "$2" > "/etc/systemd/system/$1.d/check.conf"
    systemctl daemon-reload
}
ours() { journalctl --no-pager --output=cat --unit='spillway*'; }

confined() {
    local pid
    pid=$(systemctl show --value --property MainPID "$1")
    for line in 'Seccomp:.2' 'NoNewPrivs:.1' 'CapEff:.0000000000000000' 'CapBnd:.0000000000000000'; do
        grep -q "^$line$" "/proc/$pid/status" || failed "$1: $line is not in its status"
    done
    [ "$(stat --format=%U "/proc/$pid")" = spillway ] || failed "$1 runs as another user"
    # Nothing that it needs is refused.
    ours | grep -q io_uring || failed "$1 has no io_uring"
    if journalctl --no-pager | grep -E 'type=1326|SIGSYS|31/SYS' || ours | grep -iE 'operation not permitted|eperm'; then
        failed "$1: a call was refused"
    fi
}

installs() {
    dpkg --install /spillway.deb > /dev/null || failed "dpkg"
    getent passwd spillway > /dev/null || failed "the package has no user"
    [ -z "$(systemctl list-units --no-legend 'spillway*.service')" ] || failed "a unit runs after the installation"
    passed "installation"
}

serves_ram() {
    systemctl start spillway-ram@scratch || failed "starting a RAM disk"
    shows spillway-ram@scratch ActiveState active
    shows spillway-ram@scratch StatusText "serving scratch"
    copy_in --flush /image "$(uri spillway-ram-scratch scratch)"
    compare "$(uri spillway-ram-scratch scratch)" /image
    runuser -u spillway -- env SPILLWAY_RUNTIME_DIR=/run/spillway-ram-scratch spillway ls | grep -q '^scratch' || failed "spillway ls"
    confined spillway-ram@scratch
    systemctl stop spillway-ram@scratch || failed "stopping a RAM disk"
    shows spillway-ram@scratch Result success
    passed "RAM disk"
}

# A disk whose origin takes half a minute for what its page cache holds.
drains() {
    install --directory --owner=spillway --group=spillway --mode=700 /var/lib/spillway
    truncate --size=16M /var/lib/spillway/durable.raw
    chown spillway:spillway /var/lib/spillway/durable.raw
    mkdir -p /etc/spillway/ram
    cat > /etc/spillway/disks.toml <<'TOML'
[[device]]
name = "durable"
origin = { kind = "file", path = "/var/lib/spillway/durable.raw" }
layers = [{ kind = "rate", bytes_per_second = "512K" }, { kind = "page_cache" }]
TOML
    override spillway@disks.service "TimeoutStopSec=4"
    systemctl start spillway@disks || failed "starting a disk"
    shows spillway@disks StatusText "serving durable"
    copy_in /image "$(uri spillway-disks durable)"
    local begin=$SECONDS
    systemctl stop spillway@disks || failed "stopping a disk"
    [ $((SECONDS - begin)) -gt 5 ] || failed "the end took $((SECONDS - begin)) s: no extension was needed"
    shows spillway@disks Result success
    cmp /image /var/lib/spillway/durable.raw || failed "what was written is not in the origin"
    passed "stop that drains for longer than its time"
}

watched() {
    sed -i 's/{ kind = "rate"[^}]*}, //' /etc/spillway/disks.toml
    override spillway@disks.service "WatchdogSec=20"
    systemctl start spillway@disks || failed "starting a disk"
    copy_in --flush /other "$(uri spillway-disks durable)"
    local pid
    pid=$(systemctl show --value --property MainPID spillway@disks)
    kill -STOP "$pid"
    until_holds '[ "$(systemctl show --value --property NRestarts spillway@disks)" = 1 ]'
    until_holds 'systemctl is-active --quiet spillway@disks'
    [ "$(systemctl show --value --property MainPID spillway@disks)" != "$pid" ] || failed "it is the same server"
    journalctl --no-pager | grep -q 'Watchdog timeout' || failed "it was not the watchdog"
    compare "$(uri spillway-disks durable)" /other
    override spillway@disks.service ""
    systemctl restart spillway@disks || failed "restarting a disk"
    confined spillway@disks
    passed "watchdog"
}

keeps() {
    echo 'ARGUMENTS=--size 16M --spill /var/lib/spillway/kept.spill --keep' > /etc/spillway/ram/kept.conf
    systemctl start spillway-ram@kept || failed "starting a RAM disk that keeps"
    copy_in /image "$(uri spillway-ram-kept kept)"
    systemctl restart spillway-ram@kept || failed "restarting it"
    compare "$(uri spillway-ram-kept kept)" /image
    passed "restart that keeps the content"
}

# Sockets as README.md has them.
activates() {
    printf '[[device]]\nname = "late"\norigin = { kind = "zram", disksize = "16M" }\n' > /etc/spillway/late.toml
    for name in nbd http; do
        printf '[Socket]\nListenStream=/run/late-%s.sock\nFileDescriptorName=%s\nSocketMode=0600\nService=spillway@late.service\n' \
            $name $name > /etc/systemd/system/late-$name.socket
    done
    systemctl daemon-reload
    systemctl start late-nbd.socket late-http.socket || failed "starting sockets"
    systemctl is-active --quiet spillway@late && failed "the server runs without a client"
    copy_in --flush /image 'nbd+unix:///late?socket=/run/late-nbd.sock'
    shows spillway@late StatusText "serving late"
    curl --silent --fail --unix-socket /run/late-http.sock http://localhost/api/devices | grep -q '"late"' || failed "HTTP"
    systemctl stop spillway@late || failed "stopping a server of sockets"
    curl --silent --fail --unix-socket /run/late-http.sock http://localhost/api/devices | grep -q '"late"' || failed "HTTP again"
    systemctl is-active --quiet spillway@late || failed "the second client started nothing"
    passed "socket activation"
}

# The server of a service, found by root.
of_service() { SPILLWAY_RUNTIME_DIR=/run/$1 spillway "${@:2}"; }
holds() { cmp "$1" "$2" || failed "$2 does not hold $1"; }
forget() { sync; echo 3 > /proc/sys/vm/drop_caches; }

# A RAM disk by the kernel's NBD client: a file system, over a restart of the server while it is written to, and a resize.
attaches() {
    local device
    echo 'ARGUMENTS=--size 64M --spill /var/lib/spillway/held.spill --keep' > /etc/spillway/ram/held.conf
    systemctl start spillway-ram@held || failed "starting a RAM disk"
    device=$(of_service spillway-ram-held attach held --mkfs ext4 /mnt) || failed "attaching"
    case $device in /dev/nbd*) ;; *) failed "it is attached as $device" ;; esac
    [ "$(stat --file-system --format=%T /mnt)" = ext2/ext3 ] || failed "nothing is mounted"
    grep -q " /mnt ext4 .*nosuid,nodev" /proc/mounts || failed "root trusts the file system of another user"
    cp /image /mnt/one || failed "writing"
    forget
    holds /image /mnt/one
    refused 4 "attached as $device" of_service spillway-ram-held attach held
    refused 4 "$device, mounted at /mnt (spillway detach held)" of_service spillway-ram-held stop held
    refused 4 "$device is not reconnected.*only a lost connection" of_service spillway-ram-held attach held --reconnect
    nbdinfo "$(uri spillway-ram-held held)" && failed "another client got in"
    (cp /other /mnt/two && sync /mnt/two) &
    local writer=$!
    systemctl restart spillway-ram@held || failed "restarting a RAM disk"
    nbdinfo "$(uri spillway-ram-held held)" && failed "another client got in before the block device"
    [ "$(of_service spillway-ram-held attach held --reconnect)" = "$device" ] || failed "reconnecting"
    wait $writer || failed "writing over a restart"
    forget
    holds /image /mnt/one
    holds /other /mnt/two
    nbdinfo "$(uri spillway-ram-held held)" && failed "another client got in after the restart"
    of_service spillway-ram-held resize held 128M || failed "resizing"
    [ "$(blockdev --getsize64 "$device")" = $((128 << 20)) ] || failed "the size is $(blockdev --getsize64 "$device")"
    resize2fs "$device" || failed "resize2fs"
    for copy in 3 4 5; do cp /image /mnt/$copy || failed "there is no room for $copy"; done
    forget
    holds /image /mnt/5
    exec 3< /mnt/one
    refused 4 "/mnt cannot be unmounted" of_service spillway-ram-held detach held
    exec 3<&-
    of_service spillway-ram-held detach held || failed "detaching"
    [ -e "/sys/block/${device#/dev/}/pid" ] && failed "it is still connected"
    refused 3 "not attached" of_service spillway-ram-held detach held
    device=$(of_service spillway-ram-held attach held) || failed "attaching again"
    e2fsck -f -n "$device" || failed "e2fsck"
    exec 3< "$device"
    refused 4 "bash (pid" of_service spillway-ram-held detach held
    exec 3<&-
    of_service spillway-ram-held detach held || failed "detaching again"
    systemctl stop spillway-ram@held
    passed "kernel NBD device over a restart and a resize"
}

# Kills the server of a disk, and waits for the next one.
replace_server() {
    local pid
    pid=$(systemctl show --value --property MainPID spillway@plain)
    kill -KILL "$pid"
    until_holds 'systemctl is-active --quiet spillway@plain && [ "$(systemctl show --value --property MainPID spillway@plain)" != '"$pid"' ]'
}

# A disk whose server is killed, and one whose server is gone for good.
outlives() {
    local device
    truncate --size=64M /var/lib/spillway/plain.raw
    chown spillway:spillway /var/lib/spillway/plain.raw
    printf '[[device]]\nname = "plain"\norigin = { kind = "file", path = "/var/lib/spillway/plain.raw" }\n' > /etc/spillway/plain.toml
    # Root finds the device by the folder, also once its server is gone.
    override spillway@plain.service "RuntimeDirectoryPreserve=yes"
    systemctl start spillway@plain || failed "starting a disk"
    device=$(of_service spillway-plain attach plain --via nbd --mkfs ext4 /mnt) || failed "attaching a disk"
    cp /image /mnt/one || failed "writing"
    (cp /other /mnt/two && sync /mnt/two) &
    local writer=$!
    replace_server
    of_service spillway-plain attach plain --reconnect --timeout 600 || failed "reconnecting after a kill"
    wait $writer || failed "writing over a kill"
    forget
    holds /image /mnt/one
    holds /other /mnt/two
    # Written, and not flushed: the next server gets it.
    cp /image /mnt/three || failed "writing"
    replace_server
    refused 4 "its server was started again: if a server has the content of before, spillway attach plain --reconnect" \
        of_service spillway-plain detach plain
    of_service spillway-plain attach plain --reconnect || failed "reconnecting after another kill"
    of_service spillway-plain detach plain || failed "detaching from the server that follows"
    [ -e "/sys/block/${device#/dev/}/pid" ] && failed "it is still connected"
    device=$(of_service spillway-plain attach plain /mnt) || failed "attaching a disk again"
    holds /image /mnt/three
    # Requests wait for a server that does not come back.
    rm /mnt/one /mnt/three
    override spillway@plain.service $'RuntimeDirectoryPreserve=yes\nRestart=no'
    systemctl kill --signal=STOP spillway@plain
    (while cp /other /mnt/two && sync /mnt/two; do true; done) &
    writer=$!
    until_holds '[ "$(tr -s " " < /sys/block/'"${device#/dev/}"'/inflight)" != " 0 0" ]'
    systemctl kill --signal=KILL spillway@plain
    until_holds '! systemctl is-active --quiet spillway@plain'
    refused 4 "mounted at /mnt: its server is gone" of_service spillway-plain detach plain
    refused 1 "may be lost" of_service spillway-plain detach plain --force
    wait $writer
    grep -q " /mnt " /proc/mounts && failed "it is still mounted"
    [ -e "/sys/block/${device#/dev/}/pid" ] && failed "it is still connected"
    # Nothing waits.
    systemctl start spillway@plain
    device=$(of_service spillway-plain attach plain) || failed "attaching a disk that was given up"
    systemctl stop spillway@plain
    refused 4 "$device: its server is gone" of_service spillway-plain detach plain
    refused 1 "may be lost" of_service spillway-plain detach plain --force
    [ -e "/sys/block/${device#/dev/}/pid" ] && failed "it is still connected"
    refused 3 "no server has a device" of_service spillway-plain detach plain
    # It has lost what the kernel believes to be there.
    systemctl start spillway-ram@scratch
    device=$(of_service spillway-ram-scratch attach scratch --timeout 3) || failed "attaching"
    dd if=/image of="$device" bs=1M oflag=direct || failed "writing"
    systemctl restart spillway-ram@scratch
    refused 1 "holds nothing" of_service spillway-ram-scratch attach scratch --reconnect
    refused 1 "may be lost" of_service spillway-ram-scratch detach scratch --force
    systemctl stop spillway-ram@scratch
    passed "kernel NBD device over a kill, and without its server"
}

# Swap on a RAM disk: a program has more memory than its group may use.
swaps() {
    local device pid
    systemctl start spillway-ram@scratch || failed "starting a RAM disk"
    refused 1 "start it with --lock-memory" of_service spillway-ram-scratch attach scratch --swap
    refused 3 "not attached" of_service spillway-ram-scratch detach scratch
    systemctl stop spillway-ram@scratch
    mkdir -p /etc/spillway/swap
    echo 'ARGUMENTS=--size 256M' > /etc/spillway/swap/swap0.conf
    systemctl start spillway-swap@swap0 || failed "starting swap"
    # What was opened in a mount namespace that is gone has a path without its begin.
    device=$(sed -n 's#^[^ ]*/\(nbd[0-9]*\) .*#/dev/\1#p' /proc/swaps)
    [ -n "$device" ] || failed "there is no swap: $(tr '\n' ';' < /proc/swaps)"
    pid=$(systemctl show --value --property MainPID spillway-swap@swap0)
    [ "$(cat "/proc/$pid/oom_score_adj")" = -1000 ] || failed "the kernel may kill the server"
    refused 4 "spillway detach swap0" of_service spillway-swap-swap0 stop swap0
    cat > /hog.pl << 'PERL'
use Time::HiRes "sleep";
open my $image, "<", "/image" or die; my @copies;
for (1 .. 6) { seek $image, 0, 0; local $/; push @copies, scalar <$image> }
open my $swaps, "<", "/proc/swaps" or die; my ($used) = (join "", <$swaps>) =~ m#^\S*/nbd\d+\s+\S+\s+\d+\s+(\d+)#m;
die "only $used KiB are swapped out" unless $used > 32768;
open my $out, ">", "/swapped"; close $out;
sleep 0.1 while @ARGV && -e $ARGV[0];
for (1 .. 2) { for (@copies) { die "what was swapped out is not what comes back" unless $_ eq $copies[0] } }
print $copies[5];
PERL
    systemd-run --scope --quiet -p MemoryMax=48M -p MemorySwapMax=infinity perl /hog.pl > /hog.out || failed "swapping"
    holds /image /hog.out
    grep -q '^VmSwap:.* 0 kB$' "/proc/$pid/status" || failed "the server was swapped out"
    shows spillway-swap@swap0 ActiveState active
    systemctl stop spillway-swap@swap0 || failed "stopping swap"
    shows spillway-swap@swap0 Result success
    grep -q nbd /proc/swaps && failed "it is still swap"
    passed "swap"
    # A signal takes nothing away that is swapped out.
    systemctl start spillway-swap@swap0 || failed "starting swap again"
    touch /wait
    rm /swapped
    systemd-run --scope --quiet -p MemoryMax=48M -p MemorySwapMax=infinity perl /hog.pl /wait > /hog.out &
    local hog=$!
    until_holds '[ -e /swapped ]'
    systemctl kill --kill-whom=main --signal=TERM spillway-swap@swap0
    until_holds 'ours | grep -q "swap0: the kernel swaps to it"'
    rm /wait
    wait $hog || failed "swapping while the server waits"
    holds /image /hog.out
    of_service spillway-swap-swap0 detach swap0 || failed "swapping off"
    until_holds '[ "$(systemctl show --value --property ActiveState spillway-swap@swap0)" = inactive ]'
    shows spillway-swap@swap0 Result success
    # What a crash leaves is in nobody's way.
    systemctl start spillway-swap@swap0 || failed "starting swap a third time"
    systemctl kill --kill-whom=main --signal=KILL spillway-swap@swap0
    until_holds '[ "$(systemctl show --value --property ActiveState spillway-swap@swap0)" = failed ]'
    grep -q nbd /proc/swaps && failed "it is still swap after a crash"
    systemctl start spillway-swap@swap0 || failed "starting swap after a crash"
    systemctl stop spillway-swap@swap0 || failed "stopping swap after a crash"
    passed "swap over a signal and a crash"
}

# Written, and neither flushed nor stopped: the reboot does that.
before_reboot() {
    systemctl enable --quiet spillway@disks spillway-ram@kept || failed "enabling"
    copy_in /image "$(uri spillway-disks durable)"
    copy_in /other "$(uri spillway-ram-kept kept)"
    passed "writes before the reboot"
    systemctl reboot
}

after_reboot() {
    until_holds 'systemctl is-active --quiet spillway@disks && systemctl is-active --quiet spillway-ram@kept'
    compare "$(uri spillway-disks durable)" /image
    compare "$(uri spillway-ram-kept kept)" /other
    passed "content after the reboot"
    systemctl poweroff
}

if dpkg --status spillway > /dev/null; then
    after_reboot
else
    dd if=/dev/urandom of=/image bs=1M count=16
    dd if=/dev/urandom of=/other bs=1M count=16
    installs
    serves_ram
    drains
    watched
    keeps
    activates
    attaches
    outlives
    swaps
    before_reboot
fi
