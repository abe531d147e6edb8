# SPDX-License-Identifier: Apache-2.0
"""The operator's options of the driver, read once and checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from nova_hpc.fabric.partitions.backends.base import Capabilities
from nova_hpc.fabric.partitions.keys import DEFAULT_PKEY, LARGEST_PKEY, LEAST_PKEY, format_pkey
from nova_hpc.fabric.partitions.members import PartitionPolicy

#: Longest name of a fabric, in characters: the columns have that many.
LONGEST_FABRIC: Final = 64
_MOST_SERVICE_LEVEL: Final = 15
_MOST_RATE: Final = 63
#: Bytes -> the encoding of the InfiniBand specification.
_MTUS: Final = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}


class FabricOptionError(ValueError):
    """An option of ``[hpc_partitions]`` cannot be used. The text names it."""


def _freeze_mapping(values: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(dict(values))


@attrs.frozen
class FabricSettings:
    """The operator's settings for fabrics, from ``[hpc_partitions]``.

    :ivar fabrics: physical network -> fabric.
    :ivar capabilities: the separations that the subnet manager supports.
    :ivar limited_pkeys: in networks with these keys, ports of other projects than the network's
        own are limited members.
    """

    fabrics: Mapping[str, str] = attrs.field(converter=_freeze_mapping)
    capabilities: Capabilities
    reserved_pkeys: frozenset[int] = frozenset()
    limited_pkeys: frozenset[int] = frozenset()
    policies: Mapping[int, PartitionPolicy] = attrs.field(factory=dict, converter=_freeze_mapping)
    direct_vif_type: str = "hostdev_physical"
    #: Seconds.
    bind_wait: float = 5.0
    member_timeout: float = 30.0

    def names_of_fabrics(self) -> frozenset[str]:
        """Return the names of all configured fabrics."""
        return frozenset(self.fabrics.values())


def read_fabric_settings(options: Any, capabilities: Capabilities) -> FabricSettings:
    """Read and check the group ``[hpc_partitions]``.

    :raises FabricOptionError: a value cannot be used.
    """
    long = [name for name in options.physical_networks.values() if len(name) > LONGEST_FABRIC]
    if long or not all(options.physical_networks.values()):
        raise FabricOptionError(
            f"[hpc_partitions]physical_networks: the name of a fabric has 1 to {LONGEST_FABRIC} "
            f"characters: {', '.join(long) or 'one has none'}"
        )
    return FabricSettings(
        fabrics=options.physical_networks,
        capabilities=capabilities,
        reserved_pkeys=_read_pkeys("reserved_pkeys", options.reserved_pkeys),
        limited_pkeys=_read_pkeys("limited_pkeys", options.limited_pkeys),
        policies=_read_policies(options, capabilities),
        direct_vif_type=options.direct_vif_type,
        bind_wait=options.bind_wait,
        member_timeout=options.member_timeout,
    )


def parse_pkey(text: object) -> int:
    """Parse a P_Key as people write it: ``0x0101``, ``257``. The full-membership bit is removed.

    :raises ValueError: it is none.
    """
    number = int(str(text).strip(), 0)
    pkey = number & DEFAULT_PKEY
    if pkey < LEAST_PKEY or number != number & 0xFFFF:
        raise ValueError(f"{text!r} is no P_Key")
    return pkey


def _read_pkeys(option: str, texts: Iterable[str]) -> frozenset[int]:
    try:
        return frozenset(map(parse_pkey, texts))
    except ValueError as error:
        raise FabricOptionError(f"[hpc_partitions]{option}: {error}") from error


def _read_policies(options: Any, capabilities: Capabilities) -> dict[int, PartitionPolicy]:
    levels = _read_numbers("service_levels", options.service_levels, _MOST_SERVICE_LEVEL)
    if levels and not capabilities.service_levels:
        raise FabricOptionError("[hpc_partitions]service_levels: this subnet manager has none")
    speeds = _read_numbers("rates", options.rates, _MOST_RATE)
    mtus = _read_mtus(options.mtus)
    return {
        pkey: PartitionPolicy(levels.get(pkey), speeds.get(pkey), mtus.get(pkey))
        for pkey in sorted(levels.keys() | speeds.keys() | mtus.keys())
    }


def _read_mtus(values: Mapping[str, str]) -> dict[int, int]:
    sizes = _read_numbers("mtus", values, max(_MTUS))
    for pkey, size in sizes.items():
        if size not in _MTUS:
            raise FabricOptionError(
                f"[hpc_partitions]mtus: {format_pkey(pkey)}:{size}: an MTU is 256, 512, 1024, 2048 "
                "or 4096 bytes"
            )
    return {pkey: _MTUS[size] for pkey, size in sizes.items()}


def _read_numbers(option: str, values: Mapping[str, str], most: int) -> dict[int, int]:
    numbers = {}
    for key, text in values.items():
        try:
            pkey, number = parse_pkey(key), int(text, 0)
        except ValueError as error:
            raise FabricOptionError(f"[hpc_partitions]{option}: {error}") from error
        if pkey > LARGEST_PKEY or not 0 <= number <= most:
            raise FabricOptionError(
                f"[hpc_partitions]{option}: {key}:{text}: the P_Key of a network is at most "
                f"{format_pkey(LARGEST_PKEY)}, the value 0 to {most}"
            )
        numbers[pkey] = number
    return numbers


def join_pkeys(pkeys: Collection[int]) -> str:
    """Format P_Keys as a list for a sentence: ``0x0001, 0x0101``."""
    return ", ".join(map(format_pkey, sorted(pkeys)))
