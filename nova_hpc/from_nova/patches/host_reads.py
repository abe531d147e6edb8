# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler reads only the changed records of hosts again.

Only for requests with ``hpc:`` flavors; :mod:`nova_hpc.from_nova.kept_hosts` describes the kept
data and why it is exact. The records are read in threads of their own, with a copy of the
context, so the list of uuids itself marks such a request. If the versions cannot be read,
everything is read as in Nova.

No bug is known to be filed: Nova is not at fault. Its earlier ``CachingScheduler`` kept hosts for
a time, and not until their records change.
"""

from __future__ import annotations

from typing import Any, Final

from nova import objects
from nova.objects import compute_node
from nova.scheduler import host_manager
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import timeutils

from nova_hpc.from_nova import kept_hosts
from nova_hpc.from_nova.cache import Once
from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.from_nova.kept_hosts import KEPT_HOSTS, KeptHost
from nova_hpc.placement import flavor

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

_MANAGER: Final = "nova.scheduler.host_manager"
STATES: Final = Patch(
    f"{_MANAGER}:HostManager.get_host_states_by_uuids",
    parameters=("self", "context", "compute_uuids", "spec_obj"),
    lines={32: (767, 788), 33: (765, 786), 34: (766, 787)},
    why="It shows for which request the records of hosts are read.",
    until="ComputeNodeList.get_all_by_uuids is not wrapped any more",
)
RECORDS: Final = Patch(
    "nova.objects.compute_node:ComputeNodeList.get_all_by_uuids",
    parameters=("context", "compute_uuids"),
    lines={32: (497, 502), 33: (502, 507), 34: (508, 513)},
    why="Nova reads the records of all hosts for each request, though nearly all are unchanged: "
    "half of the scheduler's own time, at some thousand hosts.",
    until="Nova caches its reading",
)
UPDATE: Final = Patch(
    f"{_MANAGER}:HostState._update_from_compute_node",
    parameters=("self", "compute"),
    lines={32: (184, 262), 33: (183, 261), 34: (184, 262)},
    why="Nova builds the same attributes of the same record for each request.",
    until="Nova caches its reading",
)

ALL: Final = (STATES, RECORDS, UPDATE)

_MARK: Final = "hpc_host_reads"
_ONCE: Final = Once()


class _ChangedOnly(list[str]):
    """Provider UUIDs. The compute nodes among them are read again only if they have changed."""


def install_host_reads_patch() -> None:
    """Wrap Nova's reading of host records, so that unchanged records are not read again.

    Nova's classes are wrapped: the host manager creates the filters, and does not exist yet.
    """
    for owner, patch, around in (
        (host_manager.HostManager, STATES, _ask_for_changed),
        (compute_node.ComputeNodeList, RECORDS, _read_changed),
        (host_manager.HostState, UPDATE, _update_from_kept),
    ):
        if not hasattr(getattr(owner, patch.name), _MARK):
            wrap_method(owner, patch, around)
            setattr(getattr(owner, patch.name), _MARK, True)


def _ask_for_changed(call: Call) -> Any:
    """Wrap Nova's reading of host states: the type of the uuids' list marks ``hpc:`` requests."""
    uuids, spec = call.given["compute_uuids"], call.given["spec_obj"]
    if (
        # A host manager outside Nova may read more of a record.
        type(call.given["self"]) is not host_manager.HostManager
        or not uuids
        or CONF.hpc.kept_hosts < 1
        or not isinstance(spec, objects.RequestSpec)
        or not flavor.has_hpc_keys(spec.flavor.extra_specs or {})
    ):
        return call()
    return call(compute_uuids=_ChangedOnly(uuids))


def _read_changed(call: Call) -> Any:
    """Wrap Nova's reading of one cell's compute nodes: kept hosts, and records of changed versions.

    The time is taken before the versions are read, so that a later write is never missed.
    """
    context, uuids = call.given["context"], call.given["compute_uuids"]
    if not isinstance(uuids, _ChangedOnly):
        return call()
    read_at = timeutils.utcnow()
    try:
        versions = kept_hosts.read_versions(context, set(uuids))
    except Exception as error:
        if _ONCE.first(("versions", type(error).__name__)):
            LOG.warning(
                "Which hosts have changed cannot be read (%s: %s); for this request, and as long "
                "as it stays so, the records of all hosts are read",
                type(error).__name__,
                error,
            )
        return call(compute_uuids=list(uuids))
    cell = context.cell_uuid
    hosts: dict[str, Any] = dict(KEPT_HOSTS.find(cell, versions))
    changed = [version[0] for version in versions if version[0] not in hosts]
    if changed:
        records = call(compute_uuids=changed)
        hosts |= {host.uuid: host for host in KEPT_HOSTS.keep(cell, records, read_at)}
    # A host may have been deleted since.
    return [hosts[version[0]] for version in versions if version[0] in hosts]


def _update_from_kept(call: Call) -> Any:
    compute = call.given["compute"]
    if not isinstance(compute, KeptHost):
        return call()
    return compute.update_state(call.given["self"])
