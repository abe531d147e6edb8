# SPDX-License-Identifier: Apache-2.0
"""Reads one of Nova's PCI pools: with the same result for equal devices at equal addresses.

Nodes of one kind have the same devices at the same addresses. So the content of a pool,
apart from its provider and its count, is read once and kept; the nodes of a cloud share the
result.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping
from typing import Any, Final

import attrs
from nova.compute import pci_placement_translator as translator
from nova.objects import fields
from nova.pci import request as pci_request
from nova.pci import stats as pci_stats
from oslo_utils import strutils

from nova_hpc.from_nova import aliases, cache
from nova_hpc.from_nova.cache import Cache
from nova_hpc.from_nova.providers import Amounts, DeviceKind
from nova_hpc.from_nova.server import ServerTask, WantedDevice
from nova_hpc.placement.model import DevicePool
from nova_hpc.placement.roles import Played, RoleConflictError, bind_alias_roles
from nova_hpc.placement.server import most_counted_name
from nova_hpc.wire import tags as hpc_tags
from nova_hpc_common.level import Location

#: Nova gives these two to every device, so they are not in the tags.
EVERYWHERE: Final = frozenset({"COMPUTE_MANAGED_PCI_DEVICE", "OWNER_NOVA"})

#: The tag of devices for Neutron's ports. Nova's own translation to Placement omits
#: devices whose tag names a network (pci_placement_translator.py:492 of release 34);
#: null stands for networks without a physical one.
_NETWORK: Final = pci_request.PCI_NET_TAG

#: Keys that differ between devices that are otherwise alike.
_OWN: Final = frozenset({"rp_uuid", "count"})

#: Kinds of devices that are remembered; a cloud has a handful.
_KINDS: Final = 256

#: Keys for the place of a device, and keys that differ from node to node.
_PLACE: Final = frozenset(
    {
        "address",
        "count",
        "numa_node",
        "parent_ifname",
        "rp_uuid",
        "hpc_group",
        "hpc_numa",
        "hpc_nvlink",
        "hpc_root",
        "hpc_socket",
        "hpc_switch",
    }
)


@attrs.frozen
class Match:
    """A flavor's alias that a PCI pool matches, and whether Placement counts the pool for it."""

    want: str
    kind: DeviceKind
    #: Whether its tags and ids are of that kind.
    is_kind: bool
    #: Set if its entry names another resource class; Placement must then not list it as free.
    contradiction: str | None


@attrs.frozen(eq=False)
class KnownPool:
    """The parsed content of a PCI pool, shared by all pools with equal content."""

    name: str
    tags: hpc_tags.Tags | None
    location: Location
    #: Why its tags are unusable; None if they are usable.
    fault: str | None
    matches: tuple[Match, ...]
    #: Whether several functions share one provider, also if few of them are free.
    several: bool
    #: NUMA node in Nova; None if Nova has none.
    node: int | None
    #: Keys of the direct ports that it can serve.
    ports: frozenset[str] = frozenset()
    #: Whether its devices are only for ports.
    for_ports: bool = False
    #: Whether it is an adapter that can be given itself.
    whole: bool = False
    #: Number of the cloud's aliases that it serves.
    aliases: int = 0
    number: int = attrs.field(factory=cache.next_unique_number)


@attrs.frozen
class SeenPool:
    """A PCI pool of a host whose devices are free and can be used."""

    known: KnownPool
    serves: frozenset[str]
    free: int

    def pool(self, identifier: str) -> DevicePool:
        """Build the pool in the model of the placement engine, with *identifier* as its id."""
        tags = self.known.tags
        return DevicePool(
            id=identifier,
            name=self.known.name,
            location=self.known.location,
            free=self.free,
            serves=self.serves,
            unit=None if tags is None else tags.group,
            # Later servers get devices by their role, but these only through ports.
            role=None if tags is None or self.known.for_ports else tags.role,
            aliases=self.known.aliases,
        )


@attrs.frozen
class _PoolSample:
    """An example pool of one kind of device, without its place."""

    pool: Mapping[str, Any] = attrs.field(eq=False)
    resource_class: str
    traits: frozenset[str]
    role: str


