#!/usr/bin/env bash
# The write cache and Linux's dm-writecache take over from each other: boots a Debian kernel in qemu (software emulation, no root) with
# an origin and a cache that the other side left dirty.
#
#   tests/scripts/kernel_writecache.sh [BLOCK_SIZE ...]        512 and 4096 by default
#
# Needs Debian's qemu-system-x86 qemu-utils busybox-static dmsetup cpio kmod, and a kernel: the newest cloud kernel of the configured
# archive is downloaded, or KERNEL_DEB names a package. Everything lies in kernel-writecache of cargo's target folder.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=$(cd "$root" && cargo metadata --no-deps --format-version 1 | grep -o '"target_directory":"[^"]*"' | cut -d'"' -f4)
work=$target/kernel-writecache
spillway=$target/release/spillway
origin_bytes=$((32 << 20))
cache_bytes=$((16 << 20))

fail() { echo "FAILED: $*" >&2; exit 1; }

need() {
    command -v "$1" >/dev/null || fail "$1 is missing: apt-get install $2"
}

need qemu-system-x86_64 qemu-system-x86
need qemu-io qemu-utils
need busybox busybox-static
need cpio cpio
need modprobe kmod
PATH=$PATH:/usr/sbin:/sbin
need dmsetup dmsetup

# --- the kernel and what it boots into

kernel() {
    mkdir -p "$work/kernel"
    if ! ls "$work"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
        local deb=${KERNEL_DEB:-}
        if [ -z "$deb" ]; then
            local name
            name=$(apt-cache search --names-only '^linux-image-[0-9.-]+(\+deb[0-9]+)?-cloud-amd64-unsigned$' | cut -d' ' -f1 | sort -V | tail -1)
            [ -n "$name" ] || fail "no cloud kernel in the archive: run apt-get update, or set KERNEL_DEB"
            (cd "$work" && apt-get download -q "$name" >/dev/null)
            deb=$(ls -t "$work"/linux-image-*.deb | head -1)
        fi
        dpkg-deb -x "$deb" "$work/kernel"
    fi
    vmlinuz=$(ls "$work"/kernel/boot/vmlinuz-* | tail -1)
    release=${vmlinuz##*/vmlinuz-}
    [ -e "$work/kernel/lib/modules/$release/modules.dep" ] || depmod -b "$work/kernel" "$release"
}

initramfs() {
    local tree=$work/tree module path library
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,sbin,dev,proc,sys,lib,lib64,modules}
    cp "$(command -v busybox)" "$tree/bin/busybox"
    cp "$(command -v dmsetup)" "$tree/sbin/dmsetup"
    ldd "$(command -v dmsetup)" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$tree$(dirname "$library")"
        cp -L "$library" "$tree$library"
    done
    : > "$tree/modules/order"
    for module in virtio_pci virtio_blk dm-writecache; do
        # A module that is part of the kernel has a line "builtin" instead.
        modprobe -d "$work/kernel" -S "$release" --show-depends "$module" | while read -r how path _; do
            [ "$how" = insmod ] || continue
            cp "$path" "$tree/modules/"
            grep -qx "${path##*/}" "$tree/modules/order" || echo "${path##*/}" >> "$tree/modules/order"
        done
    done
    cat > "$tree/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
while read -r module; do
    file=/modules/$module
    case $file in *.xz) unxz "$file"; file=${file%.xz} ;; esac
    insmod "$file"
done < /modules/order
for word in $(cat /proc/cmdline); do
    case $word in job=*) job=${word#job=} ;; block=*) block=${word#block=} ;; esac
done
sectors=$(cat /sys/block/vda/size)
export DM_DISABLE_UDEV=1
dmsetup create wc --noudevsync --table "0 $sectors writecache s /dev/vda /dev/vdb $block 0" || echo "SAYS create-failed"
dmsetup mknodes
wc=/dev/mapper/wc
echo "SAYS status $(dmsetup status wc)"
echo "SAYS sum $(sha256sum < $wc | cut -d' ' -f1)"
case $job in
drain)
    dmsetup message wc 0 cleaner
    dmsetup message wc 0 flush
    echo "SAYS drained $(dmsetup status wc)"
    dmsetup remove wc --noudevsync
    sync
    ;;
fill)
    dd if=/bin/busybox of=$wc bs=4096 seek=100 count=200 oflag=direct 2>/dev/null
    dd if=/sbin/dmsetup of=$wc bs=4096 seek=150 count=30 oflag=direct 2>/dev/null
    sync $wc; blockdev --flushbufs $wc
    dd if=/bin/busybox of=$wc bs=4096 seek=120 skip=7 count=100 oflag=direct conv=fsync 2>/dev/null
    dd if=/bin/busybox of=$wc bs=$block seek=77777 skip=3 count=1 oflag=direct conv=fsync 2>/dev/null
    dd if=/bin/busybox of=$wc bs=$block seek=5 count=37 oflag=direct conv=fsync 2>/dev/null
    echo 3 > /proc/sys/vm/drop_caches
    echo "SAYS sum $(sha256sum < $wc | cut -d' ' -f1)"
    echo "SAYS filled $(dmsetup status wc)"
    ;;
