# SPDX-License-Identifier: Apache-2.0
"""A periodic update counts a server with its former resources while it is resized on its own host.

Between the claim of a resize and ``finish_resize`` the server's record has its former
flavor and its former NUMA topology. If the server comes from another host, this host
must already count the new ones. So the update applies the migration context to each
server whose migration comes here (``_update_available_resource``, Nova's bug 1953359).
But a resize on one host comes here, too. Nova then counts the new topology a second
time, for the migration (``_update_usage_from_migration``, "Record usage for the 'new_'
resources"), and the former one not at all.

Dedicated CPUs cannot be pinned twice: the update breaks off with ``CPUPinningInvalid``.
Until the next update the CPUs of a guest that still runs count as free. A confirm that
comes earlier ends with ``CPUUnpinningInvalid``: the server is in ERROR. Without dedicated
CPUs no error is raised, but memory, including huge pages, is counted wrongly.

So this module reverts the migration context of such a server before anything is counted.

Report: ``docs/source/contributor/upstream/index.rst`` (same-host-usage). The bug came with the fix
of bug 1953359; no bug is known to be filed for it.
"""

from __future__ import annotations

from typing import Any, Final

from nova import exception, objects
from nova.compute import task_states

from nova_hpc.from_nova.gate import Call, Patch, wrap_method

USAGE: Final = Patch(
    "nova.compute.resource_tracker:ResourceTracker._update_usage_from_instances",
    parameters=("context", "instances", "nodename"),
    lines={32: (1687, 1712), 33: (1687, 1712), 34: (1688, 1713)},
    why="A periodic update during a resize on one host pins the new CPUs twice and the former "
    "ones not at all: it breaks off, the CPUs of a running guest count as free, and a confirm "
    "before the next update ends in ERROR.",
    until="Nova applies the migration context only to servers that come from another host",
)

#: From the claim on the destination until ``_finish_resize`` saves the applied context.
_BEFORE_FINISH: Final = frozenset(
    {task_states.RESIZE_PREP, task_states.RESIZE_MIGRATING, task_states.RESIZE_MIGRATED}
)


def count_resized_once(tracker: Any) -> None:
    """Wrap the resource tracker.

    :raises nova.exception.InvalidConfiguration: the method is not as expected.
    """
    wrap_method(tracker, USAGE, _revert_same_host_contexts)


def _revert_same_host_contexts(call: Call) -> Any:
    context = call.given["context"].elevated(read_deleted="yes")
    for instance in call.given["instances"]:
        if instance.task_state in _BEFORE_FINISH and _stays_here(context, instance):
            # Nova changes these objects in the same way, and does not save them.
            instance.revert_migration_context()
    return call()


def _stays_here(context: Any, instance: Any) -> bool:
    """Whether a server is resized on its own host, and has claimed its new resources."""
    if instance.migration_context is None:
        return False
    number = instance.migration_context.migration_id
    try:
        return bool(objects.Migration.get_by_id(context, number).is_same_host_resize)
    except exception.MigrationNotFound:
        return False  # then Nova counts no migration either
