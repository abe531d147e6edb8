# SPDX-License-Identifier: Apache-2.0
"""nova-compute, libvirtd and QEMU killed at random steps: files and guests of libvirt's fit.

libvirt and QEMU are real, in a room of their own; the guests are emulated and do not run on after
their start: what they would write into the memory, the test does. That only nova-compute is
killed, with a libvirt that is a folder, tests/functional/test_segments_killed.py tries.
"""

import collections
import os
import random
import re
import signal
import tempfile
from pathlib import Path

import pytest

from nova_hpc_lab.state import Paths
from tests.functional import segments_process
from tests.lab.libvirt_room import RoomHost, open_room

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the room"),
]

KILLS = 30
VICTIMS = ("nova-compute", "libvirtd", "qemu")


@pytest.fixture(scope="module")
def host():
    """A host without guests."""
    # Short, as unix sockets need it.
    with (
        tempfile.TemporaryDirectory(prefix="nhr") as folder,
        tempfile.TemporaryDirectory(prefix="nhr", dir="/dev/shm") as shared,
    ):
        for each in (folder, shared):
            Path(each).chmod(0o711)  # QEMU is another user
        with open_room(Paths.from_environment(), Path(folder), Path(shared)) as room:
            yield RoomHost(room, Path(shared, "nova-hpc"))


def test_what_libvirt_makes_of_the_device(host):
    """The XML is as libvirt understands it, and the file belongs to QEMU while it runs."""
    shared = 0
    # A step may be one at which no guest runs.
    for seed in range(5):
        status = segments_process.run_until_killed(host, seed, 20 + seed)
        assert os.WTERMSIG(status) == signal.SIGKILL
        host.settle()
        host.keeper().put_in_order()
        if shared := segments_process.check_host(host):
            break
    assert shared
    with host.room.connected() as connection:
        print("\nRESULT: libvirt", connection.getLibVersion(), "QEMU", connection.getVersion())
        texts = [each.XMLDesc() for each in connection.listAllDomains(1)]
    (device, *_) = [found[0] for text in texts if (found := re.findall(_DEVICE, text, re.DOTALL))]
    print("RESULT:", device)
    assert "<alignsize unit='KiB'>2048</alignsize>" in device
    assert re.search(r"<alias name='ua-hpc-shared-[01]'/>", device)
    path = Path(re.search("<path>(.+?)</path>", device)[1])
    state = path.stat()
    assert state.st_mode & 0o777 == 0o600
    owners = {state.st_uid}
    # After its last guest the file is root's again, and what is in it stays: it has to go.
    for server, machine in host.room.machines().items():
        with host.room.connected() as connection:
            connection.lookupByUUIDString(server).destroy()
        assert not machine.is_running()
    owners.add(path.stat().st_uid)
    print("RESULT: owners of the file:", owners)
    assert 0 in owners
    assert len(owners) == 2
    assert host.marks(next(iter(_names(host))))
    host.keeper().put_in_order()
    assert not list(host.shm.iterdir())


_DEVICE = r"<memory model='nvdimm'.*?</memory>"


def _names(host):
    return host.keeper().folder.list_files().usable


def test_thirty_kills(host):
    chance = random.Random(38)
    shared, lost, ends = 0, 0, collections.Counter()
    for number in range(KILLS):
        host.victim = VICTIMS[number % len(VICTIMS)]
        step = chance.randint(1, 90)
        status = segments_process.run_until_killed(host, number, step)
        if host.victim == "nova-compute":
            assert os.WIFSIGNALED(status), host.room.log()
            assert os.WTERMSIG(status) == signal.SIGKILL
        else:
            assert status == 0, host.room.log()
        # libvirt does not know a QEMU whose start it did not live to see.
        for machine in host.settle().values():
            machine.kill()
            machine.wait(60)
            lost += 1
        host.keeper().put_in_order()
        count = segments_process.check_host(host)
        shared += count
        ends[host.victim] += 1
        print(f"RESULT: {host.victim} at step {step}: {count} guests share memory")
    print(f"RESULT: {dict(ends)}, QEMUs that libvirt had lost: {lost}, shared: {shared}")
    assert ends == dict.fromkeys(VICTIMS, KILLS // len(VICTIMS))
    assert shared > KILLS, "too little was shared for this to say anything"


def test_nothing_is_left(host):
    """The last guests end, and so do the files."""
    with host.room.connected() as connection:
        for domain in connection.listAllDomains(1):
            domain.destroy()
    host.settle()
    host.keeper().put_in_order()
    assert not list(host.shm.iterdir())
