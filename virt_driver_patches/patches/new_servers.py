# SPDX-License-Identifier: Apache-2.0
"""The claim of a new server passes its flavor to the wraps of Nova's functions.

:mod:`nova_hpc.from_nova.patches` chooses the cells and devices of the claim. The
claims of moves pass their flavor in :mod:`~virt_driver_patches.patches.moves`.

The claim itself has no bug and no report, but the functions that it calls do not get the flavor
(``docs/source/contributor/upstream/index.rst``, numa-fit-order, explains why that matters).
"""

from __future__ import annotations

from typing import Any, Final

from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.from_nova.patches.serving import serve_flavor
from virt_driver_patches.patches import ports

CLAIM: Final = Patch(
    "nova.compute.resource_tracker:ResourceTracker.instance_claim",
    parameters=("context", "instance", "nodename"),
    lines={32: (161, 242), 33: (161, 242), 34: (161, 242)},
    why="It says which flavor NUMA nodes and devices are claimed for; the claim follows the "
    "scheduler's choice of nodes with it.",
    until="numa_fit_instance_to_host is not wrapped any more",
)


def serve_new_claims(tracker: Any) -> None:
    """Wrap the resource tracker.

    :raises nova.exception.InvalidConfiguration: the method is not as expected.
    """
    wrap_method(tracker, CLAIM, _claim_for_server)


def _claim_for_server(call: Call) -> Any:
    instance = call.given["instance"]
    with (
        serve_flavor(instance.flavor, instance.image_meta),
        ports.claim_port_adapters(instance, instance.flavor),
    ):
        return call()
