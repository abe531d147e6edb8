# SPDX-License-Identifier: Apache-2.0
"""A server's metadata for its owner: its place in the fabric, and its devices.

It is written when a server starts, in the names of its project. Users cannot change metadata
during a task of Nova (compute/api.py, ``update_instance_metadata``: task_state=None),
so no change of theirs is lost. They may change it later: neither this package nor the
scheduler ever reads it back.
"""

from __future__ import annotations

from nova import objects
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc.from_nova.claim import ServerClaim, instance_has_hpc_keys
from nova_hpc.placement import flavor as flavors
from nova_hpc.wire import decision as wire_decision
from nova_hpc_common.wire import position, server_devices
from nova_hpc_common.wire.position import Position
from nova_hpc_common.wire.server_devices import ServerDevices
from virt_driver_patches.driver import device_checks
from virt_driver_patches.driver.node import HpcNode
from virt_driver_patches.driver.reading import NodeReading

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

#: Keys of a server's metadata that this module writes.
KEYS = (position.KEY, server_devices.KEY)


def write_position_metadata(instance: objects.Instance, node: HpcNode) -> None:
    """Write the metadata of *instance*; Nova saves it with the server's state. Never raises.

    Called after the server's devices are checked and its decision is recorded.
    """
    is_ours = _has_our_keys(instance.flavor)
    try:
        if is_ours or _has_other_hpc_keys(instance):
            _replace_hpc_metadata(instance, {})
        if is_ours and CONF.hpc.server_metadata:
            _replace_hpc_metadata(instance, _metadata_texts_of(instance, node))
    except Exception:
        LOG.exception("The server's owner is not told what it has", instance=instance)


def _replace_hpc_metadata(instance: objects.Instance, texts: dict[str, str]) -> None:
    for key in KEYS:
        instance.metadata.pop(key, None)
    instance.metadata.update(texts)


def _has_other_hpc_keys(instance: objects.Instance) -> bool:
    """Whether a resize, or its revert, leaves a flavor with ``hpc:`` keys."""
    names = [name for name in ("old_flavor", "new_flavor") if name in instance]
    others = [flavor for name in names if (flavor := getattr(instance, name)) is not None]
    return any(map(_has_our_keys, others))


def _has_our_keys(flavor: objects.Flavor) -> bool:
    """Whether the flavor has keys of this project."""
    specs = flavor.extra_specs or {}
    return flavors.has_hpc_keys(specs) or flavors.has_fabric_keys(specs)


def _metadata_texts_of(instance: objects.Instance, node: HpcNode) -> dict[str, str]:
    where = node.whereabouts(instance)
    rails: tuple[str, ...] = ()
    texts = {}
    if instance_has_hpc_keys(instance):
        claim, reading = ServerClaim.of(instance), node.source.lately()
        # Sorted by name: the order has no meaning.
        rails = tuple(sorted(set(where.rails_of(reading.node, claim.addresses).values())))
        texts[server_devices.KEY] = _server_devices_of(instance, claim, reading).dumps()
    if where.domains:
        texts[position.KEY] = Position(where.domains, rails).dumps()
    return texts


def _server_devices_of(
    instance: objects.Instance, claim: ServerClaim, reading: NodeReading
) -> ServerDevices:
    places = device_checks.claimed_places_of(claim, reading)
    groups = device_checks.claimed_groups_of(claim, reading)
    decision = wire_decision.read_decision(instance.system_metadata.get(wire_decision.KEY))
    return ServerDevices(
        asked=decision.asked if decision else None,
        policy=decision.policy if decision else None,
        reached=decision.reached if decision else None,
        **server_devices.count_device_groups(
            (places[address].role or server_devices.OTHER, groups.get(address))
            for address in claim.addresses
        ),
    )
