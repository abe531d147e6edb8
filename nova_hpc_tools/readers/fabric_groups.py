# SPDX-License-Identifier: Apache-2.0
"""All groups' domains in Placement, for ``nova-hpc fabric groups`` and ``reap``.

The entry points ``nova_fabric_groups`` and ``nova_fabric_reap`` of ``nova_hpc.readers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nova import context as nova_context

from nova_hpc.cluster.group_domain.records import PlacementSilentError, find_dead_tickets
from nova_hpc.from_nova import fabric_records
from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.snapshot import SnapshotError
from nova_hpc_tools.snapshot.group_fleet import (
    DomainFleet,
    GroupLine,
    Reaped,
    list_group_lines,
    reap_all_domains,
)


def read_group_lines(arguments: Sequence[str] = ()) -> tuple[GroupLine, ...]:
    """Read the records of every server group from Placement.

    :param arguments: as for :func:`nova_hpc_tools.readers.snapshot.read_snapshot`.
    :raises nova_hpc_tools.snapshot.SnapshotError: it cannot be read; the text names the cure.
    """
    context = _open_admin_context(arguments)
    with snapshot.explain_read_errors():
        try:
            return collect_group_lines(context)
        except PlacementSilentError as error:
            raise SnapshotError(str(error)) from error


def reap_group_domains(arguments: Sequence[str] = ()) -> Reaped:
    """Delete the records in Placement of server groups without servers.

    :raises nova_hpc_tools.snapshot.SnapshotError: it cannot be read; the text names the cure.
    """
    context = _open_admin_context(arguments)
    with snapshot.explain_read_errors():
        try:
            return sweep_group_domains(context)
        except PlacementSilentError as error:
            raise SnapshotError(f"{error}; completed steps stay done: try again") from error


def collect_group_lines(context: Any) -> tuple[GroupLine, ...]:
    """Read the groups like :func:`read_group_lines`, with Nova's configuration already loaded."""
    records = fabric_records.open_group_records(context)
    fleet = DomainFleet.of(records.providers())
    return list_group_lines(
        fleet, find_dead_tickets(records, fabric_records.ServerMappings(context), fleet.tickets)
    )


def sweep_group_domains(context: Any) -> Reaped:
    """Delete dead records like :func:`reap_group_domains`, with Nova's configuration loaded."""
    return reap_all_domains(
        lambda: fabric_records.open_group_records(context), fabric_records.ServerMappings(context)
    )


def _open_admin_context(arguments: Sequence[str]) -> Any:
    snapshot.configure_nova(arguments)
    return nova_context.get_admin_context()
