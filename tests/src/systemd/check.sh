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
    before_reboot
fi