class Samples:
    """Example pools of each kind of device, which show the role of the devices of an alias.

    Aliases are Nova's and roles are this project's. The tags of the pools that an
    alias matches connect the two, as for ``hpc:group``. Safe between threads.
    """

    def __init__(self) -> None:
        self._kept: dict[object, _PoolSample] = {}
        self._lock = threading.Lock()

    @property
    def version(self) -> int:
        """A number that changes when a new kind of device is seen."""
        return len(self._kept)

    def learn(
        self, pool: Mapping[str, Any], resource_class: str, traits: frozenset[str], role: str
    ) -> None:
        """Store *pool* as an example of its kind of device, with its role; up to a limit."""
        plain = {key: value for key, value in pool.items() if key not in _PLACE}
        key = (resource_class, traits, role, tuple(sorted(map(repr, plain.items()))))
        with self._lock:
            if key not in self._kept and len(self._kept) < _KINDS:
                sample = {**plain, "count": 1, "numa_node": None}
                self._kept[key] = _PoolSample(sample, resource_class, traits, role)

    def role_of(self, device: WantedDevice) -> str | None:
        """Return the role of devices that match an alias; of several roles the one with most kinds.

        None if no example matches.
        """
        with self._lock:
            samples = list(self._kept.values())
        stats = pci_stats.PciDeviceStats(None)
        role_counts = collections.Counter(
            sample.role
            for sample in samples
            if sample.resource_class == device.kind.resource_class
            and device.kind.traits <= sample.traits
            and stats._filter_pools([sample.pool], device.probe, None, [])
        )
        played = Played({"": frozenset(role_counts)}, frozenset(sample.role for sample in samples))
        try:
            return bind_alias_roles([attrs.evolve(device.want, key="")], played).get("")
        except RoleConflictError:
            return most_counted_name(role_counts)


#: The samples of this process.
SAMPLES: Final = Samples()

KNOWN: Final[Cache[KnownPool]] = Cache()


def recall_pool(
    stats: Any, pool: Mapping[str, Any], task: ServerTask, sockets: Mapping[int, int | None]
) -> KnownPool:
    """Return the parsed content of *pool*, cached, with the aliases of *task* that it matches.

    :param stats: Nova's statistics of the host, whose own functions decide
        which alias a pool matches.
    :param sockets: NUMA node -> its socket.
    """
    socket = sockets.get(pool["numa_node"]) if pool.get("numa_node") is not None else None
    pool_items = tuple([item for item in pool.items() if item[0] not in _OWN])
    key = (task.matching, socket, pool["count"] > 1, pool_items)
    try:
        hash(key)
    except TypeError:
        # A value in it is not a string or number, so it is not Nova's.
        return _read_pool(stats, pool, task, socket)
    return KNOWN.get(key, lambda: _read_pool(stats, pool, task, socket))


def _read_pool(
    stats: Any, pool: Mapping[str, Any], task: ServerTask, socket: int | None
) -> KnownPool:
    """Read a pool for the wants of *task*.

    Nova's own filter decides which aliases and ports the pool matches. The tags then give its
    role, place, class and traits. A pool with wrong tags is kept with its fault, so that a
    refusal can name it.
    """
    tags, fault = None, None
    location = Location()
    # Devices that Nova does not report to Placement are never a flavor's, whatever the alias.
    for_ports = bool(pool.get(_NETWORK))
    matched = [
        device
        for device in task.devices
        if not for_ports and stats._filter_pools([pool], device.probe, None, [])
    ]
    served = frozenset(
        kind.ports.key
        for kind in task.ports
        # A port without a physical network matches only adapters without one.
        if _NETWORK in pool and stats._filter_pools([pool], kind.probe, None, [])
    )
    matches: tuple[Match, ...] = ()
    serves = 0
    try:
        tags = hpc_tags.parse_tags(pool)
        location = read_pool_location(pool, tags, socket)
        own_class, own_traits = class_and_traits_of(pool, tags)
        if tags is not None and tags.role is not None and not for_ports:
            SAMPLES.learn(pool, own_class, own_traits, tags.role)

        def is_kind(kind: DeviceKind) -> bool:
            return own_class == kind.resource_class and kind.traits <= own_traits | EVERYWHERE

        if not for_ports:
            serves = aliases.count_serving_aliases(stats, pool, is_kind)
        matches = tuple(
            Match(
                want=device.want.key,
                kind=device.kind,
                is_kind=is_kind(device.kind),
                contradiction=_contradiction_of_class(tags, own_class, device.kind),
            )
            for device in matched
        )
    except hpc_tags.TagError as error:
        fault = str(error)
        # For an unusable device it only matters that it was wanted.
        matches = tuple(Match(device.want.key, device.kind, False, None) for device in matched)
    return KnownPool(
        name=str(pool.get("address", "?")),
        tags=tags,
        location=location,
        fault=fault,
        matches=matches,
        several=pool["count"] > 1 or pool.get("dev_type") in ("type-VF", "vdpa"),
        node=pool.get("numa_node"),
        ports=served,
        for_ports=for_ports,
        whole=pool.get("dev_type") == fields.PciDeviceType.SRIOV_PF,
        aliases=serves,
    )


