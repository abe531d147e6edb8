# SPDX-License-Identifier: Apache-2.0
"""Who reaches whom: the tables of ports and of the switches facing them, against Neutron.

The oracle shares no code with the product: it reads tables by a reader of its own, knows the
ports' GUIDs from the net, and asks the subnet manager for paths as a member would.
"""

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import attrs

from nova_hpc_lab.fabric.net import MANAGER
from tests.fabric.bare_fabric import BareFabric

#: Entry of a limited member of the default partition, which everybody is, and of a full one.
LIMITED_DEFAULT, FULL_DEFAULT = 0x7FFF, 0xFFFF
FULL = 0x8000
#: State of a link: the subnet manager has set the port's tables, and data may pass.
ACTIVE = 4
#: How a project makes a port a limited member.
LIMITED_TAG = "hpc-limited"
_READER = Path(__file__).with_name("table_reader.py")
_BOUND = ("hostdev_physical", "ib_hostdev")
#: Seconds in which a path that has to be there is asked for again: a subnet manager that has
#: just started leaves questions unanswered. One that must not be there is asked for once.
_PATIENCE = 20.0


def guid_text(guid):
    return f"0x{guid:016x}"


class FabricView:
    """Reads the fabric from the subnet manager's node."""

    def __init__(self, fabric: BareFabric):
        self.fabric = fabric
        # What libibmad says of ports that are away would drown everything else.
        reader = (MANAGER, sys.executable, str(_READER))
        self._reader = fabric.client(*reader, stderr=subprocess.DEVNULL)
        self._guard = threading.Lock()
        self.topology = self._ask(op="topology")
        self.manager = guid_text(fabric.net.all_ports()[0].guid)
        self.nodes = {guid_text(port.guid): port.name for port in fabric.net.all_ports()}

    def _ask(self, **request):
        with self._guard:
            self._reader.stdin.write(json.dumps(request) + "\n")
            self._reader.stdin.flush()
            return json.loads(self._reader.stdout.readline())

    def look_again(self):
        """Learn the topology anew."""
        self.topology = self._ask(op="topology")

    def tables(self, guids=None, silent=()):
        """GUID -> (entries of the port, entries of the switch port facing it), None: no answer.

        :param silent: GUIDs of ports that are not asked themselves.
        """
        known = [guid for guid in guids or self.topology if guid in self.topology]
        ports = []
        for guid in known:
            lid, switch, number = self.topology[guid]
            ports += [None if guid in silent else [lid, 1], [switch, number]]
        found = self._ask(op="tables", ports=ports)
        return {guid: (found[2 * at], found[2 * at + 1]) for at, guid in enumerate(known)}

    def is_active(self, guid):
        """Whether the link of a port carries data, by the switch port facing it."""
        return self._ask(op="states", ports=[self.topology[guid][1:]]) == [ACTIVE]

    def path(self, source, target):
        """GUID -> entries of the port and of the switch port facing it; None: no answer."""
        lids = f"{self.topology[source][0]}:{self.topology[target][0]}"
        said = self.fabric.ask(self.nodes[source], "saquery", "--src-to-dst", lids)
        found = re.search(r"pkey\.+(0x\w+)", said)
        return int(found[1], 16) if found else None

    def path_in_time(self, source, target):
        """The same for a path that has to be there."""
        deadline = time.monotonic() + _PATIENCE
        while (found := self.path(source, target)) is None and time.monotonic() < deadline:
            time.sleep(0.3)
        return found

    def close(self):
        """Let the reader leave: one that is killed keeps its place at the simulator."""
        self._reader.stdin.close()
        self._reader.wait(timeout=10)
        self._reader.stdout.close()


@attrs.frozen
class Bound:
    """A port of Neutron that is bound to a physical port of the fabric."""

    port: str
    guid: str
    pkey: int
    status: str
    wanted: bool
    limited: bool

    @property
    def entry(self):
        """What the tables have for it."""
        return self.pkey if self.limited else self.pkey | FULL


