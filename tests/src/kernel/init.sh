#!/bin/busybox sh
# The first program of the emulated machine: a write cache over vda (origin) and vdb (cache), read whole to vdc, and then what `job` says.
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
stty -F /dev/ttyS1 raw -echo
exec > /dev/ttyS1
# Closing the serial line waits until all is sent.
off() { exec > /dev/console; poweroff -f; }
failed() { echo "failed: $*"; off; }

while read -r module; do
    file=/modules/$module
    case $file in *.xz) unxz "$file"; file=${file%.xz} ;; esac
    insmod "$file" || failed "insmod $module"
done < /modules/order
for word in $(cat /proc/cmdline); do
    case $word in job=* | block=* | each=* | round=* | count=*) eval "$word" ;; esac
done

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
