# SPDX-License-Identifier: Apache-2.0
"""The oracle of random histories: it looks at every physical port of the fabric all the time.

It knows from the requests alone which keys a physical port may have, and shares no code with the
product. A port counts whether it is bound, switched off or never used.
"""

import contextlib
import threading
import time

import attrs

from tests.fabric.matrix import FULL, FULL_DEFAULT, LIMITED_DEFAULT, FabricView, guid_text

#: Seconds for which an ACTIVE port may be without its key: the agent's poll interval of one second,
#: its look, its report, and a machine that does other work.
LATE = 10.0
#: The same for a port whose adapter does not answer; the agent waits for ``member_timeout`` first.
LATE_SILENT = 20.0
#: Seconds between two looks at Neutron.
_LIST_PAUSE = 0.5


@attrs.define
class Claim:
    """A port of Neutron that may have its network's key on a physical port.

    :ivar network: its ID.
    :ivar is_sure: its bind was answered with success, and nothing was asked of it since.
    """

    guid: str
    network: str
    pkey: int
    is_sure: bool = False


@attrs.define
class Records:
    """The requests of all histories, and what they allow; a lock covers every access."""

    guard: threading.RLock = attrs.field(factory=threading.RLock)
    #: Port of Neutron -> the physical ports that it may be bound to.
    claims: dict[str, list[Claim]] = attrs.field(factory=dict)
    #: GUIDs whose own tables or answers are not the subnet manager's, and since when.
    sick: dict[str, float] = attrs.field(factory=dict)
    #: GUIDs that answer nothing or have no link: only their switches are asked.
    silent: dict[str, float] = attrs.field(factory=dict)
    #: GUIDs whose links went. The subnet manager sets their tables before data passes again.
    bounced: set[str] = attrs.field(factory=set)
    #: GUIDs of managers on hosts.
    managers: set[str] = attrs.field(factory=set)
    #: Whether a manager on a host has the fabric, with a file of its own, as the master was killed.
    usurped: bool = False
    #: Until when an administrator's edit of the file may be in force.
    edited_until: float = 0.0
    #: When the last killed process worked again.
    quiet_since: float = 0.0
    broken: list[str] = attrs.field(factory=list)

    def ask_bind(self, port, guid, network, pkey):
        with self.guard:
            self.claims.setdefault(port, []).append(Claim(guid, network, pkey))

    def take_bind_answer(self, port, guid, answer):
        """A bind that succeeds rules out every other network on the physical port."""
        with self.guard:
            mine = [one for one in self.claims.get(port, ()) if one.guid == guid]
            if answer == 200 and mine:
                mine[-1].is_sure = True
                others = {
                    one.network
                    for name, claims in self.claims.items()
                    for one in claims
                    if name != port and one.guid == guid and one.is_sure
                }
                if others - {mine[-1].network}:
                    self.broken.append(f"{guid} is given to {mine[-1].network} and {others}")
            # Other answers leave it open until the end: a bind that waited and was refused leaves
            # the host, and the next change of the port may bind it there.

    def ask_release(self, port):
        with self.guard:
            for one in self.claims.get(port, ()):
                one.is_sure = False

    def settle(self, bound, hosted):
        """At rest Neutron's own list says which ports are bound, and nothing is under way.

        A port that has a host and is not bound may be bound by the next change of it.

        opensm leaves the table of a switch port alone whose adapter does not answer. Its key stays
        until then, and no other network gets the adapter.
        """
        with self.guard:
            self.usurped = False
            kept = {
                port: [
                    attrs.evolve(one, is_sure=False)
                    for one in claims
                    if one.guid in self.silent or port in hosted
                ]
                for port, claims in self.claims.items()
            }
            for one in bound:
                kept[one.port] = [Claim(one.guid, one.network, one.pkey, is_sure=True)]
            self.claims = {port: claims for port, claims in kept.items() if claims}

    def allowed(self):
        """GUID -> the P_Keys that it may have now."""
        with self.guard:
            found = {}
            for claims in self.claims.values():
                for one in claims:
                    sure = [
                        other
                        for others in self.claims.values()
                        for other in others
                        if other.guid == one.guid and other.is_sure
                    ]
                    if not sure or one.network in {other.network for other in sure}:
                        found.setdefault(one.guid, set()).add(one.pkey)
            return found

    def say(self, text):
        with self.guard:
            if len(self.broken) < 50:
                self.broken.append(f"{time.strftime('%H:%M:%S')} {text}")


def find_foreign(entries, keys, master):
    """Entries that a table has and must not have.

    :param keys: the P_Keys that the port may have.
    :param master: whether a subnet manager is there, a full member of the default partition.
    """
    return {
        one
        for one in entries or ()
        if (one & 0x7FFF != LIMITED_DEFAULT and one & 0x7FFF not in keys)
        or (one == FULL_DEFAULT and not master)
    }


@attrs.frozen
class PortState:
    """A bound port of Neutron, and the entry that its tables have to have.

    :ivar entries: the possible entries; two ports of one adapter may ask for different memberships.
    """

    port: str
    network: str
    project: str
    guid: str
    pkey: int
    status: str
    is_up: bool
    entries: frozenset[int]


