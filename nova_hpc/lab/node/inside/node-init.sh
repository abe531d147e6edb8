#!/bin/sh
# First program of the virtual node: load what the root disk needs, and go on there.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 300 ]; do usleep 100000; tries=$((tries + 1)); done
mount -t ext4 -o noatime /dev/vda /root || { echo "nova-hpc: no root disk"; poweroff -f; }
umount /proc
umount /sys
mount --move /dev /root/dev
exec switch_root /root /lib/systemd/systemd
