# SPDX-License-Identifier: Apache-2.0
"""A share as its project sees it: its server, its slots, who may connect, and what is left over.

All of it is read from Nova's and Neutron's records each time; nothing else keeps it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.guest.gpu import records
from nova_hpc.guest.gpu.records import GpuClient, GpuShare, GpuSlot, RecordError

_GROUP: Final = re.compile(rf"hpc-gpu-({records.UUID.pattern})(-clients)?", re.ASCII)
#: States of a server in which its guest serves, or will again without anyone's doing.
_SERVES: Final = ("ACTIVE", "REBOOT", "HARD_REBOOT", "PASSWORD", "MIGRATING")
#: States in which Nova changes a server's metadata (nova/compute/api.py).
CHANGEABLE: Final = ("ACTIVE", "PAUSED", "SUSPENDED", "SHUTOFF")


class ShareState(enum.Enum):
    """The state of a share, in one word."""

    READY = "READY"
    #: Its server is being made, or comes back.
    BUILDING = "BUILDING"
    #: Its creation was not finished: no filter is around it yet, so nothing is attached.
    UNFINISHED = "UNFINISHED"
    #: Its server does not run.
    DOWN = "DOWN"
    #: Its record cannot be read.
    UNKNOWN = "UNKNOWN"
    #: Its server was deleted; what is left is cleaned by the next command.
    GONE = "GONE"


@attrs.frozen
class GpuServer:
    """A server of the project, as far as shares go."""

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
        """Whether it is a share, or was to be one."""
        return records.TAG in self.tags or records.SHARE_KEY in self.metadata

    @property
    def pointer(self) -> GpuClient | None:
        """Where its share is; None: nowhere, or its record cannot be read."""
        try:
            return records.read_client(self.metadata.get(records.CLIENT_KEY))
        except RecordError:
            return None


@attrs.frozen
class GpuPort:
    """A port of a server.

    :ivar addresses: subnet -> address.
    :ivar filtered: security groups have an effect there.
    :ivar revision: what Neutron counts its changes by; None: it does not.
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
    """A security group.

    :ivar rules: as Neutron has them.
    """

    id: str
    name: str
    rules: tuple[Mapping[str, Any], ...] = ()

    @property
    def share(self) -> str | None:
        """Id of the share that it belongs to; None: it is no share's."""
        match = _GROUP.fullmatch(self.name)
        return match[1] if match else None

    @property
    def is_clients(self) -> bool:
        """Whether it is the group of a share's clients."""
        return self.share is not None and self.name.endswith("-clients")


def group_name_of(share: str, clients: bool = False) -> str:
    """The name of a share's security group, or of its clients'."""
    return f"hpc-gpu-{share}{'-clients' if clients else ''}"


@attrs.frozen
class ShareSlot:
    """One client's part of a share.

    :ivar slot: None: its record is missing or cannot be read.
    :ivar client: None: there is no such server (any more).
    :ivar points: the client's own record says this share and these values.
    :ivar may_connect: its port is in the clients' group.
    :ivar problem: what is wrong; empty: nothing is.
    """

    client_id: str
    slot: GpuSlot | None = None
    client: GpuServer | None = None
    points: bool = False
    may_connect: bool = False
    problem: str = ""
    #: The share's server has an item for it, also one that cannot be read.
    is_taken: bool = False
    #: One of its ends was rebooted since, and has another key.
    has_old_key: bool = False


@attrs.frozen
class SharedGpu:
    """Everything that is known of one share.

    :ivar server: None: it was deleted.
    :ivar record: None: it cannot be read; *problem* says why.
    :ivar groups: its security groups, its own and its clients'.
    :ivar ports: those of its server.
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
        """Its name; that of its server if its record cannot be read."""
        if self.record is not None:
            return self.record.name
        return self.server.name if self.server is not None else "?"

    @property
    def own_group(self) -> GpuGroup | None:
        """Its own security group."""
        return next((group for group in self.groups if not group.is_clients), None)

    @property
    def clients_group(self) -> GpuGroup | None:
        """The security group of its clients."""
        return next((group for group in self.groups if group.is_clients), None)

    @property
    def taken(self) -> int:
        """How many slots its record keeps for clients, also for those that are gone."""
        return sum(slot.is_taken for slot in self.slots)

    @property
    def state(self) -> ShareState:
        """The state of the share, in one word."""
        return self._judged[0]

    @property
    def reason(self) -> str:
        """The reason for that state; empty for READY."""
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
    """Whether each port of a share has its filter, where it can have one."""
    own, clients = share.own_group, share.clients_group
    if own is None or clients is None or not share.ports:
        return False
    if not any(rule.get("remote_group_id") == clients.id for rule in own.rules):
        return False
    return all(own.id in port.groups for port in share.ports if port.filtered)


def read_gpu_server(data: Mapping[str, Any]) -> GpuServer:
    """A server as Nova shows it."""
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
    """A port as Neutron shows it to its owner."""
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
    """A security group as Neutron shows it."""
    rules = data.get("security_group_rules") or ()
    return GpuGroup(
        str(data["id"]),
        str(data.get("name", "")),
        tuple(rule for rule in rules if isinstance(rule, Mapping)),
    )


def gather_shares(
    servers: Iterable[GpuServer], ports: Iterable[GpuPort], groups: Iterable[GpuGroup]
) -> list[SharedGpu]:
    """All shares that these records are of, also those whose server is gone."""
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
    server = servers.get(share)
    if server is not None and not server.is_share:
        server = None  # it was taken back: a share that is gone, whose server goes on
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
