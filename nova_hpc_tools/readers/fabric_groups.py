# SPDX-License-Identifier: Apache-2.0
"""All groups' domains in Placement, for ``nova-hpc fabric groups`` and ``reap``.

The entry points ``nova_fabric_groups`` and ``nova_fabric_reap`` of ``nova_hpc.readers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nova_hpc.cluster.group_domain.records import NoAnswerError, dead
from nova_hpc.from_nova import fabric_records
from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.snapshot import SnapshotError
from nova_hpc_tools.snapshot.group_fleet import Fleet, GroupLine, Reaped, lines, reap


def read(arguments: Sequence[str] = ()) -> tuple[GroupLine, ...]:
    """What Placement holds of every group.

    :param arguments: as those of :func:`nova_hpc_tools.readers.snapshot.read`.
    :raises nova_hpc_tools.snapshot.SnapshotError: it cannot be read; the text names the cure.
    """
    context = _begin(arguments)
    with snapshot.explained():
        try:
            return take(context)
        except NoAnswerError as error:
            raise SnapshotError(str(error)) from error


def reap_all(arguments: Sequence[str] = ()) -> Reaped:
    """Take away what nobody has any more.

    :raises nova_hpc_tools.snapshot.SnapshotError: it cannot be read; the text names the cure.
    """
    context = _begin(arguments)
    with snapshot.explained():
        try:
            return sweep_all(context)
        except NoAnswerError as error:
            raise SnapshotError(f"{error}; what was done stays done: try again") from error


def take(context: Any) -> tuple[GroupLine, ...]:
    """The same as read(), with the configuration that is in force."""
    records = fabric_records.records(context)
    fleet = Fleet.of(records.providers())
    return lines(fleet, dead(records, fabric_records.Servers(context), fleet.tickets))


def sweep_all(context: Any) -> Reaped:
    """The same as reap_all(), with the configuration that is in force."""
    return reap(lambda: fabric_records.records(context), fabric_records.Servers(context))


def _begin(arguments: Sequence[str]) -> Any:
    snapshot.configure(arguments)
    return fabric_records.admin_context()
