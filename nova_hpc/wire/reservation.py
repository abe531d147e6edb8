# SPDX-License-Identifier: Apache-2.0
"""The part of the ledger that says what is reserved in Placement, and for whom.

By the address that a resource provider is named after, so by a place and no piece of
hardware::

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
    """The amounts of a device's resource provider that are reserved in Placement, and by whom.

    What is reserved there is the greater one of :attr:`ours` and :attr:`operators`.
    """

    uuid: str
    resource_class: str
    #: Its total when this was written.
    total: int
    #: Devices that this node withholds.
    ours: int = 0
    #: What an operator has reserved.
    operators: int = 0
    #: What was reserved before, which the change may not have reached yet; None: it has.
    earlier: int | None = None
    #: Seconds since the epoch at which its last device vanished; None: it has not.
    gone: float | None = None

    @property
    def reserved(self) -> int:
        """The reserved amount that Placement was told."""
        return min(self.total, max(self.ours, self.operators))

    def dumps(self) -> dict[str, Any]:
        """As JSON can hold it."""
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
    """As JSON can hold it."""
    return {address: providers[address].dumps() for address in sorted(providers)}


def read_reservations(body: Any, problems: list[str]) -> dict[str, ReservedProvider]:
    """Read it; an entry that cannot be read is lost, and said to be in *problems*."""
    if body is None:
        return {}
    if not isinstance(body, dict):
        problems.append("what is reserved in Placement cannot be read")
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
            problems.append(f"{key}: what is reserved of its provider cannot be read")
    return by_address
