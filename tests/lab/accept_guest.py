# SPDX-License-Identifier: Apache-2.0
"""A guest that can be measured: sysbench, and a real sshd that lets the server's user in.

It is :mod:`tests.lab.nested_guest` with Debian's packages. Each start makes a host key of its own,
as servers of a cloud do.
"""

import shutil

from nova_hpc.guest.build import single_file
from nova_hpc_lab.node import cache, debian
from nova_hpc_lab.state import Paths
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
while :; do python3 {nested_guest.AGENT} >>/run/agent.log 2>&1; sleep 1; done
"""


def prepare_disk():
    """The disk of the image, made unless it is in the cache; about a minute."""
    folder = Paths.from_environment().cache / "accept"
    name = f"nested-{cache.key_of('1', debian.SUITE, *_UNUSED, *_PACKAGES)}"

    def build(target):
        root = target / "root"
        options = ["--variant=minbase", "--mode=root", f"--include={','.join(_PACKAGES)}"]
        log = folder / "build.log"
        debian.mmdebstrap(options, debian.SUITE, (debian.SUITE,), str(root), log)
        for each in _UNUSED:
            shutil.rmtree(root / each)
        nested_guest.make_disk(root, target / "root.ext4")
        shutil.rmtree(root)

    made = cache.entry(folder, name, build)
    cache.remove_others(folder, "nested-", name)
    return made / "root.ext4"


def upload_guest(lab):
    """Put the guest into the lab's Glance."""
    ramdisk = nested_guest.pack_ramdisk(
        nested_guest.paths_of(lab),
        _SERVICES,
        (
            ("/usr/local/bin/nova-hpc-guest", single_file()),
            ("/etc/ssh/sshd_config", _CONFIG.encode()),
        ),
    )
    nested_guest.upload_guest(lab, IMAGE, prepare_disk(), ramdisk)
