# Follows emulated/begin.sh: vda is the device. What is done is what `job` says.
queue=/sys/block/vda/queue
sectors() { cat /sys/block/vda/size; }
sum() { dd if=/dev/vda bs=64k skip="$1" count="$2" iflag=direct 2>/dev/null | md5sum; }
zeroes() { dd if=/dev/zero bs=64k count="$1" 2>/dev/null | md5sum; }

echo "device $(sectors) sectors, $(ls /sys/block/vda/mq | wc -l) queues, $(cat $queue/write_cache)"

file_system() {
    echo "$1"
    case $1 in
    # Busybox has one of its own.
    ext4) /bin/mke2fs -q -F -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda || failed "mke2fs" ;;
    xfs) mkfs.xfs -q -f -m bigtime=1 /dev/vda || failed "mkfs.xfs" ;;
    esac
    mkdir -p "/$1"
    mount -t "$1" /dev/vda "/$1" || failed "mounting $1"
    for number in 1 2 3 4; do
        dd if=/dev/urandom of="/$1/file$number" bs=64k count=48 2>/dev/null &
    done
    wait
    cp -r /bin /modules "/$1/" || failed "copying"
    for seed in 1 2 3; do
        spillway-guest exercise "/$1/exercised$seed" 8388608 "$seed" 100 2> /exercise \
            || failed "exercising $1: $(tail -n 3 /exercise | tr '\n' ' ')"
    done
    (cd "/$1" && find . -type f | sort | xargs md5sum) > /before
    rm "/$1/file2" && sync && fstrim "/$1" || failed "fstrim"
    umount "/$1" || failed "umount"
    case $1 in
    ext4) e2fsck -f -n /dev/vda > /fsck 2>&1 || failed "e2fsck: $(cat /fsck)" ;;
    xfs) xfs_repair -n /dev/vda > /fsck 2>&1 || failed "xfs_repair: $(cat /fsck)" ;;
    esac
    echo 3 > /proc/sys/vm/drop_caches
    mount -t "$1" /dev/vda "/$1" || failed "mounting $1 again"
    (cd "/$1" && find . -type f | sort | xargs md5sum) > /after
    grep -v file2 /before | cmp - /after || failed "files of $1 have changed"
    umount "/$1"
}

case $job in
files)
    dd if=/dev/urandom of=/content bs=64k count=32 2>/dev/null
    dd if=/content of=/dev/vda bs=64k seek=8 oflag=direct 2>/dev/null || failed "writing"
    [ "$(sum 8 32)" = "$(md5sum < /content)" ] || failed "what was written is not there"
    blkdiscard -o 524288 -l 1048576 /dev/vda || failed "blkdiscard"
    [ "$(sum 8 16)" = "$(zeroes 16)" ] || failed "what was discarded is there"
    file_system ext4
    file_system xfs
    before=$(sectors)
    echo "grow"
    until [ "$(sectors)" != "$before" ]; do sleep 0.1; done
    echo "grown $(sectors)"
    dd if=/content of=/dev/vda bs=64k seek=$((before / 128)) oflag=direct 2>/dev/null || failed "writing to what has grown"
    [ "$(sum $((before / 128)) 32)" = "$(md5sum < /content)" ] || failed "what was written beyond the old end is not there"
    echo "ended"
    ;;
write)
    spillway-guest /dev/vda "$block" "$each" "$round" "$count" || failed "writing"
    echo "ended"
    ;;
esac
off
