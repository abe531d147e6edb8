# SPDX-License-Identifier: Apache-2.0
"""A share as its project sees it: its server, its slots, its clients' access, and its leftovers.

Each command reads everything from the records of Nova and Neutron; no other store exists.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc_guest.gpu import records
from nova_hpc_guest.gpu.records import GpuClient, GpuShare, GpuSlot, RecordError

_GROUP: Final = re.compile(rf"hpc-gpu-({records.UUID.pattern})(-clients)?", re.ASCII)
#: States of a server in which its guest serves, or will serve again without a command.
_SERVES: Final = ("ACTIVE", "REBOOT", "HARD_REBOOT", "PASSWORD", "MIGRATING")
#: States in which Nova changes a server's metadata (nova/compute/api.py).
CHANGEABLE: Final = ("ACTIVE", "PAUSED", "SUSPENDED", "SHUTOFF")


class ShareState(enum.Enum):
    """The state of a shared GPU server, in one word."""

    READY = "READY"
    #: Nova is making or rebuilding its server.
    BUILDING = "BUILDING"
    #: Its creation was not finished: its ports have no filter yet, so no client is attached.
    UNFINISHED = "UNFINISHED"
    #: Its server does not run.
    DOWN = "DOWN"
    #: Its record cannot be read.
    UNKNOWN = "UNKNOWN"
    #: Its server was deleted; the next command removes the leftovers.
    GONE = "GONE"


@attrs.frozen
class GpuServer:
    """A server of the project, with the fields that shares need.

    :ivar flavor_specs: extra specs of its flavor; None if Nova does not show them.
    """

    id: str
    name: str
    status: str = ""
    project: str = ""
    metadata: Mapping[str, str] = attrs.Factory(dict)
    tags: frozenset[str] = frozenset()
    fault: str = ""
    flavor_specs: Mapping[str, str] | None = None

    @property
    def is_share(self) -> bool:
        """Whether the server is a share, finished or not."""
        return records.TAG in self.tags or records.SHARE_KEY in self.metadata

    @property
    def pointer(self) -> GpuClient | None:
        """The server's record as a client, which names its share; None without a readable
        record.
        """
        try:
            return records.read_client(self.metadata.get(records.CLIENT_KEY))
        except RecordError:
            return None


@attrs.frozen
class GpuPort:
    """A Neutron port of a server, with the fields that shares need.

    :ivar addresses: id of a subnet -> address.
    :ivar filtered: security groups have an effect on it.
    :ivar groups: ids of its security groups.
    :ivar revision: Neutron's revision number; None if Neutron shows none.
    """

    id: str
    server: str
    network: str
    addresses: Mapping[str, str] = attrs.Factory(dict)
    filtered: bool = True
    groups: tuple[str, ...] = ()
    revision: int | None = None


@attrs.frozen
class GpuGroup:
    """A security group, with the fields that shares need.

    :ivar rules: its rules, records of Neutron's API.
    """

    id: str
    name: str
    rules: tuple[Mapping[str, Any], ...] = ()

    @property
    def share(self) -> str | None:
        """Id of the share that the group belongs to, read from its name; None for other groups."""
        match = _GROUP.fullmatch(self.name)
        return match[1] if match else None

    @property
    def is_clients(self) -> bool:
        """Whether the group is the one for a share's clients."""
        return self.share is not None and self.name.endswith("-clients")


def group_name_of(share: str, clients: bool = False) -> str:
    """Return the name of a share's security group, or of its clients'."""
    return f"hpc-gpu-{share}{'-clients' if clients else ''}"


@attrs.frozen
class ShareSlot:
    """One client's part of a share: its record, its server, and its access.

    :ivar slot: None if its record is missing or cannot be read.
    :ivar client: None if the server does not exist (any more).
    :ivar points: the client's own record names this share.
    :ivar may_connect: its port is in the clients' group.
    :ivar problem: the problem and its cure; empty if there is none.
    """

    client_id: str
    slot: GpuSlot | None = None
    client: GpuServer | None = None
    points: bool = False
    may_connect: bool = False
    problem: str = ""
    #: The share's server has a metadata item for it, readable or not.
    is_taken: bool = False
    #: The client or the share was rebooted since, and has another key.
    has_old_key: bool = False


