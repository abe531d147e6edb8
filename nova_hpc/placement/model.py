# SPDX-License-Identifier: Apache-2.0
"""The input of the placement engine, and its answers. Data only.

A *request* is a flavor in the engine's words, a *host* lists the free resources of one
node, and an *answer* contains the best device sets with their level, or the nearest miss.
Nothing here depends on Nova; identifiers are opaque strings to the engine.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc_common.level import AffinityPolicy, Distance, Level, Location

#: Most devices of one alias in one server: more than any host has.
MAX_COUNT: Final = 1024


class Nvlink(enum.Enum):
    """``hpc:nvlink``: whether the GPUs of a group must be a whole NVLink set."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    NONE = "none"


@attrs.frozen
class Want:
    """The devices of one PCI alias in the flavor: *count* devices of one kind."""

    key: str  # Nova's PCI request id; opaque here
    name: str  # the alias, for people
    count: int  # devices, at least 1


@attrs.frozen
class Ports:
    """Neutron's direct ports of one kind: each takes one function of an adapter.

    They are not devices of the flavor: the server brings them, and Placement does not
    count them. Each belongs to one of the groups, see
    :mod:`nova_hpc.placement.ports`.
    """

    key: str  # a key of DevicePool.serves, like a want's
    name: str  # the word of hpc:group under which they are dealt: "port", or a role
    count: int
    #: The functions that they can have, for operators: "physical network rail0".
    network: str = ""