esac
poweroff -f
INIT
    chmod +x "$tree/init"
    (cd "$tree" && find . | cpio -o -H newc --quiet) > "$work/initramfs"
}

# boot JOB BLOCK: the kernel's words are in $said afterwards.
boot() {
    said=$work/said-$1-$2
    timeout 300 qemu-system-x86_64 -accel tcg -m 512 -nographic -no-reboot -kernel "$vmlinuz" -initrd "$work/initramfs" \
        -append "console=ttyS0 quiet panic=-1 job=$1 block=$2" \
        -drive "file=$work/origin,if=virtio,format=raw,cache=writeback" -drive "file=$work/cache,if=virtio,format=raw,cache=writeback" \
        < /dev/null > "$said.log" 2>&1 || fail "qemu ended with $?: see $said.log"
    tr -d '\r' < "$said.log" | grep -o 'SAYS .*' > "$said" || fail "the kernel said nothing: see $said.log"
    ! grep -q create-failed "$said" || fail "the kernel refuses the cache: see $said.log"
}

said_sum() { grep 'SAYS sum' "$said" | tail -1 | cut -d' ' -f3; }

# --- our side

start() {
    export SPILLWAY_RUNTIME_DIR=$work/run
    mkdir -p "$SPILLWAY_RUNTIME_DIR"
    "$spillway" cache --origin "$work/origin" --cache "$work/cache" --block-size "$1" --name kernel --background > "$work/start.log" \
        || fail "our server does not start: see $work/start.log"
    uri="nbd+unix:///kernel?socket=$SPILLWAY_RUNTIME_DIR/spillway/kernel.sock"
    pid=$(grep -o 'pid [0-9]*' "$work/start.log" | cut -d' ' -f2)
}

sum() { sha256sum < "$1" | cut -d' ' -f1; }

fresh() {
    rm -f "$work/origin" "$work/cache" "$work/model"
    head -c "$origin_bytes" /dev/urandom > "$work/origin"
    cp "$work/origin" "$work/model"
    truncate -s "$cache_bytes" "$work/cache"
}

# The same writes for our device and for a plain file: overwrites, single blocks, stretches, a flush between.
writes=(-c 'write -P 11 1M 3M' -c 'write -P 12 2M 64k' -c flush -c 'write -P 13 2064k 4k' -c 'write -P 14 0 512' -c 'write -P 15 10M 512k'
    -c flush -c 'write -P 16 1100k 100k' -c 'write -P 17 31M 1M' -c flush)

superblock_tail() { dd if="$work/cache" bs=1 skip=32 count=32 status=none | od -An -tx1 | tr -d ' \n'; }

ours_to_kernel() {
    local block=$1
    fresh
    start "$block"
    qemu-io -f raw "${writes[@]}" "$uri" > /dev/null
    kill -9 "$pid"
    qemu-io -f raw "${writes[@]}" "$work/model" > /dev/null
    [ "$(sum "$work/origin")" != "$(sum "$work/model")" ] || fail "the cache is not dirty"
    # Bytes that the format leaves alone: does the kernel too?
    printf 'spillway-origin-identity-32bytes' | dd of="$work/cache" bs=1 seek=32 conv=notrunc status=none
    local tail=$(superblock_tail)
    boot drain "$block"
    [ "$(said_sum)" = "$(sum "$work/model")" ] || fail "block size $block: the kernel reads something else from our cache"
    [ "$(sum "$work/origin")" = "$(sum "$work/model")" ] || fail "block size $block: what the kernel drained from our cache differs"
    if [ "$(superblock_tail)" = "$tail" ]; then kept=kept; else kept=overwritten; fi
    start "$block"
    grep -q ' 0 of them dirty' "$work/start.log" || fail "block size $block: the kernel's drain left something: $(cat "$work/start.log")"
    SPILLWAY_RUNTIME_DIR=$work/run "$spillway" stop kernel
    echo "block size $block: the kernel ($release) read and drained our cache; $(grep 'SAYS status' "$said"); superblock bytes 32 to 63 $kept"
}

kernel_to_ours() {
    local block=$1 dirty
    fresh
    boot fill "$block"
    local expected=$(said_sum)
    [ "$(sum "$work/origin")" != "$expected" ] || fail "the cache is not dirty"
    start "$block"
    dirty=$(grep -o '[0-9]* of them dirty' "$work/start.log")
    qemu-img convert -f raw -O raw "$uri" "$work/read"
    [ "$(sum "$work/read")" = "$expected" ] || fail "block size $block: we read something else from the kernel's cache"
    SPILLWAY_RUNTIME_DIR=$work/run "$spillway" drain kernel > /dev/null
    SPILLWAY_RUNTIME_DIR=$work/run "$spillway" stop kernel
    [ "$(sum "$work/origin")" = "$expected" ] || fail "block size $block: what we drained from the kernel's cache differs"
    echo "block size $block: we read and drained the kernel's cache ($dirty); $(grep 'SAYS filled' "$said")"
}

mkdir -p "$work"
(cd "$root" && cargo build --release --quiet)
kernel
initramfs
for block in "${@:-512 4096}"; do
    for size in $block; do
        ours_to_kernel "$size"
        kernel_to_ours "$size"
    done
done
echo "dm-writecache of Linux $release and Spillway take over from each other"
