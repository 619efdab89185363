# Follows emulated/begin.sh: `job` names block sizes of a fresh cache on vdb before vda, each with a run, and "plain" for vdb itself.
# A run says its MiB, and `now` as it began, was prepared, and ended: what takes until it is prepared is taken off again, as dd does it twice.
export DM_DISABLE_UDEV=1
zeroes() { dd if=/dev/zero of="$1" bs=512k count=896 $2 2>/dev/null || failed "writing $1"; }
written() {
    begun=$(now)
    zeroes /dev/null ""
    ready=$(now)
    zeroes "$1" oflag=direct
    end=$(now)
}

written /dev/vdb
for run in $(echo "$job" | tr , ' '); do
    case $run in
    plain) written /dev/vdb ;;
    block*)
        dd if=/dev/zero of=/dev/vdb bs=4k count=1 conv=fsync 2>/dev/null || failed "clearing the cache"
        options="4 high_watermark 100 low_watermark 100"
        table="0 $(cat /sys/block/vda/size) writecache s /dev/vda /dev/vdb ${run#block} $options"
        dmsetup create wc --noudevsync --table "$table" || failed "dmsetup create"
        dmsetup mknodes
        written /dev/mapper/wc
        dmsetup remove wc --noudevsync || failed "dmsetup remove"
        ;;
    esac
    echo "$run 448 $begun $ready $end"
done
off
