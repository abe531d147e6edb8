# SPDX-License-Identifier: Apache-2.0
"""Wraps of nova-scheduler alone: which server it serves, what it answers, its alternates."""

from __future__ import annotations

import threading
from typing import Any, Final

from nova.scheduler import host_manager
from nova.scheduler.filters import numa_topology_filter

from nova_hpc.from_nova import patches
from nova_hpc.from_nova.gate import Call, Patch, wrap
from nova_hpc.from_nova.patches import alternates, answers
from nova_hpc.from_nova.patches.serving import serving

FILTER: Final = Patch(
    "nova.scheduler.filters.numa_topology_filter:NUMATopologyFilter.host_passes",
    parameters=("host_state", "spec_obj"),
    lines={32: (66, 132), 33: (66, 132), 34: (66, 132)},
    why="It says which flavor Nova's functions are asked about; with them, the filter agrees "
    "with HpcTopologyFilter.",
    until="numa_fit_instance_to_host is not wrapped any more",
)
CONSUME: Final = Patch(
    "nova.scheduler.host_manager:HostState.consume_from_request",
    parameters=("spec_obj",),
    lines={32: (264, 276), 33: (263, 275), 34: (264, 276)},
    why="As for the filter, when a server's share is taken from the host for the next server of "
    "the request.",
    until="numa_fit_instance_to_host is not wrapped any more",
)

ALL: Final[tuple[Patch, ...]] = (
    FILTER,
    CONSUME,
    answers.SELECT,
    answers.DECIDE,
    alternates.ALTERNATES,
)

_MARK: Final = "hpc_serving"
_LOCK: Final = threading.Lock()


def install() -> None:
    """Install what the scheduler needs, that of both services included (idempotent).

    Nova's classes are wrapped, of which there are new objects for each request.

    :raises nova.exception.InvalidConfiguration: this Nova is not known; then nothing is
        wrapped.
    """
    for patch in ALL:
        patch.function()
    patches.install()
    with _LOCK:
        for owner, patch in (
            (numa_topology_filter.NUMATopologyFilter, FILTER),
            (host_manager.HostState, CONSUME),
        ):
            if not hasattr(getattr(owner, patch.name), _MARK):
                wrap(owner, patch, _serving)
                setattr(getattr(owner, patch.name), _MARK, True)
        answers.install()
        alternates.install()


def _serving(call: Call) -> Any:
    spec = call.given["spec_obj"]
    if "flavor" not in spec:
        return call()
    with serving(spec.flavor, spec.image if "image" in spec else None):
        return call()