def read_pool_location(
    pool: Mapping[str, Any], tags: hpc_tags.Tags | None, socket: int | None
) -> Location:
    """Read the place of a PCI pool from its tags, with the NUMA node from Nova's record.

    :raises hpc_tags.TagError: the two contradict each other.
    """
    node = pool.get("numa_node")
    location = Location() if tags is None else tags.location
    if node is None:
        return location
    if location.numa is not None and location.numa != node:
        raise hpc_tags.TagError(
            f"tag {hpc_tags.NUMA} is {location.numa}, but Nova's record has NUMA node {node}"
        )
    return attrs.evolve(location, numa=node, socket=location.socket if socket is None else socket)


def class_and_traits_of(
    pool: Mapping[str, Any], tags: hpc_tags.Tags | None
) -> tuple[str, frozenset[str]]:
    """Return class and traits of a PCI pool, as the compute node reports them to Placement."""
    claimed = tags.resource_class if tags is not None else None
    own_class = translator.get_resource_class(claimed, pool["vendor_id"], pool["product_id"])
    own_traits = translator.get_traits(",".join(tags.traits) if tags is not None else "")
    if strutils.bool_from_string(pool.get("live_migratable", "false")):
        own_traits = own_traits | {"HW_PCI_LIVE_MIGRATABLE"}
    return own_class, frozenset(own_traits)


def _contradiction_of_class(
    tags: hpc_tags.Tags | None, own_class: str, kind: DeviceKind
) -> str | None:
    if tags is None or tags.resource_class is None or own_class == kind.resource_class:
        return None
    return (
        f"tag {hpc_tags.RESOURCE_CLASS} is {tags.resource_class}, but Placement's record has "
        f"{kind.resource_class}"
    )


def usable_part_of_pool(
    known_pool: KnownPool,
    provider: str | None,
    count: int,
    free: Mapping[DeviceKind, Amounts | None],
) -> SeenPool | None:
    """Return the usable part of a PCI pool at this moment.

    :param count: free functions, as the pools count them.
    :param free: Placement's free devices; None for a kind if unknown.
    :returns: None if nothing is free, or if the device is neither wanted
        nor tagged.
    :raises hpc_tags.TagError: it is unusable; the text gives the reason.
    """
    if known_pool.fault is not None:
        raise hpc_tags.TagError(known_pool.fault)
    serves: list[str] = sorted(known_pool.ports)
    amount, taken = count, False
    if known_pool.matches and not provider:
        raise hpc_tags.TagError(
            "it is not in Placement; set [pci]report_in_placement = True on the node"
        )
    for match in known_pool.matches:
        asked = free.get(match.kind)
        # The amount also shows whether it has any; a second call would double the time.
        part = 0 if asked is None or count <= 0 else asked.of(provider, count)
        if asked is None:
            if match.is_kind:
                serves.append(match.want)
        elif part > 0 or (count <= 0 and asked.has(provider)):
            if match.contradiction is not None:
                raise hpc_tags.TagError(match.contradiction)
            serves.append(match.want)
            amount = min(amount, part)
        elif match.is_kind:
            # It is of this kind, but not among the free devices: a server that is
            # being built has it.
            taken = True
    if amount <= 0 or (not serves and (taken or known_pool.tags is None)):
        return None
    return SeenPool(known_pool, frozenset(serves), amount)