def bound_ports(plane):
    """What Neutron says: all bound ports of the InfiniBand networks."""
    guids = {
        (port.host, slot): guid_text(port.guid)
        for port in plane.net.ports
        for slot in (port.address, *port.functions)
    }
    _, answer = plane.admin.call("GET", "/networks?fields=id&fields=provider:segmentation_id")
    pkeys = {one["id"]: one["provider:segmentation_id"] for one in answer["networks"]}
    _, answer = plane.admin.call("GET", "/ports")
    found = []
    for one in answer["ports"]:
        if one["binding:vif_type"] in _BOUND:
            place = (one["binding:host_id"], one["binding:profile"]["pci_slot"])
            found.append(
                Bound(
                    *(one["id"], guids[place], pkeys[one["network_id"]], one["status"]),
                    wanted=one["admin_state_up"],
                    limited=LIMITED_TAG in one["tags"],
                )
            )
    return found


def wrong_tables(view, bound):
    """Every port whose tables are not exactly what Neutron says; empty: all is right."""
    keys = {}
    for one in bound:
        if one.wanted:
            keys.setdefault(one.guid, set()).add(one.entry)
    wrong = []
    for guid, sides in view.tables().items():
        want = {LIMITED_DEFAULT} | keys.get(guid, set())
        for side, entries in zip(("port", "switch"), sides, strict=True):
            if guid == view.manager:
                right = entries is not None and FULL_DEFAULT in entries
            else:
                right = entries is not None and set(entries) == want
            if not right:
                wrong.append((guid, side, entries and [hex(one) for one in entries], sorted(want)))
    return wrong


def file_members(plane):
    """(GUID, P_Key) of all members that the subnet manager's file names."""
    found = set()
    text = "\n".join(
        line.partition("#")[0] for line in plane.files.partitions.read_text().splitlines()
    )
    for part in text.split(";"):
        head, _, members = part.partition(":")
        key = re.search(r"=\s*(0x[0-9a-fA-F]+)", head)
        if key and int(key[1], 16) & 0x7FFF != LIMITED_DEFAULT:
            for guid in re.findall(r"0x[0-9a-fA-F]{16}", members):
                found.add((guid.lower(), int(key[1], 16) & 0x7FFF))
    return found


def broken_invariants(plane, view):
    """What is not as it has to be at rest; empty: all is right."""
    bound = bound_ports(plane)
    broken = [f"not ACTIVE: {one}" for one in bound if one.wanted and one.status != "ACTIVE"]
    broken += [f"tables: {one}" for one in wrong_tables(view, bound)]
    owners = {}
    for one in bound:
        owners.setdefault(one.guid, set()).add(one.pkey)
    broken += [f"{guid} in {keys}" for guid, keys in owners.items() if len(keys) > 1]
    wanted = {(one.guid, one.pkey) for one in bound if one.wanted}
    if (there := file_members(plane)) != wanted:
        broken.append(
            f"the file has {sorted(there - wanted)} too many, {sorted(wanted - there)} not"
        )
    return broken


def wait_for_rest(plane, view, seconds=60.0):
    """Wait until all invariants hold; how long it took."""
    begun = time.monotonic()
    while broken := broken_invariants(plane, view):
        assert time.monotonic() - begun < seconds, broken[:4]
        time.sleep(0.1)
    return time.monotonic() - begun


class Sampler(threading.Thread):
    """Reads tables without pause while something changes.

    Wrong is: full membership of the default partition (open), keys of two tenants on one GUID, a
    key that the GUID was never given.

    :param allowed: GUID -> P_Keys that it may have at any moment.
    """

    def __init__(self, fabric, allowed):
        super().__init__(daemon=True)
        self._view = FabricView(fabric)
        self._allowed = allowed
        self._leaving = threading.Event()
        self.rounds = 0
        #: time.time(), GUID, side, entries.
        self.wrong = []
        self.start()

    def run(self):
        while not self._leaving.is_set():
            for guid, sides in self._view.tables(list(self._allowed)).items():
                for side, entries in zip(("port", "switch"), sides, strict=True):
                    own = {one & 0x7FFF for one in entries or ()} - {LIMITED_DEFAULT}
                    if FULL_DEFAULT in (entries or ()) or len(own) > 1 or own - self._allowed[guid]:
                        self.wrong.append((time.time(), guid, side, [hex(one) for one in entries]))
            self.rounds += 1

    def end(self):
        """Stop; the wrongs."""
        self._leaving.set()
        self.join()
        self._view.close()
        return self.wrong

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.is_alive():
            self.end()
