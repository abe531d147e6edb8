# SPDX-License-Identifier: Apache-2.0
"""The check before a guest starts.

Two checks. Health: whether the devices may be given, from a fresh reading. Flavor: whether
they meet its requirements, by the same pure function that the scheduler
uses. An existing server is never refused because tags or flavors
have changed: only a fault that would fail or harm the host stops its restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import nova.conf
from nova import context as nova_context
from nova import objects
from oslo_log import log as logging

from nova_hpc.from_nova import claim as devices
from nova_hpc.from_nova.claim import ServerClaim
from nova_hpc.placement import flavor, judge
from nova_hpc.placement import roles as hpc_roles
from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import ChoiceAnswer, DeviceMiss, Nvlink, Request
from nova_hpc.tenancy import health
from nova_hpc.tenancy.health import OfferedFunction
from nova_hpc.tenancy.sign import Symptom
from nova_hpc.topology import peer, roles
from nova_hpc.topology.model import Node
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc.wire import tags
from nova_hpc.wire.decision import Decision
from nova_hpc.wire.tags import Tags
from virt_driver_patches.driver import peer_reading
from virt_driver_patches.driver.reading import NodeReading
from virt_driver_patches.errors import ClaimRefused, DeviceFault

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

USE_HOST = (
    "Hosts given with --availability-zone ZONE:HOST are not checked by the scheduler: "
    "use --host HOST (compute API 2.74 or later) instead."
)


def check_health(
    instance: objects.Instance, claim: ServerClaim, reading: NodeReading, restart: bool = False
) -> None:
    """Refuse devices that must not be given.

    :param restart: the server has had these devices before; see the module.
    :raises DeviceFault: a device is faulty.
    :raises ClaimRefused: an IOMMU unit was claimed in part.
    """
    offers = dict(reading.offers())
    for address in claim.addresses:
        # An operator may have removed the entry from device_spec; Nova keeps the device.
        offers.setdefault(address, (OfferedFunction(address, address in claim.managed), {}))
    findings = reading.judge(offers, health.DANGER if restart else health.ALL)
    claimed_findings = {
        claimed: findings[claimed] for claimed in claim.addresses if claimed in findings
    }
    for address, finding in claimed_findings.items():
        LOG.error(
            "PCI device %s must not be given to the server: %s",
            address,
            finding.reason,
            instance=instance,
        )
    if claimed_findings:
        raise DeviceFault(_word_ill_devices(claimed_findings.values(), len(claim.addresses)))
    if not restart:
        _check_units(instance, claim, reading.node, offers)


def _word_ill_devices(findings: Iterable[Symptom], total: int) -> str:
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.user] = counts.get(finding.user, 0) + 1
    parts = [f"{count} {text}" for text, count in sorted(counts.items())]
    return f"Of the {total} PCI devices that were claimed for the server, {'; '.join(parts)}."


def _check_units(
    instance: objects.Instance, claim: ServerClaim, node: Node, offers: Mapping[str, object]
) -> None:
    """Refuse a claim that contains only a part of an IOMMU group's offered functions.

    :raises ClaimRefused: another function of the group is offered and not claimed.
    """
    claimed = set(claim.addresses)
    for address in claim.addresses:
        function = node.function(address)
        members = node.group_members(function) if function is not None else ()
        missing = [member for member in members if member in offers and member not in claimed]
        if missing:
            LOG.warning(
                "PCI device %s shares its IOMMU group with %s, which the server does not get",
                address,
                ", ".join(missing),
                instance=instance,
            )
            raise ClaimRefused(
                "A PCI device that was claimed for the server can only be given together with "
                f"{len(missing)} more of its IOMMU group, which the flavor does not ask for."
            )


def check_claimed_flavor(
    context: nova_context.RequestContext,
    instance: objects.Instance,
    claim: ServerClaim,
    reading: NodeReading,
) -> Decision | None:
    """Check whether the claimed devices satisfy the flavor.

    The devices' places come from the fresh reading, not from the tags.

    :returns: the decision to record; None for a flavor without ``hpc:`` keys.
    :raises ClaimRefused: they do not satisfy it, or the flavor contradicts itself.
    """
    if not flavor.has_hpc_keys(claim.server.extra_specs):
        return None
    try:
        request, answer = _judge_claim(claim, reading)
    except FlavorError as error:
        LOG.warning("The flavor is refused: %s", error, instance=instance)
        raise ClaimRefused(f"The flavor cannot be used: {error}") from error
    if answer.sets:
        reached = answer.sets[0].level
        node = peer_reading.add_peer_registers(CONF, reading, claim.addresses)
        peers = peer.peer_reasons_between(node, claim.addresses)
        return Decision(
            asked=request.level,
            policy=request.policy,
            reached=reached,
            redirected=peer.count_redirected_pairs(node, claim.addresses),
            peers=peers,
            wish=peer_reading.configured_wish_of(CONF) if peers else PeerWish.KEEP,
        )
    miss = answer.miss or DeviceMiss(operator="no reason given", user="no reason given")
    asked = f"{flavor.AFFINITY}={request.level.word}"
    if request.nvlink is Nvlink.REQUIRED:
        asked += f" with {flavor.NVLINK}={request.nvlink.value}"
    LOG.warning(
        "The claimed devices (%s) do not satisfy %s: %s",
        ", ".join(claim.addresses) or "none",
        asked,
        miss.operator,
        instance=instance,
    )
    text = (
        f"The devices that were claimed for the server do not satisfy {asked}: "
        f"{miss.user.rstrip('.')}."
    )
    raise ClaimRefused(text if is_host_forced(context, instance) is False else f"{text} {USE_HOST}")


def _judge_claim(claim: ServerClaim, reading: NodeReading) -> tuple[Request, ChoiceAnswer]:
    """Build the request of the flavor for this host, and judge the claimed devices by it.

    :raises FlavorError: the flavor contradicts itself.
    """
    host, faults = claim.host(claimed_places_of(claim, reading), reading.node)
    for fault in faults:
        LOG.warning("An NVLink set of this node is not used: %s", fault)
    played = hpc_roles.roles_played_on_host((pool.serves, pool.role) for pool in host.pools)
    bound = hpc_roles.bind_alias_roles(claim.server.wants, played, _known_roles(reading))
    request = claim.server.request(bound)
    return request, judge.judge_claimed_devices(request, host, {**claim.claimed, **claim.of_ports})


def claimed_groups_of(claim: ServerClaim, reading: NodeReading) -> dict[str, int]:
    """Map the address of each claimed device to the number of its group in the flavor.

    The result is {} for a flavor without keys of this project, and if the devices satisfy no group.
    It is the same at every start: the first of equal assignments of ports is taken.
    """
    if not flavor.has_hpc_keys(claim.server.extra_specs):
        return {}
    try:
        _, answer = _judge_claim(claim, reading)
    except FlavorError:
        return {}
    return {pick.pool: pick.group for devices in answer.sets for pick in devices.picks}


def is_host_forced(context: nova_context.RequestContext, instance: objects.Instance) -> bool | None:
    """Whether the server's host was forced (``az:host``); None if unknown."""
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(context, instance.uuid)
    except Exception as error:
        # The API database has it. A cell's conductor may have no access to this
        # database, with any kind of error. The answer only improves a text.
        LOG.debug("No request specification: %s", error, instance=instance)
        return None
    is_forced = spec.obj_attr_is_set("force_hosts") and spec.force_hosts
    return bool(is_forced or (spec.obj_attr_is_set("force_nodes") and spec.force_nodes))


def claimed_places_of(claim: ServerClaim, reading: NodeReading) -> dict[str, Tags]:
    """Map the address of each claimed device to its tags: its role, and its place on the fabric.

    They are read from the node itself. Of a device that is missing, no place is returned.
    """
    offers = reading.offers()
    places = {}
    for address in claim.addresses:
        function = reading.node.function(address)
        entry = offers[address][1] if address in offers else None
        if function is None:
            # The place in the tags of a missing device is not reliable either.
            entry = {key: value for key, value in (entry or {}).items() if key in _NO_PLACE}
        places[address] = devices.tags_of_function(function, entry)
    return places


def _known_roles(reading: NodeReading) -> frozenset[str]:
    """Return the roles of all devices of the node and of its configuration."""
    entries = [entry for _, entry in reading.offers().values()]
    tagged = {str(entry[tags.ROLE]) for entry in entries if entry.get(tags.ROLE)}
    return roles.configured_role_names(CONF.hpc.device_role) | tagged


_NO_PLACE = frozenset({tags.VERSION, tags.ROLE})
