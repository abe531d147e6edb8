# SPDX-License-Identifier: Apache-2.0
"""A move claims the devices that the scheduler chose, and its claim is checked first.

For a new server Nova writes the providers of the scheduler's allocation into the PCI
requests (``update_pci_request_with_placement_allocations`` of nova/compute/utils.py),
and the claim takes exactly those devices. For a resize, a cold migration or an
evacuation Nova creates new PCI requests from the flavor and ignores the allocation. The
claim takes any devices, and the resource tracker then adds them to the allocation
(nova/compute/pci_placement_translator.py). So the server holds both sets in
Placement, and other servers cannot get the set that it does not use. This module binds
the requests of a move to the allocation, too. A flavor with ``hpc:`` keys gets the chosen
devices or is refused. Any other flavor still gets Nova's choice if the chosen devices are not
free.

The destination claims devices first. Nova calls the driver much later, when the guest
is already off. So a claim that does not fit is dropped and refused at once. Nova
then tries another host if it can; otherwise the server keeps its state.

Reports: ``docs/source/contributor/upstream/index.rst`` (move-claim: other devices than the
allocated ones; resize-policy: the policy of flavor and image is forgotten). No bug is known to be
filed for either. The missing refusal before the guest is off is not a bug of Nova: Nova has no
driver call at that point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from nova import exception, objects
from nova.compute import claims, pci_placement_translator
from nova.i18n import _
from oslo_log import log as logging

from nova_hpc.from_nova.claim import ServerClaim
from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.from_nova.patches.serving import serve_flavor
from nova_hpc.placement import flavor as flavors
from virt_driver_patches.errors import ClaimRefused, wrap_for_rollback
from virt_driver_patches.patches import ports

LOG = logging.getLogger(__name__)

_TRACKER: Final = "nova.compute.resource_tracker:ResourceTracker"
BIND: Final = Patch(
    "nova.compute.claims:MoveClaim.__init__",
    parameters=("context", "instance", "flavor", "tracker", "pci_requests", "migration"),
    lines={32: (179, 192), 33: (179, 192), 34: (177, 190)},
    why="The claim of a move makes the PCI requests anew and forgets which devices the "
    "scheduler chose: it takes any, and the server holds two sets in Placement.",
    until="Nova binds the PCI requests of moves to the allocation, as for new servers",
)
RESIZE: Final = Patch(
    f"{_TRACKER}.resize_claim",
    parameters=("context", "instance", "flavor", "nodename"),
    lines={32: (253, 265), 33: (253, 265), 34: (253, 265)},
    why="The only place where a resize or a cold migration can be refused before the guest is "
    "off: the driver's finish_migration comes when nothing can be kept.",
    until="drivers are asked about a claim when it is made",
)
REBUILD: Final = Patch(
    f"{_TRACKER}.rebuild_claim",
    parameters=("context", "instance", "nodename"),
    lines={32: (244, 251), 33: (244, 251), 34: (244, 251)},
    why="As for resize_claim, of an evacuation.",
    until="drivers are asked about a claim when it is made",
)
LIVE: Final = Patch(
    "nova.compute.manager:ComputeManager.check_can_live_migrate_destination",
    parameters=("ctxt", "instance"),
    lines={32: (9046, 9152), 33: (9213, 9319), 34: (8807, 8913)},
    why="The claims of a live migration do not name the flavor for which NUMA nodes and devices "
    "are claimed.",
    until="numa_fit_instance_to_host is not wrapped any more",
)
DROP: Final = Patch(
    f"{_TRACKER}.drop_move_claim",
    parameters=("context", "instance", "nodename", "flavor"),
    lines={32: (664, 668), 33: (664, 668), 34: (664, 668)},
    why="Called, not wrapped: the claim of a refused move is dropped.",
    until="resize_claim is not wrapped any more",
    overridden=True,
)

#: Takes a context, an instance and its claim; raises a NovaException to refuse the move.
Check = Callable[[Any, Any, ServerClaim], object]

_MARK: Final = "hpc_bound"
#: Key under which Nova expects the providers of a request (nova/pci/stats.py).
_PROVIDERS: Final = "rp_uuids"


def bind_claims() -> None:
    """Wrap the constructor of Nova's claims of moves (idempotent).

    It wraps the constructor, not the class, because Nova's methods refer to the class by name.

    :raises nova.exception.InvalidConfiguration: Nova's claims have another signature.
    """
    if not hasattr(claims.MoveClaim.__init__, _MARK):
        wrap_method(claims.MoveClaim, BIND, _claim_chosen_devices)
        setattr(claims.MoveClaim.__init__, _MARK, True)


def _claim_chosen_devices(call: Call) -> None:
    """Bind the requests of a move to its allocation, and let Nova claim.

    If the chosen devices are not free, a flavor with ``hpc:`` keys is refused, and any other
    flavor claims again without the binding.
    """
    given = call.given
    _keep_requests_of_live_move(given)
    requests = _flavor_requests_of(given)
    if not requests:
        call()
        return
    tracker, instance = given["tracker"], given["instance"]
    allocations = tracker.reportclient.get_allocations_for_consumer(given["context"], instance.uuid)
    required = flavors.has_hpc_keys(given["flavor"].extra_specs or {})
    try:
        bind_chosen_providers(requests, tracker.pci_tracker.stats, allocations)
        call()
    except exception.ComputeResourcesUnavailable as error:
        if required:
            raise
        LOG.info("The move claims any devices: %s", error, instance=instance)
        unbind_chosen_providers(requests)
        call()


def _keep_requests_of_live_move(given: Mapping[str, Any]) -> None:
    """Let a live migration keep the server's PCI requests, which the conductor has bound.

    Nova makes new ones from the flavor, chooses the NUMA nodes by them, stores them with the
    server, and claims the devices for the old ones: no device would belong to the server's
    requests, and its next start would give it none.
    """
    own = given["instance"].pci_requests
    if (
        given["migration"].is_live_migration
        and own is not None
        and flavors.has_hpc_keys(given["flavor"].extra_specs or {})
    ):
        given["pci_requests"].requests = list(own.requests)


def _flavor_requests_of(given: Mapping[str, Any]) -> list[objects.InstancePCIRequest]:
    """Return the requests with devices of the scheduler's choice: of the new flavor's aliases."""
    # A live migration claims its devices later.
    if not given["tracker"].pci_tracker or given["migration"].is_live_migration:
        return []
    return [
        request
        for request in given["pci_requests"].requests
        if request.source == objects.InstancePCIRequest.FLAVOR_ALIAS
    ]


def bind_chosen_providers(
    requests: list[objects.InstancePCIRequest],
    stats: Any,
    allocations: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write the providers of *allocations* into *requests*, as for a new server.

    :param requests: of the new flavor's aliases.
    :param stats: Nova's PciDeviceStats of this host.
    :param allocations: provider -> the server's allocation of it in Placement;
        during an evacuation also on the source host.
    :raises nova.exception.ComputeResourcesUnavailable: the allocation does not fit the
        requests, and nothing is written; Nova then tries another host.
    """
    left = {
        (provider, name): amount
        for provider, allocation in allocations.items()
        for name, amount in allocation["resources"].items()
    }
    chosen = []
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
        chosen.append(",".join(providers))
    for request, uuids in zip(requests, chosen, strict=True):
        for spec_entry in request.spec:
            spec_entry[_PROVIDERS] = uuids


