#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The file systems and udev, before anything else.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/nova-hpc /run/sshd /run/lock /dev/pts /dev/shm /dev/hugepages
mount -t devpts -o gid=5,mode=620 devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t hugetlbfs hugetlbfs /dev/hugepages
mount -t cgroup2 cgroup2 /sys/fs/cgroup
: >/run/nova-hpc/phase
# The ports to the host by their names, as udev would link them a little too late.
for port in /sys/class/virtio-ports/*; do
    name=$(cat "$port/name")
    ln -s "/dev/${port##*/}" "/run/nova-hpc/${name#nova-hpc.}"
done
/lib/systemd/systemd-udevd --daemon >/dev/null 2>&1
