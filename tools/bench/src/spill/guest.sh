# Follows emulated/begin.sh: vda is written by each run that `job` names, raw or as the backing device of zram, which is filled from vdb.
now() { cut -d' ' -f1 /proc/uptime; }
zram() { echo "$2" > "/sys/block/zram0/$1" || failed "$2 > $1"; }
# MiB, bytes of a block.
raw() {
    start=$(now)
    dd if=/dev/zero of=/dev/vda bs="$2" count="$(($1 * 1048576 / $2))" oflag=direct 2>/dev/null || failed "$run"
    echo "$run $1 $start $(now)"
}

for run in $(echo "$job" | tr , ' '); do
    case $run in
    zram)
        zram backing_dev /dev/vda
        zram disksize 32M
        dd if=/dev/vdb of=/dev/zram0 bs=1M count=32 oflag=direct 2>/dev/null || failed "filling zram"
        zram idle all
        start=$(now)
        zram writeback idle
        echo "zram 32 $start $(now)"
        read -r pages _ < /sys/block/zram0/bd_stat
        [ "$pages" = 8192 ] || failed "zram has written $pages pages"
        zram reset 1
        ;;
    pages) raw 32 4096 ;;
    batches) raw 256 131072 ;;
    blocks) raw 512 1048576 ;;
    esac
done
off
