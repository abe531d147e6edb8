# SPDX-License-Identifier: Apache-2.0
"""The part of the ledger with the reservations in Placement, and their owners.

The key is the address that a resource provider is named after, so it stands for a place and
not for a piece of hardware::

    {"0000:41:00.0": {"uuid": "<uuid>", "class": "CUSTOM_GPU", "total": 1,
                      "ours": 1, "operators": 0, "earlier": 0, "gone": 1790000000.0}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from nova_hpc.topology.model import AddressError, normalise_address
from nova_hpc.wire.values import require_count, require_finite, require_type


@attrs.frozen
class ReservedProvider:
    """The amounts of a device's resource provider that are reserved in Placement, by owner.

    The reservation in Placement is the greater one of :attr:`ours` and :attr:`operators`.
    """

    uuid: str
    resource_class: str
    #: Its total when this record was written.
    total: int
    #: Devices that this node withholds.
    ours: int = 0
    #: Amount that an operator has reserved.
    operators: int = 0
    #: Amount before a change that may not have reached Placement yet; None if it has.
    earlier: int | None = None
    #: Seconds since the epoch at which its last device vanished; None if it has not.
    gone: float | None = None

    @property
    def reserved(self) -> int:
        """The reserved amount that was last sent to Placement."""
        return min(self.total, max(self.ours, self.operators))

    def dumps(self) -> dict[str, Any]:
        """Return the reservation as a JSON object."""
        body: dict[str, Any] = {
            "uuid": self.uuid,
            "class": self.resource_class,
            "total": self.total,
            "ours": self.ours,
            "operators": self.operators,
        }
        if self.earlier is not None:
            body["earlier"] = self.earlier
        if self.gone is not None:
            body["gone"] = self.gone
        return body


def write_reservations(providers: Mapping[str, ReservedProvider]) -> dict[str, Any]:
    """Return all reservations as a JSON object, by PCI address."""
    return {address: providers[address].dumps() for address in sorted(providers)}


def read_reservations(body: Any, problems: list[str]) -> dict[str, ReservedProvider]:
    """Read the reservations in Placement from the ledger.

    An unreadable entry is lost, and *problems* names it.
    """
    if body is None:
        return {}
    if not isinstance(body, dict):
        problems.append("the reservations in Placement cannot be read")
        return {}
    by_address: dict[str, ReservedProvider] = {}
    for key, value in body.items():
        try:
            by_address[normalise_address(key)] = ReservedProvider(
                uuid=require_type(value["uuid"], str),
                resource_class=require_type(value["class"], str),
                total=require_count(value["total"]),
                ours=require_count(value.get("ours", 0)),
                operators=require_count(value.get("operators", 0)),
                earlier=None if value.get("earlier") is None else require_count(value["earlier"]),
                gone=None if value.get("gone") is None else require_finite(value["gone"]),
            )
        except (AddressError, AttributeError, KeyError, TypeError, ValueError):
            problems.append(f"{key}: the reservations of its provider cannot be read")
    return by_address
