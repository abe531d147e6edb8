#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# First program of a tenant's guest: say again and again, on the console, what
# hardware is there. Lines between the two markers are "key value...".
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module" 2>/dev/null; done </modules/order
sleep 1
# The kernel finds the blocks of a disk in the background.
for controller in /sys/class/nvme/nvme*; do
    tries=0
    while [ -e "$controller" ] && ! ls /dev/${controller##*/}n* >/dev/null 2>&1 &&
        [ $tries -lt 100 ]; do usleep 200000; tries=$((tries + 1)); done
done

# What the cloud's own command for guests says: once, as Python takes its time
# in emulation. The stand-ins for GPUs have no driver here.
check() {
    /usr/bin/python3.11 -I "$1" check --skip driver >/tmp/said 2>&1
    status=$?
    sed 's/^/check /' /tmp/said
    echo "check_status $status"
}
command=/usr/local/bin/nova-hpc-guest
[ -e $command ] && check $command >/tmp/check

# What the stand-ins for GPUs still know of whoever had them before: some words of
# their memory, which then get this server's own.
memory() {
    for device in /sys/bus/pci/devices/*; do
        [ "$(cat "$device/vendor" "$device/device" | tr -d '\n')" = 0x12340x1111 ] || continue
        read -r first last flags <"$device/resource"
        echo 1 >"$device/enable"
        for place in $((first)) $(((first + last + 1) / 2)) $((last - 3)); do
            echo "memory ${device##*/} $((place - first)) $(devmem $place 32)"
            devmem $place 32 0x5EC2E75A
        done
    done
}
memory >/tmp/memory 2>&1

# The same of disks, block by block: bytes that are not zero, and blocks with the mark; then
# each block gets the mark of this server's kernel.
disks() {
    mark=$(printf '%-511s' "secret of a tenant $(cat /proc/sys/kernel/random/boot_id)")
    for disk in /dev/nvme*n*; do
        [ -b "$disk" ] || continue
        sectors=$(cat "/sys/class/block/${disk##*/}/size")
        echo "disk ${disk##*/} sectors $sectors used $(tr -d '\000' <"$disk" | wc -c)" \
            "marked $(grep -c '^secret of a tenant' "$disk")"
        yes "$mark" | head -c $((sectors * 512)) >"$disk"
        sync
        echo 3 >/proc/sys/vm/drop_caches
        echo "disk ${disk##*/} written $(grep -c '^secret of a tenant' "$disk")"
    done
}
disks >/tmp/disks 2>&1

report() {
    echo "=== nova-hpc guest report $1 begin ==="
    echo "kernel $(uname -r)"
    echo "cpus $(nproc)"
    echo "memory_kib $(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)"
    for node in /sys/devices/system/node/node[0-9]*; do
        [ -r "$node/cpulist" ] || continue
        echo "cell ${node##*/node} cpus $(cat "$node/cpulist") memory_kib" \
            "$(sed -n 's/.*MemTotal: *\([0-9]*\) kB/\1/p' "$node/meminfo")"
    done
    for device in /sys/bus/pci/devices/*; do
        address=${device##*/}
        vendor=$(cat "$device/vendor")
        product=$(cat "$device/device")
        class=$(cat "$device/class")
        driver=-
        [ -e "$device/driver" ] && driver=$(basename "$(readlink -f "$device/driver")")
        echo "pci $address ${vendor#0x}:${product#0x} ${class#0x} $driver $(cat "$device/numa_node")"
        path=$(readlink -f "$device")
        echo "path $address ${path#/sys/devices/}"
        count=0
        while read -r first last flags; do
            # Only the six BARs; the lines after them are the ROM and windows of bridges.
            [ $count -lt 6 ] && [ $((last)) -ne 0 ] && echo "bar $address $count $((last - first + 1))"
            count=$((count + 1))
        done <"$device/resource"
        # A virtio adapter's is one level further down.
        for net in "$device"/net/* "$device"/virtio*/net/*; do
            [ -r "$net/address" ] && echo "mac $address $(cat "$net/address")"
        done
    done
    cat /tmp/memory /tmp/disks
    [ -e /tmp/check ] && cat /tmp/check
    echo "=== nova-hpc guest report $1 end ==="
}

number=1
while :; do
    # Written at once: each separate byte on the console costs an exit.
    report $number >/tmp/report
    cat /tmp/report
    number=$((number + 1))
    sleep 20
done
