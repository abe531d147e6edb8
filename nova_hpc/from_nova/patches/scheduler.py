# SPDX-License-Identifier: Apache-2.0
"""Wraps only for nova-scheduler: the server that it serves, its answers, its alternates.

Nova's functions for NUMA nodes and devices do not get the flavor. So their callers are wrapped to
provide it (:mod:`nova_hpc.from_nova.patches.serving`). These have no fault of their own,
and no bug is known to be filed: they go with the wraps that need the flavor.
"""

from __future__ import annotations

import copy
import threading
from typing import Any, Final

from nova import exception
from nova.objects import request_spec
from nova.scheduler import host_manager
from nova.scheduler.filters import numa_topology_filter

from nova_hpc.from_nova import overridden, patches, placement_answer
from nova_hpc.from_nova.contract import RELIED_ON
from nova_hpc.from_nova.gate import Call, Patch, warn_of_changes, wrap_method
from nova_hpc.from_nova.patches import (
    alternates,
    answers,
    candidate_question,
    claims,
    forced,
    host_reads,
)
from nova_hpc.from_nova.patches.numa_cells import Values
from nova_hpc.from_nova.patches.serving import current_served_flavor, serve_flavor

FILTER: Final = Patch(
    "nova.scheduler.filters.numa_topology_filter:NUMATopologyFilter.host_passes",
    parameters=("host_state", "spec_obj"),
    lines={32: (66, 132), 33: (66, 132), 34: (66, 132)},
    why="It passes the flavor to Nova's functions; with them, the filter agrees with "
    "HpcTopologyFilter. And Nova copies the whole request for each host, which takes most "
    "of the filter's time, because the guest's topology is changed: here only the topology "
    "is copied.",
    until="numa_fit_instance_to_host is not wrapped any more",
)
CONSUME: Final = Patch(
    "nova.scheduler.host_manager:HostState.consume_from_request",
    parameters=("spec_obj",),
    lines={32: (264, 276), 33: (263, 275), 34: (264, 276)},
    why="As for the filter, when a server's share is taken from the host for the next server of "
    "the request; and Placement's answer is reduced by that share.",
    until="numa_fit_instance_to_host is not wrapped any more",
)

ALL: Final[tuple[Patch, ...]] = (
    FILTER,
    CONSUME,
    answers.SELECT,
    answers.DECIDE,
    alternates.ALTERNATES,
    claims.CLAIM,
    forced.FORCE,
    candidate_question.ASK,
    *host_reads.ALL,
)

_MARK: Final = "hpc_serving"
_LOCK: Final = threading.Lock()


def install_scheduler_patches() -> None:
    """Install the wraps of the scheduler, including the shared ones (idempotent).

    Nova's classes are wrapped, because each request has new objects of them.

    :raises nova.exception.InvalidConfiguration: this Nova is not supported; then nothing is
        wrapped.
    """
    for patch in ALL:
        patch.function()
    patches.install_shared_patches()
    own_patches = (*patches.BOTH, *ALL, *overridden.SCHEDULER)
    warn_of_changes([*(own_patch.target for own_patch in own_patches), *RELIED_ON])
    with _LOCK:
        for owner, patch, around in (
            (numa_topology_filter.NUMATopologyFilter, FILTER, _filter_as_served),
            (host_manager.HostState, CONSUME, _consume_as_served),
        ):
            if not hasattr(getattr(owner, patch.name), _MARK):
                wrap_method(owner, patch, around)
                setattr(getattr(owner, patch.name), _MARK, True)
        answers.install_answers_patches()
        alternates.install_alternates_patch()
        claims.install_claims_patch()
        forced.install_forced_patch()
        candidate_question.install_question_patch()
        host_reads.install_host_reads_patch()


def try_scheduler_patches() -> list[str]:
    """Install the wraps; returns why this Nova is not supported, or [] if it is."""
    try:
        install_scheduler_patches()
    except exception.InvalidConfiguration as error:
        return [str(error)]
    return []


def _consume_as_served(call: Call) -> Any:
    spec = call.given["spec_obj"]
    placement_answer.subtract_consumed(spec, call.given["self"])
    if "flavor" not in spec:
        return call()
    with serve_flavor(spec.flavor, spec.image if "image" in spec else None):
        return call()


class _LightRequestSpec(request_spec.RequestSpec):
    """A request specification whose clones are almost free.

    Nova's filter changes only the guest's topology of its clone
    (``hardware.numa_fit_instance_to_host``), so the rest is shared.
    """

    @classmethod
    def of(cls, spec: request_spec.RequestSpec) -> _LightRequestSpec:
        """Return a shallow copy of the request; its clones do not change *spec*."""
        light: _LightRequestSpec = _copy_shallowly(spec)
        light.__class__ = cls
        return light

    def obj_clone(self) -> _LightRequestSpec:
        """Return a clone in which Nova's filter can change the guest's topology, for one host."""
        new: _LightRequestSpec = _copy_shallowly(self)
        if "numa_topology" in self and self.numa_topology is not None:
            new.numa_topology = Values.of(self.numa_topology).guest()
        return new


def _copy_shallowly(spec: Any) -> Any:
    new = copy.copy(spec)
    # The names of the fields that were set since it was loaded.
    new._changed_fields = set(spec._changed_fields)
    return new


def _filter_as_served(call: Call) -> Any:
    spec = call.given["spec_obj"]
    if "flavor" not in spec:
        return call()
    with serve_flavor(spec.flavor, spec.image if "image" in spec else None):
        # A class outside Nova may have clones of its own.
        if current_served_flavor() is None or type(spec) is not request_spec.RequestSpec:
            return call()
        return call(spec_obj=_LightRequestSpec.of(spec))