@attrs.frozen
class SharedGpu:
    """A GPU server that serves its project (a share), with all its records.

    :ivar server: None if it was deleted.
    :ivar record: None if it cannot be read; *problem* is the reason.
    :ivar groups: its own security group and its clients' group.
    :ivar ports: the ports of its server.
    """

    id: str
    server: GpuServer | None = None
    record: GpuShare | None = None
    problem: str = ""
    slots: tuple[ShareSlot, ...] = ()
    groups: tuple[GpuGroup, ...] = ()
    ports: tuple[GpuPort, ...] = ()

    @property
    def name(self) -> str:
        """The name of the share; its server's name if its record cannot be read."""
        if self.record is not None:
            return self.record.name
        return self.server.name if self.server is not None else "?"

    @property
    def own_group(self) -> GpuGroup | None:
        """The security group of the share's own server."""
        return next((group for group in self.groups if not group.is_clients), None)

    @property
    def clients_group(self) -> GpuGroup | None:
        """The security group of the share's clients."""
        return next((group for group in self.groups if group.is_clients), None)

    @property
    def taken(self) -> int:
        """The number of slots that the share keeps for clients, including deleted clients."""
        return sum(slot.is_taken for slot in self.slots)

    @property
    def state(self) -> ShareState:
        """The state of the share, in one word."""
        return self._judged[0]

    @property
    def reason(self) -> str:
        """The reason for the state of the share; empty for READY."""
        return self._judged[1]

    @property
    def _judged(self) -> tuple[ShareState, str]:
        if self.server is None:
            return ShareState.GONE, "its server was deleted"
        if self.record is None:
            return ShareState.UNKNOWN, self.problem
        status = self.server.status
        if status in ("BUILD", "REBUILD"):
            return ShareState.BUILDING, f"its server is in {status}"
        if not is_closed(self):
            return ShareState.UNFINISHED, "its ports are not in its security group"
        if status not in _SERVES:
            fault = f": {self.server.fault}" if self.server.fault else ""
            return ShareState.DOWN, f"its server is {status}{fault}"
        return ShareState.READY, ""


def is_closed(share: SharedGpu) -> bool:
    """Whether the share's security groups exist, and its own is on all ports that can have it."""
    own, clients = share.own_group, share.clients_group
    if own is None or clients is None or not share.ports:
        return False
    if not any(rule.get("remote_group_id") == clients.id for rule in own.rules):
        return False
    return all(own.id in port.groups for port in share.ports if port.filtered)


def read_gpu_server(data: Mapping[str, Any]) -> GpuServer:
    """Parse a server record of Nova's API, with the records of GPU shares in its metadata."""
    flavor = data.get("flavor") or {}
    specs = flavor.get("extra_specs")
    fault = (data.get("fault") or {}).get("message", "")
    return GpuServer(
        id=str(data["id"]),
        name=str(data.get("name", "")),
        status=str(data.get("status", "")),
        project=str(data.get("tenant_id", "")),
        metadata=dict(data.get("metadata") or {}),
        tags=frozenset(data.get("tags") or ()),
        fault=str(fault),
        flavor_specs=dict(specs) if isinstance(specs, Mapping) else None,
    )


def read_gpu_port(data: Mapping[str, Any]) -> GpuPort:
    """Read a port record of Neutron's API, with the fields that its owner can see.

    Security groups take effect on a port if its type is normal and its port security is on.
    """
    secure = data.get("port_security_enabled", True) is not False
    normal = data.get("binding:vnic_type", "normal") == "normal"
    revision = data.get("revision_number")
    return GpuPort(
        id=str(data["id"]),
        server=str(data.get("device_id", "")),
        network=str(data.get("network_id", "")),
        addresses={
            str(fixed.get("subnet_id")): str(fixed.get("ip_address"))
            for fixed in data.get("fixed_ips") or ()
        },
        filtered=secure and normal,
        groups=tuple(map(str, data.get("security_groups") or ())),
        revision=revision if type(revision) is int else None,
    )


def read_gpu_group(data: Mapping[str, Any]) -> GpuGroup:
    """Parse a security group's record of Neutron's API."""
    rules = data.get("security_group_rules") or ()
    return GpuGroup(
        str(data["id"]),
        str(data.get("name", "")),
        tuple(rule for rule in rules if isinstance(rule, Mapping)),
    )


