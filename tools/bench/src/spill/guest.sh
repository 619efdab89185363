# Follows emulated/begin.sh: vda is written by each run that `job` names, raw or as the backing device of zram, which is filled from vdb.
# A run says its MiB, and `now` as it began, was prepared, and ended: what takes until it is prepared is taken off again, as dd does it twice.
zram() { echo "$2" > "/sys/block/zram0/$1" || failed "$2 > $1"; }
zeroes() { dd if=/dev/zero of="$1" bs="$2" count="$3" $4 2>/dev/null || failed "writing $1"; }
# MiB, bytes of a block.
raw() {
    begun=$(now)
    zeroes /dev/null "$2" "$(($1 * 1048576 / $2))" ""
    ready=$(now)
    zeroes /dev/vda "$2" "$(($1 * 1048576 / $2))" oflag=direct
    end=$(now)
    echo "$run $1 $begun $ready $end"
}

zeroes /dev/vda 1048576 64 oflag=direct
for run in $(echo "$job" | tr , ' '); do
    case $run in
    zram)
        zram backing_dev /dev/vda
        zram disksize 32M
        dd if=/dev/vdb of=/dev/zram0 bs=1M count=32 oflag=direct 2>/dev/null || failed "filling zram"
        zram idle all
        begun=$(now)
        zram writeback idle
        end=$(now)
        read -r pages _ < /sys/block/zram0/bd_stat
        [ "$pages" = 8192 ] || failed "zram has written $pages pages"
        zram reset 1
        echo "zram 32 $begun $begun $end"
        ;;
    pages) raw 32 4096 ;;
    batches) raw 512 131072 ;;
    blocks) raw 512 1048576 ;;
    esac
done
off
