"""Which role the devices of an alias have: learned from the pools that are seen.

Aliases are Nova's and roles are this project's; the tags of the pools that an
alias matches connect the two, as they do for ``hpc:group``.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping
from typing import Any, Final

import attrs
from nova.pci import stats as pci_stats

from nova_hpc.from_nova.request import Device

#: Kinds of devices that are remembered; a cloud has a handful.
_MOST: Final = 256

#: Where a device is, and what differs from node to node.
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
class _Sample:
    """One pool of a kind, without its place."""

    pool: Mapping[str, Any] = attrs.field(eq=False)
    resource_class: str
    traits: frozenset[str]
    role: str


class Samples:
    """One pool of each kind of device; safe between threads."""

    def __init__(self) -> None:
        self._kept: dict[object, _Sample] = {}
        self._lock = threading.Lock()

    @property
    def version(self) -> int:
        """Changes when a new kind of device has been seen."""
        return len(self._kept)

    def learn(
        self, pool: Mapping[str, Any], resource_class: str, traits: frozenset[str], role: str
    ) -> None:
        """Remember a pool whose tags say *role*."""
        plain = {key: value for key, value in pool.items() if key not in _PLACE}
        key = (resource_class, traits, role, tuple(sorted(map(repr, plain.items()))))
        with self._lock:
            if key not in self._kept and len(self._kept) < _MOST:
                sample = {**plain, "count": 1, "numa_node": None}
                self._kept[key] = _Sample(sample, resource_class, traits, role)

    def role_of(self, device: Device) -> str | None:
        """The role that most kinds of devices which match an alias have."""
        with self._lock:
            samples = list(self._kept.values())
        stats = pci_stats.PciDeviceStats(None)
        found = collections.Counter(
            sample.role
            for sample in samples
            if sample.resource_class == device.kind.resource_class
            and device.kind.traits <= sample.traits
            and stats._filter_pools([sample.pool], device.probe, None, [])
        )
        return min(found, key=lambda role: (-found[role], role), default=None)


#: What this process has seen.
SAMPLES: Final = Samples()
