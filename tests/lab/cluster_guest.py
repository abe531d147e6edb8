# SPDX-License-Identifier: Apache-2.0
"""A guest that takes its user data and its host list, with Debian's sshd and Open MPI.

It is :mod:`tests.lab.nested_guest` with the disk of :mod:`tests.lab.mpi_guest`. A program stands
for cloud-init, which runs a boothook before sshd starts, and a loop for
``nova-hpc-cluster.timer``.
"""

from nova_hpc_guest.build import single_file
from tests.lab import mpi_guest, nested_guest

IMAGE = "cluster-guest"
_SERVICE = "http://169.254.169.254/openstack/latest"
_USER_DATA = f"""\
import email, gzip, subprocess, urllib.request
data = urllib.request.urlopen("{_SERVICE}/user_data").read()
data = gzip.decompress(data) if data[:2] == b"\\x1f\\x8b" else data
for part in email.message_from_bytes(data).walk():
    if part.get_content_type() == "text/cloud-boothook":
        subprocess.run(["sh"], input=part.get_payload(decode=True), check=True)
"""
_NAME = f"""\
import json, urllib.request
print(json.load(urllib.request.urlopen("{_SERVICE}/meta_data.json"))["name"])
"""
_SERVICES = f"""\
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /dev/pts /dev/shm /run/sshd
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
set -- $(ip -o -4 address show dev eth0 | sed 's/.* inet \\([^ ]*\\).*/\\1/' | sort)
ip address delete "$1" dev eth0
# The first address was the way to the metadata service.
ip route add 169.254.169.254 dev eth0
hostname "$(python3 /usr/local/sbin/lab-name)"
printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n' "$(hostname)" >/etc/hosts
useradd --create-home --shell /bin/bash debian
# Without PAM sshd refuses each login to a locked account.
usermod --password '*' debian
mkdir -p /home/debian/.ssh
mv /root/.ssh/authorized_keys /home/debian/.ssh/
chown -R debian:debian /home/debian
until python3 /usr/local/sbin/lab-user-data; do sleep 1; done
/usr/sbin/sshd -o UsePAM=no -o UseDNS=no -E /run/sshd.log
exec >>/run/services.log 2>&1
while :; do nova-hpc-guest cluster refresh --if-present; sleep 30; done &
while :; do python3 {nested_guest.AGENT}; sleep 1; done
"""


def upload_guest(lab):
    """Put the guest into the lab's Glance."""
    files = (
        ("/usr/local/bin/nova-hpc-guest", single_file()),
        ("/usr/local/sbin/lab-name", _NAME.encode()),
        ("/usr/local/sbin/lab-user-data", _USER_DATA.encode()),
    )
    paths = nested_guest.paths_of(lab)
    ramdisk = nested_guest.pack_ramdisk(paths, _SERVICES, files)
    nested_guest.upload_guest(lab, IMAGE, mpi_guest.prepare_disk(), ramdisk)
