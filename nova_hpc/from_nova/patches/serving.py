# SPDX-License-Identifier: Apache-2.0
"""The server that Nova is choosing NUMA nodes and devices for at this moment.

Nova's functions get the guest's topology and its PCI requests, and neither names its
flavor. The callers have it.

The flavor's NUMA policy is kept here, too: Nova loses it when a server moves
(``docs/source/contributor/upstream/index.rst``, resize-policy; no bug is known to be filed).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Final

import attrs
from nova import exception, objects
from nova.virt import hardware

from nova_hpc.from_nova.server import no_image
from nova_hpc.placement import flavor as flavors


@attrs.frozen(eq=False)
class Served:
    """A flavor with ``hpc:`` keys and its image, while Nova's functions run for them."""

    flavor: objects.Flavor
    image: objects.ImageMeta
    #: NUMA policy for devices of flavor or image; None if they have none.
    policy: str | None

    def asked(self, request: objects.InstancePCIRequest) -> objects.InstancePCIRequest:
        """Return *request* with the NUMA policy of flavor or image, which Nova loses on moves."""
        own_policy = request.numa_policy if "numa_policy" in request else None
        if self.policy is None or own_policy == self.policy:
            return request
        changed_request = request.obj_clone()
        changed_request.numa_policy = self.policy
        return changed_request


# One value per thread, and per green thread if Nova uses these.
_SERVED: Final[contextvars.ContextVar[Served | None]] = contextvars.ContextVar(
    "hpc_served", default=None
)


def current_served_flavor() -> Served | None:
    """Return the flavor that Nova's functions now serve in this thread.

    None if there is no such flavor, or if it has no ``hpc:`` keys.
    """
    return _SERVED.get()


@contextlib.contextmanager
def serve_flavor(flavor: objects.Flavor, image: objects.ImageMeta | None) -> Iterator[None]:
    """Mark the flavor that Nova's functions serve in this thread, if it has ``hpc:`` keys."""
    token = _SERVED.set(_read_served_flavor(flavor, image))
    try:
        yield
    finally:
        _SERVED.reset(token)


def _read_served_flavor(flavor: objects.Flavor, image: objects.ImageMeta | None) -> Served | None:
    specs = flavor.extra_specs if "extra_specs" in flavor else None
    if not flavors.has_hpc_keys(specs or {}):
        return None
    image = image or no_image()
    try:
        policy = hardware.get_pci_numa_policy_constraint(flavor, image)
    except exception.NovaException:
        # The two contradict each other; another check refuses them with the reason.
        policy = None
    return Served(flavor, image, policy)