def unbind_chosen_providers(requests: list[objects.InstancePCIRequest]) -> None:
    """Remove the providers that :func:`bind_chosen_providers` has written into *requests*."""
    for request in requests:
        for spec in request.spec:
            spec.pop(_PROVIDERS, None)


def _image_after_move(given: Mapping[str, Any]) -> objects.ImageMeta:
    """Return the server's image after the move; Nova passes a dictionary or an object."""
    image = given.get("image_meta")
    if isinstance(image, dict) and image:
        return objects.ImageMeta.from_dict(image)
    return image or given["instance"].image_meta


def serve_live_moves(manager: Any) -> None:
    """Wrap the destination's check of a live migration, in which Nova claims.

    :raises nova.exception.InvalidConfiguration: the method is not as expected.
    """

    def around(call: Call) -> Any:
        instance = call.given["instance"]
        with serve_flavor(instance.flavor, instance.image_meta):
            return call()

    wrap_method(manager, LIVE, around)


def check_claims(tracker: Any, check: Check) -> None:
    """Wrap the resource tracker.

    :raises nova.exception.InvalidConfiguration: a method is not as expected.
    """

    def around(call: Call) -> Any:
        context, instance = call.given["context"], call.given["instance"]
        flavor = call.given.get("flavor") or instance.flavor
        try:
            with (
                serve_flavor(flavor, _image_after_move(call.given)),
                ports.claim_port_adapters(instance, flavor),
            ):
                ticket = call()
        except ClaimRefused as error:
            raise wrap_for_rollback(error) from error
        claim = ServerClaim.of_move(instance, flavor)
        try:
            if claim is not None:
                check(context, instance, claim)
        except exception.NovaException as error:
            LOG.warning("The move is refused: %s", error, instance=instance)
            tracker.drop_move_claim(context, instance, call.given["nodename"], flavor=flavor)
            instance.drop_migration_context()
            raise wrap_for_rollback(error) from error
        return ticket

    wrap_method(tracker, RESIZE, around)
    wrap_method(tracker, REBUILD, around)
