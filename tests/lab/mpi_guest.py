# SPDX-License-Identifier: Apache-2.0
"""A guest with Debian's unmodified MPICH and Open MPI, and the library for memory that is shared.

It is :mod:`tests.lab.nested_guest` with Debian's packages. Members reach each other over ssh with a
key of the image, as those of a cluster do with a key of its own.
"""

import tempfile
from pathlib import Path

from benchmarks.shared_memory.root_disk import COMPILERS, SHM
from nova_hpc_guest.build import single_file
from tests.lab import nested_guest, shared_guest
from tests.lab.nested_guest import run_program

IMAGE = "mpi-guest"
_PACKAGES = (
    *("iproute2", "kmod", "mpich", "openmpi-bin"),
    *("openssh-client", "openssh-server", "python3"),
)
_SHARED = ("doc", "man", "locale", "zoneinfo", "perl", "i18n", "icons")
_UNUSED = ("boot", "var/lib/apt", "var/cache", *(f"usr/share/{each}" for each in _SHARED))
_SSHD = """\
HostKey /run/ssh_host_ed25519_key
StrictModes no
UsePAM no
UseDNS no
"""
_SSH = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
# In place of systemd and udev: what nova-hpc-shared-memory.service waits for and begins.
_SERVICES = f"""\
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /dev/pts /dev/shm /run/sshd
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t debugfs debugfs /sys/kernel/debug
# The address of the first question is not for jobs: security groups know the other one alone.
set -- $(ip -o -4 address show dev eth0 | sed 's/.* inet \\([^ ]*\\).*/\\1/' | sort)
ip address delete "$1" dev eth0
own=${{2%/*}}
for number in $(seq 254); do echo "192.0.2.$number guest-$number"; done >/etc/hosts
echo 127.0.0.1 localhost >>/etc/hosts
hostname "guest-${{own##*.}}"
groupadd --system hpc
until [ -e /dev/dax0.0 ]; do sleep 0.2; done
nova-hpc-guest install --shared-memory >/run/install.log 2>&1
cp /root/.ssh/id_ed25519.pub /root/.ssh/authorized_keys
chmod 600 /root/.ssh/id_ed25519
ssh-keygen -q -t ed25519 -N '' -f /run/ssh_host_ed25519_key
/usr/sbin/sshd -E /run/sshd.log
while :; do python3 {nested_guest.AGENT} >>/run/agent.log 2>&1; sleep 1; done
"""


def build_programs():
    """Paths and contents of what is this project's: the command, the library, a job of each MPI."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_program("make", "-s", "-C", SHM, "install", f"DESTDIR={folder}")
        programs = folder / "usr/local/bin"
        programs.mkdir(parents=True)
        source = SHM / "tests/mpi_exchange.c"
        for mpi, compiler in COMPILERS.items():
            run_program(compiler, "-O2", source, "-o", programs / f"{source.stem}.{mpi}")
        (programs / "nova-hpc-guest").write_bytes(single_file())
        key = folder / "root/.ssh/id_ed25519"
        key.parent.mkdir(parents=True)
        run_program("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        (key.parent / "config").write_text(_SSH)
        sshd = folder / "etc/ssh/sshd_config"
        sshd.parent.mkdir(parents=True)
        sshd.write_text(_SSHD)
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return [(f"/{path.relative_to(folder)}", path.read_bytes()) for path in files]


def prepare_disk():
    """The disk of its packages, as :func:`nested_guest.prepare_debian_disk` makes it."""
    return nested_guest.prepare_debian_disk("mpi", _PACKAGES, _UNUSED)


def upload_guest(lab):
    """Put the guest into the lab's Glance."""
    modules = (*nested_guest.MODULES, *shared_guest.MODULES)
    ramdisk = nested_guest.pack_ramdisk(
        nested_guest.paths_of(lab), _SERVICES, build_programs(), modules
    )
    nested_guest.upload_guest(lab, IMAGE, prepare_disk(), ramdisk)