def list_bound(plane, limited_tag):
    """All bound ports of InfiniBand networks, as Neutron lists them."""
    guids = {
        (port.host, slot): guid_text(port.guid)
        for port in plane.net.ports
        for slot in (port.address, *port.functions)
    }
    _, answer = plane.admin.call("GET", "/networks")
    networks = {one["id"]: one for one in answer["networks"]}
    _, answer = plane.admin.call("GET", "/ports")
    found = []
    for one in answer["ports"]:
        network = networks.get(one["network_id"])
        if one["binding:vif_type"] not in ("hostdev_physical", "ib_hostdev") or network is None:
            continue
        guest = one["project_id"] != network["project_id"]
        limited = limited_tag in one["tags"] or (guest and limited_tag in network["tags"])
        pkey = network["provider:segmentation_id"]
        found.append(
            PortState(
                port=one["id"],
                network=network["id"],
                project=one["project_id"],
                guid=guids[one["binding:host_id"], one["binding:profile"]["pci_slot"]],
                pkey=pkey,
                status=one["status"],
                is_up=one["admin_state_up"] and network["admin_state_up"],
                entries=frozenset({pkey if limited else pkey | FULL}),
            )
        )
    return _share_entries(found)


def list_hosted(plane):
    """IDs of all ports that have a host, bound or not."""
    _, answer = plane.admin.call("GET", "/ports")
    return {one["id"] for one in answer["ports"] if one["binding:host_id"]}


def _share_entries(found):
    """Ports of one adapter and key with different memberships: either one may be in force.

    A port that is off counts: a tag on the others holds when they agree, as the log then says.
    """
    together = {}
    for one in found:
        key = one.guid, one.pkey
        together[key] = together.get(key, frozenset()) | one.entries
    return [
        attrs.evolve(one, entries=together.get((one.guid, one.pkey), one.entries)) for one in found
    ]


class HistoryWatch(threading.Thread):
    """Reads the tables of all ports, and Neutron's list, without pause."""

    def __init__(self, plane, records, bystanders, limited_tag):
        super().__init__(daemon=True)
        self._plane = plane
        self._view = FabricView(plane)
        self._records = records
        #: Ports of Neutron that no event concerns.
        self._bystanders = bystanders
        self._tag = limited_tag
        self._leaving = threading.Event()
        #: Port -> since when it is ACTIVE without its key.
        self._late = {}
        self._listed_at = 0.0
        self.rounds = 0
        self.lists = 0
        self.start()

    def run(self):
        while not self._leaving.is_set():
            before = self._records.allowed()
            tables = self._read_tables()
            after = self._records.allowed()
            self._judge_tables(tables, before, after)
            self.rounds += 1
            if time.monotonic() - self._listed_at > _LIST_PAUSE:
                with contextlib.suppress(Exception):
                    listed = list_bound(self._plane, self._tag)
                    self._judge_ports(listed, tables, self._read_tables())
                    self.lists += 1
                self._listed_at = time.monotonic()

    def _read_tables(self):
        with self._records.guard:
            silent = set(self._records.silent)
        return self._view.tables(silent=silent)

    def _judge_tables(self, tables, before, after):
        records, now = self._records, time.monotonic()
        if now < records.edited_until:
            return
        for guid, (own, facing) in tables.items():
            if guid == self._view.manager:
                continue
            keys = before.get(guid, set()) | after.get(guid, set())
            with records.guard:
                healthy = guid not in records.sick and guid not in records.silent
            sides = [("switch", facing)] + ([("port", own)] if healthy else [])
            master = guid in records.managers
            for side, entries in sides:
                if not find_foreign(entries, keys, master):
                    continue
                if guid in records.bounced and not self._is_in_force(guid, keys, master):
                    continue
                records.say(
                    f"{guid} {side}: {[hex(one) for one in entries]}, may have"
                    f" {sorted(map(hex, keys))}"
                )

    def _is_in_force(self, guid, keys, master):
        """Whether a foreign key is there while data passes over a link that went before.

        The tables of a link that comes back are the old ones until the subnet manager sets them,
        and only then it lets data pass.
        """
        if not self._view.is_active(guid):
            return False
        _, facing = self._view.tables([guid])[guid]
        if find_foreign(facing, keys, master):
            return True
        with self._records.guard:
            self._records.bounced.discard(guid)
        return False

    def _judge_ports(self, listed, first, second):
        records, now = self._records, time.monotonic()
        if now < records.edited_until:
            self._late.clear()
            return
        late = {}
        for one in listed:
            with records.guard:
                silent = one.guid in records.silent
                sick = one.guid in records.sick
            if one.port in self._bystanders and one.status != "ACTIVE" and not records.usurped:
                records.say(f"bystander {one} is not ACTIVE")
            if one.status != "ACTIVE" or not one.is_up:
                continue
            sides = (first.get(one.guid), second.get(one.guid))
            if silent or any(
                pair is not None and any(not one.entries & set(side or ()) for side in pair)
                for pair in sides
            ):
                since = self._late.get(one.port, now)
                late[one.port] = since
                limit = LATE_SILENT if silent or sick else LATE
                if now - max(since, records.quiet_since) > limit:
                    records.say(f"ACTIVE without its key for {now - since:.1f} s: {one} {sides}")
                    late[one.port] = now
        self._late = late

    def end(self):
        self._leaving.set()
        self.join()
        self._view.close()