def gather_shares(
    servers: Iterable[GpuServer], ports: Iterable[GpuPort], groups: Iterable[GpuGroup]
) -> list[SharedGpu]:
    """Build all shares from these records, including shares whose server was deleted."""
    by_id = {server.id: server for server in servers}
    ports_of: dict[str, list[GpuPort]] = {}
    for port in ports:
        ports_of.setdefault(port.server, []).append(port)
    groups_of: dict[str, list[GpuGroup]] = {}
    for group in sorted(groups, key=lambda group: group.id):
        if group.share is not None:
            groups_of.setdefault(group.share, []).append(group)
    pointed: dict[str, list[GpuServer]] = {}
    for server in by_id.values():
        if server.pointer is not None:
            pointed.setdefault(server.pointer.share, []).append(server)
    ids = {server.id for server in by_id.values() if server.is_share}
    ids |= groups_of.keys() | pointed.keys()
    shares = [
        _gather_share(
            share, by_id, ports_of, tuple(groups_of.get(share, ())), pointed.get(share, ())
        )
        for share in sorted(ids)
    ]
    return sorted(shares, key=lambda share: (share.name, share.id))


def _gather_share(
    share: str,
    servers: Mapping[str, GpuServer],
    ports_of: Mapping[str, Sequence[GpuPort]],
    groups: tuple[GpuGroup, ...],
    pointed: Sequence[GpuServer],
) -> SharedGpu:
    """Gather one share and its slots.

    A server has a slot if one of three records exists: an item in the share's metadata, a port in
    the clients' group, or a client's own record. :func:`_explain_slot` compares them.

    :param share: id of the share.
    :param pointed: servers whose own record names the share.
    """
    server = servers.get(share)
    if server is not None and not server.is_share:
        server = None  # its tag and record were removed: the share is gone, and its server stays
    record, problem = None, ""
    if server is not None:
        try:
            record = records.read_share(server.metadata.get(records.SHARE_KEY))
        except RecordError as error:
            problem = str(error)
    made = SharedGpu(share, server, record, problem, (), groups, tuple(ports_of.get(share, ())))
    clients = made.clients_group
    inside = {
        owner
        for owner, ports in ports_of.items()
        if clients is not None and any(clients.id in port.groups for port in ports)
    }
    keyed = set()
    for key in server.metadata if server is not None else ():
        client_id = records.client_of_key(key)
        if client_id is not None:
            keyed.add(client_id)
    everyone = sorted(keyed | inside | {client.id for client in pointed})
    slots = tuple(_read_slot(made, servers, client_id, inside) for client_id in everyone)
    return attrs.evolve(made, slots=slots)


def _read_slot(
    share: SharedGpu, servers: Mapping[str, GpuServer], client_id: str, inside: set[str]
) -> ShareSlot:
    client = servers.get(client_id)
    text = share.server.metadata.get(records.slot_key_of(client_id)) if share.server else None
    slot, problem = None, ""
    if text is not None:
        try:
            slot = records.read_slot(text)
        except RecordError as error:
            problem = str(error)
    pointer = client.pointer if client is not None else None
    points = pointer is not None and pointer.share == share.id
    may_connect = client_id in inside
    if not problem:
        problem = _explain_slot(share, slot, client, pointer, points)
    return ShareSlot(client_id, slot, client, points, may_connect, problem, text is not None)


def _explain_slot(
    share: SharedGpu,
    slot: GpuSlot | None,
    client: GpuServer | None,
    pointer: GpuClient | None,
    points: bool,
) -> str:
    """Return the problem of a slot whose records do not agree, with the cure; "" if they do.

    :param points: whether the client's own record names the share.
    """
    if client is None:
        return "its client was deleted: the next command takes the slot back"
    if share.server is None:
        return "its share was deleted: the next command takes its record back"
    if slot is None:
        return "it has no slot: attach it again, or detach it"
    if not points or pointer is None:
        return "it was not attached to its end: attach it again, or detach it"
    if (pointer.port, pointer.own) != (slot.port, slot.address):
        return "its record and its slot differ: attach it again"
    if bool(pointer.key) != bool(slot.key):
        return "one end has no key: attach it again"
    return ""
