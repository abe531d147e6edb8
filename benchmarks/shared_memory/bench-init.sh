#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# First program of a machine of the benchmark; its number is in the kernel's command line.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mountpoint -q /run || mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t debugfs debugfs /sys/kernel/debug
number=$(sed 's/.*vm=\([0-9]*\).*/\1/' /proc/cmdline)
hostname "vm$number"
for module in virtio_net qemu_fw_cfg nfit nd_pmem dax_pmem device_dax; do
    modprobe "$module"
done
card=$(ls /sys/class/net | grep -v lo | head -n 1)
ip link set lo up
ip addr add "10.99.0.$((number + 1))/24" dev "$card"
ip link set "$card" up
for _ in $(seq 100); do
    [ -e /dev/dax0.0 ] && break
    sleep 0.2
done
nova-hpc-guest install --shared-memory
mkdir -p /run/sshd
/usr/sbin/sshd -o UsePAM=no -o UseDNS=no -o PermitRootLogin=yes
echo "MACHINE-UP $number $(uname -r)"
while :; do sleep 1000; done
