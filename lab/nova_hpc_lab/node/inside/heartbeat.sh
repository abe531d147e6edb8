#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tell the supervisor on the host, every few seconds, that this node is alive and how far it is.
exec >/run/nova-hpc/heartbeat || exit 1
while :; do
    read -r uptime rest </proc/uptime
    phase=
    read -r phase </run/nova-hpc/phase
    echo "$uptime ${phase:-booting}"
    sleep 3
done
