# SPDX-License-Identifier: Apache-2.0
"""Decides which networks are partitions. Pure: segments in, a key or a reason out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import attrs

from neutron_drivers.errors import WrongWishError
from neutron_drivers.fabrics import FabricSettings
from nova_hpc.fabric.partitions.keys import LARGEST_PKEY, LEAST_PKEY, format_pkey

_VLAN: Final = "vlan"
#: The attributes of a network that determine its partition.
PROVIDER_ATTRIBUTES: Final = (
    "provider:network_type",
    "provider:physical_network",
    "provider:segmentation_id",
    "segments",
)


@attrs.frozen(order=True)
class FabricKey:
    """A P_Key in one InfiniBand fabric: the name of a partition."""

    fabric: str
    pkey: int

    def __str__(self) -> str:
        return f"P_Key {format_pkey(self.pkey)} of fabric {self.fabric}"


def find_fabric_key(
    segments: Sequence[Mapping[str, Any]], settings: FabricSettings
) -> FabricKey | None:
    """Find P_Key and fabric of a network; None if it is on no InfiniBand physical network.

    :param segments: as Neutron's drivers get them.
    :raises WrongWishError: it is on an InfiniBand physical network and cannot be a partition.
    """
    ours = [one for one in segments if one["physical_network"] in settings.fabrics]
    if not ours:
        return None
    for segment in ours:
        if segment["network_type"] != _VLAN:
            raise WrongWishError(
                f"a network on the InfiniBand physical network {segment['physical_network']} "
                "is of type vlan: its segmentation id is its P_Key"
            )
    if len(segments) > 1:
        # A port is bound to only one segment, so it could not reach members of the other.
        raise WrongWishError(
            "a network on an InfiniBand physical network has one segment: it is one partition"
        )
    pkey = ours[0]["segmentation_id"]
    if pkey is None or not LEAST_PKEY <= pkey <= LARGEST_PKEY:
        raise WrongWishError(f"segmentation id {pkey} is no P_Key of a network")
    return FabricKey(settings.fabrics[ours[0]["physical_network"]], pkey)


def check_free_key(
    key: FabricKey, settings: FabricSettings, foreign_pkeys: Collection[int]
) -> None:
    """Refuse a P_Key that no network may have.

    :param foreign_pkeys: keys of the administrator's own partitions at the subnet manager.
    :raises WrongWishError: the key is reserved, or one of the foreign ones.
    """
    if key.pkey in settings.reserved_pkeys:
        raise WrongWishError(f"P_Key {format_pkey(key.pkey)} is reserved by the operator")
    if key.pkey in foreign_pkeys:
        raise WrongWishError(
            f"P_Key {format_pkey(key.pkey)} is reserved: a partition of the fabric's "
            "administrator has it"
        )
