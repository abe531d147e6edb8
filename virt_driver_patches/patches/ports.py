# SPDX-License-Identifier: Apache-2.0
"""Neutron's direct ports get functions of the adapters next to the server's devices.

For a port Nova takes any pool of its physical network, in the order of its list, and
calls the driver only after the claim. This module chooses the pool at the point where Nova takes
it, with the same function that the scheduler uses, for flavors with ``hpc:`` keys
only; see :mod:`nova_hpc.from_nova.port_pools`. Only the resource tracker has the
claiming server, so its claims pass it to the functions that they call, in the same thread. The
choice is valid for one call: Nova's records of the requests do not change.

A claim without an adapter that is close enough takes nothing. Nova then tries another
host, as for a violated server group, and counts no failed build.

No bug is known to be filed: Nova promises no place for ports. Ports with bandwidth have
another bug of Nova (``docs/source/contributor/upstream/index.rst``, qos-groups).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
from nova import exception, objects
from nova.pci import stats as pci_stats
from nova.virt import hardware
from oslo_log import log as logging

from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.from_nova.port_pools import ClaimingServer, NoAdapterError, pin_port_requests
from nova_hpc.from_nova.server import port_requests
from nova_hpc.placement import flavor as flavors
from virt_driver_patches.errors import ClaimRefused

LOG = logging.getLogger(__name__)

_STATS: Final = "nova.pci.stats:PciDeviceStats"
APPLY: Final = Patch(
    f"{_STATS}.apply_requests",
    parameters=("requests", "provider_mapping", "numa_cells"),
    lines={32: (938, 971), 33: (940, 973), 34: (940, 973)},
    why="The test of a claim takes any pool of a direct port's network, so it passes where no "
    "adapter beside the server's devices has a free function.",
    until="Nova allocates the devices of ports in Placement",
)
CONSUME: Final = Patch(
    f"{_STATS}.consume_requests",
    parameters=("pci_requests", "numa_cells"),
    lines={32: (268, 330), 33: (270, 332), 34: (270, 332)},
    why="A direct port gets a function of the first pool of its network in Nova's list, wherever "
    "the server's devices are.",
    until="Nova allocates the devices of ports in Placement",
)
_MARK: Final = "hpc_chosen"


@attrs.define
class PortClaim:
    """The server that claims in this thread, and the reason if no adapter was found for it."""

    wanted: ClaimingServer
    refused: NoAdapterError | None = None


_CLAIM: Final[contextvars.ContextVar[PortClaim | None]] = contextvars.ContextVar(
    "hpc_claim", default=None
)


def install_port_wraps() -> None:
    """Wrap Nova's PCI statistics (idempotent).

    It wraps the class of the statistics, because Nova creates new objects and copies them for
    each test.

    :raises nova.exception.InvalidConfiguration: a method is not as expected.
    """
    if not hasattr(pci_stats.PciDeviceStats.consume_requests, _MARK):
        wrap_method(pci_stats.PciDeviceStats, APPLY, _wrap_port_choice("requests"))
        wrap_method(pci_stats.PciDeviceStats, CONSUME, _wrap_port_choice("pci_requests"))
        setattr(pci_stats.PciDeviceStats.consume_requests, _MARK, True)


@contextlib.contextmanager
def claim_port_adapters(
    instance: objects.Instance, flavor: objects.Flavor, running: bool = False
) -> Iterator[PortClaim | None]:
    """Choose the adapters of a server's ports for the claims that are made inside the block.

    :param running: the server keeps its devices on this host, and a port is added.
    :raises ClaimRefused: no adapter is close enough; nothing has been claimed.
    """
    if not flavors.has_hpc_keys(flavor.extra_specs or {}) or not (
        running or port_requests(instance.pci_requests)
    ):
        yield None
        return
    image = instance.image_meta
    had = (instance.pci_requests, instance.pci_devices) if running else (None, None)
    topology = instance.numa_topology if running else hardware.numa_get_constraints(flavor, image)
    claim = PortClaim(
        ClaimingServer(
            flavor, image, topology, tuple(had[0].requests if had[0] else ()), tuple(had[1] or ())
        )
    )
    token = _CLAIM.set(claim)
    try:
        yield claim
    except (exception.ComputeResourcesUnavailable, exception.PciDeviceRequestFailed) as error:
        if claim.refused is None:
            raise
        raise ClaimRefused(word_port_refusal(claim.refused, instance)) from error
    finally:
        _CLAIM.reset(token)


def word_port_refusal(error: NoAdapterError, instance: objects.Instance) -> str:
    """Return the text for the server's user; the details go to the log."""
    LOG.warning(
        "No adapter beside the server's devices serves its ports: %s", error, instance=instance
    )
    return (
        "No adapter close enough to the server's devices is free for its ports: "
        f"{error.miss.user.rstrip('.')}."
    )


def _wrap_port_choice(name: str) -> Callable[[Call], Any]:
    """Build the wrap of a method whose parameter *name* contains the requests.

    Nova's method runs unchanged if no claim is active in this thread, or if the claim has no
    adapter to choose.
    """

    def around(call: Call) -> Any:
        claim, requests = _CLAIM.get(), call.given[name]
        if claim is None:
            return call()
        try:
            adapters = claim.wanted.adapters(
                call.given["self"],
                requests,
                call.given.get("provider_mapping"),
                call.given["numa_cells"],
            )
        except NoAdapterError as error:
            claim.refused = error
            raise exception.PciDeviceRequestFailed(requests=_join_request_ids(requests)) from error
        return call(**{name: pin_port_requests(requests, adapters)}) if adapters else call()

    return around


def _join_request_ids(requests: Sequence[objects.InstancePCIRequest]) -> str:
    return ", ".join(str(request.request_id) for request in requests)
