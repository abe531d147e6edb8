#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# First program of the virtual node: find the disks, and go on from there.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
# What a prepared host does before any driver is loaded.
for script in /scripts/init-top/*; do [ -x "$script" ] && sh "$script"; done
while read -r module; do insmod "/modules/$module"; done </modules/order
tries=0
while [ ! -b /dev/vdb ] && [ $tries -lt 300 ]; do usleep 100000; tries=$((tries + 1)); done
mount -t ext4 -o noatime /dev/vda /root && mount -t ext4 -o ro /dev/vdb /root/opt/nova-hpc/config || {
    echo "nova-hpc: the disks cannot be mounted"
    poweroff -f
}
cp /root/opt/nova-hpc/config/inside/inittab /root/etc/inittab
umount /proc
umount /sys
mount --move /dev /root/dev
exec switch_root /root /bin/init
