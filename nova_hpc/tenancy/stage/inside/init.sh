#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# First program of a service VM. Whatever goes wrong, the VM ends: its console says why.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin PYTHONPATH=/lib/nova-hpc PYTHONDONTWRITEBYTECODE=1
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
"$(cat /lib/nova-hpc/python)" -S -m nova_hpc.tenancy.stage.inside.command
poweroff -f
