"""A gated patch: a move claims the devices that the scheduler chose.

For a new server Nova writes the providers of the scheduler's allocation into
the PCI requests, and the claim takes exactly those devices. For a resize, a
cold migration or an evacuation it makes the PCI requests anew from the flavor
and forgets the allocation: the claim takes any devices, and the resource
tracker then adds those to the allocation, so that the server holds both sets
in Placement. Here the requests of a move are bound to the allocation as well,
for flavors with ``hpc:`` keys only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from nova import exception, objects
from nova.compute import claims, pci_placement_translator
from nova.i18n import _
from oslo_log import log as logging

from nova_hpc.placement import flavor as flavors

LOG = logging.getLogger(__name__)

_MARK = "hpc_bound"
_NEEDED = {"context", "instance", "flavor", "tracker", "pci_requests", "migration"}


def install() -> None:
    """Wrap the constructor of Nova's claims of moves (idempotent).

    The constructor, not the class: Nova's methods name the class themselves.

    :raises nova.exception.InvalidConfiguration: Nova's claims have another form.
    """
    plain = claims.MoveClaim.__init__
    if hasattr(plain, _MARK):
        return
    signature = inspect.signature(plain)
    if not set(signature.parameters) >= _NEEDED:
        raise exception.InvalidConfiguration(
            "This Nova claims moves in a way that nova-hpc does not know. Install releases "
            "that fit together, or set [DEFAULT]compute_driver = libvirt.LibvirtDriver."
        )

    @functools.wraps(plain)
    def wrapper(self: claims.MoveClaim, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        if flavors.has_hpc_keys(given["flavor"].extra_specs or {}):
            _bind_claim(given)
        plain(self, *args, **kwargs)

    setattr(wrapper, _MARK, True)
    claims.MoveClaim.__init__ = wrapper


def _bind_claim(given: Mapping[str, Any]) -> None:
    tracker, instance = given["tracker"], given["instance"]
    requests = [
        request
        for request in given["pci_requests"].requests
        if request.source == objects.InstancePCIRequest.FLAVOR_ALIAS
    ]
    # A live migration claims no devices here.
    if not requests or not tracker.pci_tracker or given["migration"].is_live_migration:
        return
    allocations = tracker.reportclient.get_allocations_for_consumer(given["context"], instance.uuid)
    bind(requests, tracker.pci_tracker.stats, allocations)
    LOG.debug("The move claims what the scheduler chose", instance=instance)


def bind(
    requests: list[objects.InstancePCIRequest],
    stats: Any,
    allocations: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write the providers of *allocations* into *requests*, as for a new server.

    :param requests: of the new flavor's aliases
    :param stats: Nova's PciDeviceStats of this host
    :param allocations: provider -> what the server has of it in Placement;
        during an evacuation also on the host that it comes from
    :raises nova.exception.ComputeResourcesUnavailable: they do not fit each
        other; Nova then tries another host.
    """
    left = {
        (provider, name): amount
        for provider, allocation in allocations.items()
        for name, amount in allocation["resources"].items()
    }
    for request in requests:
        spec = request.spec[0]
        wanted = pci_placement_translator.get_resource_class(
            spec.get("resource_class"), spec.get("vendor_id"), spec.get("product_id")
        )
        providers: list[str] = []
        for pool in stats._filter_pools_for_spec(stats.pools, request):
            key = (pool.get("rp_uuid"), wanted)
            take = min(left.get(key, 0), request.count - len(providers))
            providers += [key[0]] * take
            left[key] = left.get(key, 0) - take
        if len(providers) != request.count:
            raise exception.ComputeResourcesUnavailable(
                reason=_("the devices that the scheduler chose are not all free")
            )
        for each in request.spec:
            each["rp_uuids"] = ",".join(providers)
