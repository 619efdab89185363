# Follows emulated/begin.sh: vda is the root of a Debian, whose systemd takes over.
mkdir -p /root
mount -t ext4 /dev/vda /root || failed "mounting the root"
exec < /dev/console > /dev/console 2>&1
for place in dev proc sys; do mount -o move /$place /root/$place; done
exec switch_root /root /sbin/init
