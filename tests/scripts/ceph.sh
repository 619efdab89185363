#!/bin/bash
# A Ceph cluster on loopback for tests: a monitor `mon.a`, OSDs `osd.0` and so on, and a pool `rbd` with a copy on each
# of at most three OSDs.
#
#   ceph.sh FOLDER OSDS memstore|bluestore [LINE OF CONFIGURATION]...
#
# A manager `mgr.x` can be started: the monitor learns from it how much is stored, without which no quota is kept.
#
# Says `ready`, then takes orders from its standard input, `VERB DAEMON` a line, and says `done` to each: kill, stop (it
# stays, without a processor), continue, start (on the data that it left). When its input ends, it kills the daemons and
# removes the folder. A daemon ends with this script, whatever ends that. What it says before `ready` is why it failed.
#
# FOLDER gets ceph.conf for clients, and DAEMON.pid, DAEMON.log and DAEMON.out. All keys are one, in FOLDER/keyring.
set -euo pipefail
exec 2>&1
dir=$1 osds=$2 store=$3
shift 3
mkdir -p "$dir"
export CEPH_CONF=$dir/ceph.conf
copies=$((osds < 3 ? osds : 3))

tools='ceph-mon:ceph-mon ceph-osd:ceph-osd ceph-mgr:ceph-mgr osdmaptool:ceph-base ceph:ceph-common rbd:ceph-common'
for tool in $tools; do
    command -v "${tool%:*}" > /dev/null || { echo "${tool%:*} is missing: apt-get install ${tool#*:}"; exit 1; }
done

end() {
    local file
    for file in "$dir"/*.pid; do
        [ ! -e "$file" ] || kill -9 "$(cat "$file")" || true
    done
    wait || true
    rm -rf "$dir"
}
trap end EXIT

# Below the ports that the kernel gives to clients, one of which could have it while the monitor is away.
port=$((10000 + $$ % 20000))
while (exec 4<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do port=$((10000 + (port + 7919) % 20000)); done

fsid=$(cat /proc/sys/kernel/random/uuid)
key=$(CEPH_CONF=/dev/null ceph-authtool --gen-print-key)
cat > "$CEPH_CONF" <<END
[global]
fsid = $fsid
mon host = v2:127.0.0.1:$port/0
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr1 = false
keyring = $dir/keyring
osd crush chooseleaf type = 0
osd pool default size = $copies
osd pool default pg num = 8
osd pool default pg autoscale mode = off
[mon]
mon data = $dir/mon.a
log file = $dir/\$name.log
mon cluster log file = $dir/cluster.log
admin socket = $dir/\$name.asok
crash dir = $dir
mon data avail crit = 1
mon data avail warn = 1
mon allow pool size one = true
mon allow pool delete = true
mon osd min down reporters = 1
mon osd adjust heartbeat grace = false
paxos propose interval = 0.05
paxos min wait = 0.02
mgr initial modules =
[mgr]
mgr data = $dir/\$name
mgr module path = $dir/no-modules
mgr tick period = 1
log file = $dir/\$name.log
admin socket = $dir/\$name.asok
crash dir = $dir
[osd]
osd data = $dir/\$name
log file = $dir/\$name.log
admin socket = $dir/\$name.asok
crash dir = $dir
osd objectstore = $store
osd class update on start = false
osd crush update on start = false
osd max object name len = 256
osd max object namespace len = 64
memstore device bytes = 2G
bluestore block size = 4G
bluestore fsck on mkfs = false
bdev aio poll ms = 10
END
for line in "$@"; do echo "$line" >> "$CEPH_CONF"; done

entity() { printf '[%s]\nkey = %s\n' "$1" "$key"; shift; printf 'caps %s\n' "$@"; }
{
    entity mon. 'mon = "allow *"'
    entity client.admin 'mon = "allow *"' 'osd = "allow *"' 'mgr = "allow *"'
    entity mgr.x 'mon = "allow profile mgr"' 'osd = "allow *"'
    for ((n = 0; n < osds; n++)); do entity "osd.$n" 'mon = "allow profile osd"' 'osd = "allow *"'; done
} > "$dir/keyring"

start() {
    local program=ceph-${1%%.*}
    setpriv --pdeathsig KILL "$program" -f -i "${1#*.}" --no-mon-config < /dev/null >> "$dir/$1.out" 2>&1 &
    echo $! > "$dir/$1.pid"
}

fail() { echo "failed: $1"; tail -n 20 "$dir"/said "$dir"/*.out; exit 1; }
quietly() { "$@" > "$dir/said" 2>&1 < /dev/null || fail "$*"; }

make_osd() {
    local uuid; uuid=$(cat /proc/sys/kernel/random/uuid)
    ceph-osd --mkfs -i "$1" --osd-uuid "$uuid" --no-mon-config > "$dir/osd.$1.out" 2>&1
}
made=()
for ((n = 0; n < osds; n++)); do mkdir "$dir/osd.$n"; make_osd "$n" & made+=($!); done
quietly monmaptool --create --addv a "[v2:127.0.0.1:$port]" --fsid "$fsid" "$dir/monmap"
# A map with the OSDs in it saves asking the monitor for each.
quietly osdmaptool --createsimple "$osds" "$dir/osdmap"
# The manager has no module: so it starts in half a second and takes 40 MiB.
mkdir "$dir/mon.a" "$dir/mgr.x" "$dir/no-modules"
quietly ceph-mon --mkfs -i a --monmap "$dir/monmap" --osdmap "$dir/osdmap" --keyring "$dir/keyring"
start mon.a
for ((n = 0; n < osds; n++)); do wait "${made[n]}" || fail "osd.$n"; start "osd.$n"; done

has_started() {
    kill -0 "$(cat "$dir/$1.pid")" 2> /dev/null || fail "$1 has ended"
    grep -q 'booting -> active' "$dir/$1.log"
}
for ((n = 0; n < osds; n++)); do
    for ((look = 0; ; look++)); do
        ! has_started "osd.$n" || break
        ((look < 1200)) || fail "osd.$n does not start"
        sleep 0.05
    done
done
quietly timeout 60 ceph osd pool create rbd
quietly timeout 60 rbd pool init rbd
exec 2> "$dir/said"
echo ready

pid() { cat "$dir/$daemon.pid"; }
obey() {
    case $verb in
        kill) kill -9 "$(pid)"; wait "$(pid)" || true; rm "$dir/$daemon.pid" ;;
        stop) kill -STOP "$(pid)"; until grep -q '^State:.[TZ]' "/proc/$(pid)/status"; do sleep 0.01; done ;;
        continue) kill -CONT "$(pid)" ;;
        start) start "$daemon" ;;
    esac
}
while read -r verb daemon; do
    obey
    echo done
done
