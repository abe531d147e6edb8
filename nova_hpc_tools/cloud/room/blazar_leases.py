# SPDX-License-Identifier: Apache-2.0
"""Reads the leases of Blazar, whose servers end with them."""

from __future__ import annotations

from typing import Any, Final

import attrs

from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError
from nova_hpc_tools.snapshot import Snapshot, SnapshotLease

#: The key of a lease's private flavor, with the ID of its reservation.
RESERVATION: Final = "aggregate_instance_extra_specs:reservation"
_SERVICE: Final = "reservation"


def add_leases(cloud: Snapshot, compute: Any) -> Snapshot:
    """Return the snapshot with the leases that have servers in it.

    :param compute: the compute proxy of openstacksdk, whose session also reaches Blazar.
    :raises NovaApiError: the cloud has no Blazar, or it does not answer.
    """
    servers: dict[str, list[str]] = {}
    for server in cloud.servers:
        reservation = server.extra_specs.get(RESERVATION)
        if reservation is not None:
            servers.setdefault(reservation, []).append(server.uuid)
    leases = []
    for lease in _read_leases(compute):
        uuids = [
            uuid
            for reservation in lease["reservations"]
            for uuid in servers.get(reservation["id"], ())
        ]
        if uuids:
            # Blazar's times are in UTC, without a zone.
            until = f"{lease['end_date']}Z"
            leases.append(SnapshotLease(printable_text(lease["name"]), until, tuple(uuids)))
    return attrs.evolve(cloud, leases=(*cloud.leases, *leases))


def _read_leases(compute: Any) -> list[Any]:
    try:
        place = {
            "service_type": _SERVICE,
            "interface": "public",
            "region_name": compute.region_name,
        }
        answer = compute.session.get("/leases", endpoint_filter=place)
        leases: list[Any] = answer.json()["leases"]
    except Exception as error:  # keystoneauth and requests have errors of their own
        text = printable_text(" ".join(str(error).split()))
        raise NovaApiError(
            f"the leases of Blazar cannot be read: {text}; leave --leases out"
        ) from error
    return leases
