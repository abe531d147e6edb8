# SPDX-License-Identifier: Apache-2.0
"""What the owner of a server reads in its metadata: where it is, and what it was given.

Written when a server starts, in the names of its project. Users cannot change metadata
while a task of Nova's runs (compute/api.py, ``update_instance_metadata``: task_state=None),
so nothing of theirs is lost; afterwards they may change it, and nothing here or in the
scheduler ever reads it back.
"""

from __future__ import annotations

from nova import objects
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc.from_nova.claim import Claim, has_hpc_keys
from nova_hpc.placement import flavor as flavors
from nova_hpc.wire import decision as wire_decision
from nova_hpc.wire import position, server_devices
from nova_hpc.wire.position import Position
from nova_hpc.wire.server_devices import ServerDevices
from virt_driver_patches.driver import device_checks as before_start
from virt_driver_patches.driver.node import HpcNode
from virt_driver_patches.driver.reading import Reading

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

#: The items of a server's metadata that are written here.
KEYS = (position.KEY, server_devices.KEY)


def write(instance: objects.Instance, node: HpcNode) -> None:
    """Put it into *instance*; Nova saves it together with the server's state. Never raises.

    Called once the server's devices are checked and its decision is recorded.
    """
    mine = _is_ours(instance.flavor)
    try:
        if mine or _has_other_hpc_keys(instance):
            _put(instance, {})
        if mine and CONF.hpc.server_metadata:
            _put(instance, _texts(instance, node))
    except Exception:
        LOG.exception("The server's owner is not told what it has", instance=instance)


def _put(instance: objects.Instance, texts: dict[str, str]) -> None:
    for key in KEYS:
        instance.metadata.pop(key, None)
    instance.metadata.update(texts)


def _has_other_hpc_keys(instance: objects.Instance) -> bool:
    """Whether a resize, or its revert, is from a flavor with ``hpc:`` keys."""
    names = [name for name in ("old_flavor", "new_flavor") if name in instance]
    others = [each for name in names if (each := getattr(instance, name)) is not None]
    return any(map(_is_ours, others))


def _is_ours(flavor: objects.Flavor) -> bool:
    """Whether servers of the flavor have wishes of this project's."""
    specs = flavor.extra_specs or {}
    return flavors.has_hpc_keys(specs) or flavors.has_fabric_keys(specs)


def _texts(instance: objects.Instance, node: HpcNode) -> dict[str, str]:
    where = node.whereabouts(instance)
    rails: tuple[str, ...] = ()
    found = {}
    if has_hpc_keys(instance):
        claim, reading = Claim.of(instance), node.source.lately()
        # In the order of the names, which says nothing.
        rails = tuple(sorted(set(where.rails_of(reading.node, claim.addresses).values())))
        found[server_devices.KEY] = _devices(instance, claim, reading).dumps()
    if where.domains:
        found[position.KEY] = Position(where.domains, rails).dumps()
    return found


def _devices(instance: objects.Instance, claim: Claim, reading: Reading) -> ServerDevices:
    places = before_start.places_here(claim, reading)
    groups = before_start.groups_of(claim, reading)
    decision = wire_decision.loads(instance.system_metadata.get(wire_decision.KEY))
    return ServerDevices(
        asked=decision.asked if decision else None,
        policy=decision.policy if decision else None,
        reached=decision.reached if decision else None,
        **server_devices.of_groups(
            (places[address].role or server_devices.OTHER, groups.get(address))
            for address in claim.addresses
        ),
    )
