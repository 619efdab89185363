#!/bin/busybox sh
# The first program of an emulated machine, up to where its disks are there. The script of a check follows.
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

