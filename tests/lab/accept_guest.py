# SPDX-License-Identifier: Apache-2.0
"""A guest that can be measured: sysbench, and a real sshd that lets the server's user in.

It is :mod:`tests.lab.nested_guest` with Debian's packages. Each start makes a host key of its own,
as servers of a cloud do.
"""

from nova_hpc_guest.build import single_file
from tests.lab import nested_guest

IMAGE = "accept-guest"
_PACKAGES = ("iproute2", "openssh-server", "python3", "sysbench")
_SHARED = ("doc", "man", "locale", "zoneinfo")
_UNUSED = ("boot", "var/lib/apt", "var/cache", *(f"usr/share/{each}" for each in _SHARED))
_CONFIG = """\
HostKey /run/ssh_host_ed25519_key
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
"""
_SERVICES = f"""\
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f /run/ssh_host_ed25519_key
/usr/sbin/sshd -E /run/sshd.log
echo {IMAGE} is up >/dev/console
while :; do python3 {nested_guest.AGENT} >>/run/agent.log 2>&1; sleep 1; done
"""


def upload_guest(lab):
    """Put the guest into the lab's Glance."""
    disk = nested_guest.prepare_debian_disk("accept", _PACKAGES, _UNUSED)
    ramdisk = nested_guest.pack_ramdisk(
        nested_guest.paths_of(lab),
        _SERVICES,
        (
            ("/usr/local/bin/nova-hpc-guest", single_file()),
            ("/etc/ssh/sshd_config", _CONFIG.encode()),
        ),
        # The last one has what the server was promised.
        (*nested_guest.MODULES, "qemu_fw_cfg"),
    )
    nested_guest.upload_guest(lab, IMAGE, disk, ramdisk)
