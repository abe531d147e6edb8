# SPDX-License-Identifier: Apache-2.0
"""A real libvirt with a QEMU of its own, in a room that is gone with all in it.

The room has the packages of the lab's node as its root, and namespaces of its own for mounts and
processes: what runs in it ends with its first process. libvirtd starts again when it ends, as a
service manager would have it. Of the machine around the room it sees the kernel and one folder.
"""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import attrs
import libvirt
import psutil

from nova_hpc_lab.node import cache, debian
from tests.functional import segments_process

#: Seconds for libvirt, on a machine that has other work.
PATIENCE = 120
#: What the room needs of the node's packages not.
_WITHOUT = ("./boot", "./dev/*", "./usr/lib/modules", "./usr/lib/firmware", "./var/cache")
_FIRST = """\
set -e
cd "$1"
mount -t tmpfs dev dev
for each in null zero random urandom full tty; do cp -a "/dev/$each" "dev/$each"; done
mkdir -p dev/pts "./$2" run/libvirt run/lock
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount --bind "$2" "./$2"
mount -t proc proc proc
mount --rbind -o ro /sys sys
exec chroot . /bin/sh -c \\
    'while :; do /usr/sbin/libvirtd >>/var/log/libvirtd.log 2>&1; sleep 0.2; done'
"""
#: libvirt's own user for QEMU, and owners of files as it found them: as Debian has it.
_QEMU = """\
security_driver = "none"
namespaces = []
cgroup_controllers = []
nbd_tls = 0
stdio_handler = "file"
"""
_LIBVIRTD = 'auth_unix_rw = "none"\nunix_sock_rw_perms = "0700"\n'
_DOMAIN = """\
<domain type='qemu'>
  <name>{name}</name>
  <uuid>{name}</uuid>
  <memory unit='KiB'>65536</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <features><acpi/></features>
  <cpu><numa><cell id='0' cpus='0' memory='65536' unit='KiB'/></numa></cpu>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""


@attrs.frozen
class LibvirtRoom:
    """A room that runs."""

    root: Path
    process: subprocess.Popen

    @property
    def uri(self):
        return f"qemu+unix:///system?socket={self.root}/run/libvirt/libvirt-sock"

    @contextlib.contextmanager
    def connected(self):
        """A connection for a short while.

        :raises libvirt.libvirtError: libvirtd does not answer.
        """
        connection = libvirt.open(self.uri)
        try:
            yield connection
        finally:
            with contextlib.suppress(libvirt.libvirtError):
                connection.close()

    def wait(self):
        """Until libvirtd answers."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with self.connected() as connection:
                    return connection.getLibVersion()
            except libvirt.libvirtError:
                if time.monotonic() > end:
                    raise AssertionError(self.log()) from None
            time.sleep(0.1)

    def log(self):
        """What libvirtd has said."""
        path = self.root / "var/log/libvirtd.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else "it never started"

    def processes(self, name):
        """The processes of that name in the room."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name() == name and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def machines(self):
        """Server -> its QEMU."""
        found = {}
        for process in self.processes("qemu-system-x86_64"):
            with contextlib.suppress(psutil.Error, ValueError):
                words = process.cmdline()
                found[words[words.index("-uuid") + 1]] = process
        return found


def find_packages(paths):
    """The packages of the lab's node in its cache: a root file system as a tar archive."""
    folder = paths.cache / "node"
    made = cache.entry(
        folder,
        f"debian-{debian.key()}",
        lambda target: debian.bootstrap(target / "root.tar", folder / "build.log"),
    )
    return made / "root.tar"


def unpack_root(archive, root):
    """Make a root file system of the packages, for programs that run in it."""
    root.mkdir()
    without = [f"--exclude={each}" for each in _WITHOUT]
    subprocess.run(
        ["tar", "-x", "-p", "--numeric-owner", "-f", archive, "-C", root, *without], check=True
    )


@contextlib.contextmanager
def open_room(paths, folder, shared):
    """A room with a libvirtd that answers.

    :param paths: of the lab, whose cache has the node's packages.
    :param folder: for the room's root; empty.
    :param shared: a folder of the machine that is in the room, too, at the same place.
    """
    root = folder / "root"
    unpack_root(find_packages(paths), root)
    (root / "etc/libvirt/qemu.conf").write_text(_QEMU)
    (root / "etc/libvirt/libvirtd.conf").write_text(f'{_LIBVIRTD}host_uuid = "{uuid.uuid4()}"\n')
    process = subprocess.Popen(
        [
            *("unshare", "--mount", "--propagation", "private", "--pid", "--fork"),
            *("--kill-child", "sh", "-c", _FIRST, "room", str(root), str(shared)),
        ],
        stdin=subprocess.DEVNULL,
    )
    libvirt.registerErrorHandler(lambda *_: None, None)  # each is raised as well
    room = LibvirtRoom(root, process)
    try:
        room.wait()
        yield room
    finally:
        process.kill()
        process.wait()


class RoomHost(segments_process.Host):
    """A host whose guests are libvirt's; one process of it is killed at a step."""

    bare = _DOMAIN
    errors = (libvirt.libvirtError,)

    def __init__(self, room, shm):
        self.room, self.shm = room, shm
        self.count = self.last = 0
        #: Whose process is killed: ``nova-compute``, ``libvirtd`` or ``qemu``.
        self.victim = "nova-compute"

    def step(self):
        self.count += 1
        if self.count != self.last:
            return
        if self.victim == "nova-compute":
            os.kill(os.getpid(), signal.SIGKILL)
        name = "libvirtd" if self.victim == "libvirtd" else ""
        victims = self.room.processes(name) if name else list(self.room.machines().values())
        for process in victims[:1]:
            process.kill()

    def is_over(self):
        """Some servers after the kill, as nova-compute has lived through it."""
        if self.count < self.last + 40:
            return False
        self.settle()
        return True

    def settle(self):
        """Until libvirt answers and has seen which guests have ended; QEMUs that it lost."""
        self.room.wait()
        end = time.monotonic() + PATIENCE
        while True:
            with self.room.connected() as connection:
                active = {each.UUIDString() for each in connection.listAllDomains(1)}
            machines = self.room.machines()
            if active <= machines.keys():
                return {server: machines[server] for server in machines.keys() - active}
            assert time.monotonic() < end, f"libvirt has not seen it: {active - machines.keys()}"
            time.sleep(0.1)

    def guests(self):
        # One connection for all that is asked of them.
        connection = libvirt.open(self.room.uri)
        self._kept = connection
        return connection.listAllDomains(3)

    def has(self, server):
        with self.room.connected() as connection:
            try:
                return bool(connection.lookupByUUIDString(server).isActive())
            except libvirt.libvirtError as error:
                if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                    return False
                raise

    def start(self, server, xml):
        """As Nova does it: defined, then started; what has failed is ended and forgotten."""
        with self.room.connected() as connection:
            self.step()
            domain = connection.defineXML(xml.replace("{name}", server))
            try:
                self.step()
                domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED)
                self.step()
            except libvirt.libvirtError:
                self._forget(domain)
                raise

    def end(self, server):
        with self.room.connected() as connection:
            domain = connection.lookupByUUIDString(server)
            self.step()
            domain.destroy()
            self.step()
            domain.undefine()

    @staticmethod
    def _forget(domain):
        for action in (domain.destroy, domain.undefine):
            with contextlib.suppress(libvirt.libvirtError):
                action()
