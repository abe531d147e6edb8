# SPDX-License-Identifier: Apache-2.0
"""A port of a member, as Neutron shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from nova_hpc_client.cluster.members.marks import place_of_kept_port


@attrs.frozen
class MemberPort:
    """A port of a member.

    :ivar server: id of the server that has it; empty if none has.
    :ivar place: its member's number and the index of its network; None if it is not a kept port.
    :ivar addresses: its fixed IP addresses.
    """

    id: str
    name: str
    server: str = ""
    addresses: tuple[str, ...] = ()
    place: tuple[int, int] | None = None


def read_port(port: Mapping[str, Any]) -> MemberPort:
    """Parse a port record of Neutron's API."""
    return MemberPort(
        str(port["id"]),
        str(port.get("name") or ""),
        str(port.get("device_id") or ""),
        tuple(str(fixed["ip_address"]) for fixed in port.get("fixed_ips") or ()),
        place_of_kept_port(port),
    )
