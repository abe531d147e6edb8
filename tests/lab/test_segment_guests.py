# SPDX-License-Identifier: Apache-2.0
"""Guests that use the memory which they share: two of a group, and a stranger.

What chooses the memory and writes the domain is the node's own, libvirt and QEMU are real, and
the guests are emulated. Nova is not there: tests/functional/test_segments.py has it, without
guests. MPI in such guests tries test_shared_memory.py.
"""

import contextlib
import json
import os
import re
import tempfile
import time
from pathlib import Path

import pytest
from nova import objects

from nova_hpc.from_nova import sharing_group
from nova_hpc.from_nova.sharing_group import SharingGroup
from nova_hpc_lab.node.guest import COMMAND_LINE
from nova_hpc_lab.state import Paths
from tests.functional import segments_process
from tests.functional.segments_process import GROUPS, SERVERS, group_of
from tests.lab import shared_guest
from tests.lab.libvirt_room import RoomHost, find_packages, open_room
from virt_driver_patches.domain.guest_domain import GuestDomainXml
from virt_driver_patches.driver import guest_topology
from virt_driver_patches.driver.segments import NodeSegments

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the room"),
]

#: Two of the first group, and one of the second.
FIRST, SECOND, STRANGER = SERVERS[0], SERVERS[3], SERVERS[1]
#: Seconds for emulated guests, on a machine that has other work.
PATIENCE = 900
_DOMAIN = f"""\
<domain type='qemu'>
  <name>{{name}}</name>
  <uuid>{{name}}</uuid>
  <memory unit='KiB'>262144</memory>
  <vcpu>2</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/guest/kernel</kernel><initrd>/guest/ramdisk</initrd>
    <cmdline>{COMMAND_LINE}</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='maximum'><numa><cell id='0' cpus='0-1' memory='262144' unit='KiB'/></numa></cpu>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='file'><source path='/guest/{{name}}.console'/></serial>
  </devices>
</domain>
"""


class GuestHost(RoomHost):
    """A host whose guests run."""

    bare = _DOMAIN

    def boot(self, server):
        """As the driver starts a server."""
        segments = NodeSegments(self.keeper())
        instance = segments_process.instance_of(server)
        instance.numa_topology.cells[0].pcpuset = {0, 1}
        (self.room.root / f"guest/{server}.console").touch()  # libvirt gives it to QEMU
        with segments.starting(instance, anew=True):
            domain = GuestDomainXml(self.bare.replace("{name}", server))
            told = segments.add_to(domain, instance)
            guest_topology.tell_guest_segment(domain, instance, told)
            with self.room.connected() as connection:
                connection.defineXML(domain.text()).create()

    def end_guest(self, server):
        with self.room.connected() as connection:
            connection.lookupByUUIDString(server).destroy()
        self.settle()
        self.keeper().put_in_order()

    def account(self, server):
        """What the guest has said last."""
        path = self.room.root / f"guest/{server}.console"
        text = path.read_text(errors="replace") if path.exists() else ""
        accounts = shared_guest.parse_accounts(text)
        return accounts[-1] if accounts else {}

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE
        while not (reached := condition()):
            consoles = sorted((self.room.root / "guest").glob("*.console"))
            tails = [path.read_text(errors="replace")[-800:] for path in consoles]
            assert time.monotonic() < end, "\n".join((what, *tails))
            time.sleep(1)
        return reached


@pytest.fixture
def host(monkeypatch):
    """A host without guests."""
    monkeypatch.setattr(
        sharing_group,
        "find_sharing_group",
        lambda instance: SharingGroup(group_of(instance.uuid)),
    )
    objects.register_all()
    paths = Paths.from_environment()
    # Short, as unix sockets need it.
    with (
        tempfile.TemporaryDirectory(prefix="nhr") as folder,
        tempfile.TemporaryDirectory(prefix="nhr", dir="/dev/shm") as shared,
    ):
        for each in (folder, shared):
            Path(each).chmod(0o711)  # QEMU is another user
        with open_room(paths, Path(folder), Path(shared)) as room:
            guest = shared_guest.pack_guest(find_packages(paths), room.root)
            place = room.root / "guest"
            place.mkdir()
            (place / "kernel").write_bytes(guest.kernel)
            (place / "ramdisk").write_bytes(guest.ramdisk)
            yield GuestHost(room, Path(shared, "nova-hpc"))


def test_two_of_a_group_and_a_stranger(host):
    assert [group_of(each) for each in (FIRST, SECOND, STRANGER)] == [
        *(GROUPS[0], GROUPS[0], GROUPS[1])
    ]
    started = time.monotonic()
    members = [FIRST, SECOND]
    for server in (*members, STRANGER):
        host.boot(server)
    host.keeper().put_in_order()

    def exchanged():
        accounts = [host.account(server) for server in members]
        done = [account.get("received", 0) for account in accounts]
        return min(done) >= shared_guest.MESSAGES and accounts

    accounts = host.until(exchanged, "both have received all messages")
    print(f"\nRESULT: {time.monotonic() - started:.0f} s", *map(json.dumps, accounts), sep="\n")
    for account in accounts:
        assert (account["status"], account["wrong"]) == (0, 0), account
        assert account["check"].endswith("As promised: 0 devices, 1 NUMA nodes, topology flat.")
        assert account["mapping"] == "write-back"
    # The two have one memory, and each message came through it unharmed.
    assert len({account["segment"] for account in accounts}) == 1
    assert [account["part"] for account in accounts] == [0, 1]
    assert [account["marks"] for account in accounts] == [sorted(members)] * 2

    # The stranger has other memory, where nothing of theirs is.
    strange = host.until(lambda: host.account(STRANGER), "the stranger has started")
    print("RESULT: stranger:", json.dumps(strange))
    assert (strange["status"], strange["mapping"]) == (0, "write-back")
    assert strange["segment"] != accounts[0]["segment"]
    assert (strange["received"], strange["marks"]) == (0, [STRANGER])
    files = {path.name for path in host.shm.iterdir()}
    assert {name.partition(".")[0] for name in files} == set(GROUPS[:2])

    # One that is gone is out of the table, and its part is free; QEMU has the file shared.
    maps = (Path("/proc") / str(host.room.machines()[FIRST].pid) / "maps").read_text()
    (mapped,) = [line for line in maps.splitlines() if f"/{GROUPS[0]}." in line]
    assert mapped.split()[1] == "rw-s"
    host.room.machines()[SECOND].kill()
    host.settle()
    host.keeper().put_in_order()
    with _file(host, GROUPS[0]) as data:
        names = re.findall(rb"[0-9a-f]{8}-[0-9a-f-]{27}", data[(2 << 20) + 4096 :][: 2 * 64])
    assert names == [FIRST.encode()]
    host.boot(SECOND)
    host.keeper().put_in_order()
    again = host.until(
        lambda: host.account(SECOND).get("received") and host.account(SECOND), "it is back"
    )
    assert (again["segment"], again["part"]) == (accounts[1]["segment"], 1)
    print(f"RESULT: {time.monotonic() - started:.0f} s in all")
    for server in (*members, STRANGER):
        host.end_guest(server)
    assert not list(host.shm.iterdir())


@contextlib.contextmanager
def _file(host, group):
    (path,) = host.shm.glob(f"{group}.*")
    yield path.read_bytes()
