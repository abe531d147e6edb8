#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One service of the node, kept running by init.
export PATH=/opt/nova-hpc/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root
cd / || exit 1

wait_for() {
    while [ ! -e "$1" ]; do sleep 0.5; done
}

# A service that ends at once is not started again at once.
start() {
    sleep "$(cat "/run/nova-hpc/$name.delay" 2>/dev/null || echo 0)"
    echo 3 >"/run/nova-hpc/$name.delay"
    exec "$@"
}

# Tell the supervisor of a service that ends again and again, each time after less
# than two minutes.
too_often() {
    read -r now rest </proc/uptime
    now=${now%.*}
    count=0 last=0
    [ -e "/run/nova-hpc/$name.starts" ] && read -r count last <"/run/nova-hpc/$name.starts"
    [ $((now - last)) -gt 120 ] && count=0
    echo "$((count + 1)) $now" >"/run/nova-hpc/$name.starts"
    [ "$count" -lt 6 ] && return
    echo "failed: $name ends again and again, see its log" >/run/nova-hpc/phase
    sleep 3600
}

name=$1
case $name in
agent)
    exec /usr/bin/python3 -S /opt/nova-hpc/config/inside/agent.py >>/var/log/agent.log 2>&1
    ;;
sshd)
    start /usr/sbin/sshd -D -e -f /opt/nova-hpc/config/inside/sshd_config >>/var/log/sshd.log 2>&1
    ;;
libvirtd)
    wait_for /run/nova-hpc/start-libvirtd
    start /usr/sbin/libvirtd >>/var/log/libvirtd.log 2>&1
    ;;
nova-compute)
    too_often
    # The log goes to a file on the host, where it can be read whatever becomes of the node.
    start python /opt/nova-hpc/config/inside/compute.py >/run/nova-hpc/log 2>&1
    ;;
esac
