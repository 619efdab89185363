# Follows emulated/begin.sh: a write cache over vda (origin) and vdb (cache), read whole to vdc, and then what `job` says.

export DM_DISABLE_UDEV=1
wc=/dev/mapper/wc
dmsetup create wc --noudevsync --table "0 $(cat /sys/block/vda/size) writecache s /dev/vda /dev/vdb $block 0" || failed "dmsetup create"
dmsetup mknodes
[ "$(dmsetup status wc | cut -d' ' -f4)" = 0 ] || failed "status $(dmsetup status wc)"
dd if=$wc of=/dev/vdc bs=1M conv=fsync || failed "reading the device"
echo "status $(dmsetup status wc)"

case $job in
write)
    spillway-guest $wc "$block" "$each" "$round" "$count" || failed "writing"
    ;;
drain)
    dmsetup message wc 0 cleaner && dmsetup message wc 0 flush || failed "the messages of a drain"
    ;;
esac
echo "ended $(dmsetup status wc)"
dmsetup remove wc --noudevsync || failed "dmsetup remove"
sync
off