def _copy_counts(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(counts)


def _copy_words(words: Mapping[str, str]) -> dict[str, str]:
    return dict(words)


@attrs.frozen
class DeviceGroup:
    """Devices that must be co-located: how many of each alias, by :attr:`Want.key`."""

    counts: Mapping[str, int] = attrs.field(converter=_copy_counts, hash=False)

    @property
    def size(self) -> int:
        """Number of devices in the group."""
        return sum(self.counts.values())


@attrs.frozen
class WantedCell:
    """One NUMA cell of the requested guest. Each cell is placed on one NUMA node of the host."""

    id: int
    dedicated_cpus: int = 0
    memory_kib: int = 0
    page_kib: int | None = None  # None: no explicit page size
    host_node: int | None = None  # set when the mapping is already fixed
    #: The host nodes that can take it; None if their free amounts decide.
    nodes: frozenset[int] | None = None


@attrs.frozen
class Cap:
    """An upper limit for a choice: at most *most* devices from some pools for some aliases.

    A search adds caps after a choice that the server's ports cannot use.
    """

    pools: frozenset[str]  # DevicePool.id
    names: frozenset[str]  # Want.name
    most: int


@attrs.frozen
class Request:
    """The device request of one server, validated: the input of the placement engine.

    It comes from a flavor with ``hpc:`` keys, its image and the server's direct ports.
    """

    #: One for each alias. The scheduler searches pools for them; the node compares them with
    #: the claimed devices before the start.
    wants: tuple[Want, ...]
    #: The groups of the wants; the ports are added to them.
    groups: tuple[DeviceGroup, ...]
    #: The widest level that a group may have (``hpc:affinity``). Within one host a tighter one
    #: is always better; between hosts all levels up to it count alike.
    level: Level
    #: REQUIRED: a wider set is a miss, in the filter and before the start. PREFERRED: it is
    #: accepted, and ranked behind all sets that reach the level.
    policy: AffinityPolicy
    #: The guest's NUMA cells; () if it has no NUMA topology, so that its memory floats.
    cells: tuple[WantedCell, ...] = ()
    #: Groups must sit on the guest's cells (hw:pci_numa_affinity_policy).
    on_cells: bool = False
    #: The NVLink devices of each group are exactly one of FreeHost.nvlink.
    nvlink: Nvlink = Nvlink.NONE
    #: No two devices from one pool (``group_policy=isolate``).
    apart: bool = False
    #: Want.key -> the role that its devices must have, if it is known.
    roles: Mapping[str, str] = attrs.field(factory=dict, converter=_copy_words, hash=False)
    #: Neutron's direct ports, which are dealt to the groups; the node has them, too, before
    #: the start.
    ports: tuple[Ports, ...] = ()
    #: Bounds for all ports of some networks together.
    caps: tuple[Cap, ...] = ()
    #: Nova's policy for devices off the guest's cells; None if the caller does not give it.
    numa_policy: str | None = None
    #: The guest's tree of devices mirrors the host's: none may be off its cells.
    mirror: bool = False


@attrs.frozen
class DevicePool:
    """Free devices that Nova does not distinguish: the inventory of one resource provider.

    A physical device is a pool of one; all virtual functions of a physical
    function are one pool.
    """

    id: str  # resource provider UUID in the scheduler, PCI address on a node
    name: str  # PCI address, for people
    #: The place of the devices; in the scheduler it comes from the pool's tags.
    location: Location
    #: Devices that may be chosen now; for the check of a claim, at least the claimed ones.
    free: int
    #: Keys of the wants and ports that it can serve; empty for devices that the request
    #: does not want, which still count for IOMMU units and for the damage.
    serves: frozenset[str]
    unit: str | None = None  # IOMMU unit that is given whole or not at all
    #: Role of the devices, for requests of later servers; None if unknown.
    role: str | None = None
    #: Equal for an adapter and its virtual functions if both are free: a
    #: server cannot have the adapter and some of its functions. None if there is no such pool.
    rival: str | None = None
    #: With a *rival*: whether the pool is the adapter itself. Otherwise it has functions of it,
    #: in several pools if they differ, and they are given together.
    whole: bool = False
    #: How many aliases of the cloud its devices can serve, the request's included; 0 if
    #: unknown, or none.
    aliases: int = 0


@attrs.frozen
class HostNode:
    """Free CPUs and pages of one NUMA node of a host. An unknown amount is None and not checked."""

    id: int
    socket: int | None = None
    dedicated_cpus: int | None = None
    #: page size in KiB -> free pages
    pages: Mapping[int, int] | None = attrs.field(default=None, hash=False)


@attrs.frozen
class FreeHost:
    """The free devices, CPUs and pages of one compute node."""

    #: For people; no decision depends on it.
    name: str
    #: All free devices of the host; for the check of a claim, at least the claimed ones.
    pools: tuple[DevicePool, ...]
    #: NUMA nodes, with their free dedicated CPUs and pages; () if unknown.
    nodes: tuple[HostNode, ...] = ()
    #: Legal NVLink sets that are completely free: ids of pools of one device
    #: each. A partition of NVSwitches, or GPUs with direct links.
    nvlink: tuple[frozenset[str], ...] = ()


@attrs.frozen
class Pick:
    """One device of a device set: its alias, its pool, and its group."""

    want: str  # Want.key, or Ports.key
    pool: str  # DevicePool.id
    group: int  # index into Request.groups
    cell: int | None  # WantedCell.id of the guest; None without guest cells


@attrs.frozen
class DeviceSet:
    """The devices chosen for one server, with the level and the score that they reach.

    The scheduler makes a candidate of it. Before the start the node makes one of exactly the
    claimed devices, and the record of the decision contains its level.
    """

    #: One for each device. For a virtual function the scheduler chooses only the adapter; after
    #: the claim it is the function itself.
    picks: tuple[Pick, ...]
    #: The widest level of its groups: each check of ``hpc:affinity`` uses it.
    level: Level
    #: The longest path inside a group.
    distance: Distance
    #: Guest cell id -> host NUMA node: the scheduler requests this fit from Nova; in the check
    #: of a claim, Nova has already fitted the guest.
    cells: Mapping[int, int] = attrs.field(factory=dict, hash=False)
    #: Smaller is better, compared as a tuple, also between hosts; the check of a claim
    #: compares it with nothing. Its parts: :mod:`nova_hpc.placement.solver.measure`.
    score: tuple[int, ...] = ()
    #: For people: the scheduler's log and ``explain``.
    reason: str = ""
    #: Whether the damage in the score was measured; otherwise its value has no meaning.
    measured: bool = True


class Unmet(enum.IntEnum):
    """The requirement of a flavor that a host does not meet; a later value is a nearer miss."""

    OTHER = 0  # the host cannot be used
    DEVICES = 1  # so many devices
    KNOWN = 2  # devices with a known NUMA node
    TOGETHER = 3  # at the level of hpc:affinity
    PORTS = 4  # with a function of an adapter for each direct port
    NVLINK = 5  # in whole NVLink sets
    BESIDE = 6  # next to free CPUs and memory


@attrs.frozen
class DeviceMiss:
    """The reason why a host has no device set for a request: its nearest miss, as texts and
    counts.
    """

    #: For operators: "4 gpu free, but at most 2 under one switch". The
    #: caller puts the host's name in front.
    operator: str
    #: For users who may see the cloud's capacity: counts and levels only, no host, no
    #: address.
    user: str
    unmet: Unmet = Unmet.OTHER
    #: If too few are free: the name of each alias, how many are free, and how many are needed.
    #: *operator* then begins with *user*.
    short: tuple[tuple[str, int, int], ...] = ()


@attrs.frozen
class ChoiceAnswer:
    """Device sets of one host, best first. Without a device set it has the nearest miss."""

    sets: tuple[DeviceSet, ...] = ()
    miss: DeviceMiss | None = None
