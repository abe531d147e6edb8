# SPDX-License-Identifier: Apache-2.0
"""Admission: the checks at each action that starts a server here with its devices.

:mod:`virt_driver_patches.driver.device_checks` contains the checks. This module contains
their order, and records the result with the server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import attrs
import nova.conf
from nova import context as nova_context
from nova import objects
from oslo_log import log as logging

from nova_hpc.from_nova.claim import ServerClaim, instance_has_hpc_keys
from nova_hpc.guest_tree import Abi
from nova_hpc.placement import flavor as flavors
from nova_hpc.topology import processor
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import normalise_address
from nova_hpc.wire import decision as wire_decision
from nova_hpc.wire.decision import Decision
from virt_driver_patches.driver import device_checks, guest_topology, segments
from virt_driver_patches.driver.node import HpcNode
from virt_driver_patches.driver.reading import NodeReading
from virt_driver_patches.errors import ClaimRefused

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


@attrs.frozen
class Admission:
    """Checks servers on one node. It keeps no state: the server's record holds it."""

    node: HpcNode
    #: Whether the node's libvirt is of this version or newer.
    libvirt: Callable[[tuple[int, int, int]], bool]

    def start(self, context: nova_context.RequestContext, instance: objects.Instance) -> None:
        """Check all devices of *instance*, give them, and record the decision.

        :raises ClaimRefused: they do not meet the flavor's requirements.
        :raises DeviceFault: a device must not be given.
        """
        decision = None
        if self.node.active or instance_has_hpc_keys(instance):
            claim, reading = ServerClaim.of(instance), self.node.source.read()
            decision = self.claim(context, instance, claim, reading)
            self.node.tenancy.give(instance, claim.addresses, reading, claim.ports)
        _record_decision(instance, decision)
        guest_topology.record_guest_abi(
            instance, _wanted_abi_of(instance, instance.flavor.extra_specs)
        )

    def claim(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        claim: ServerClaim,
        reading: NodeReading | None = None,
    ) -> Decision | None:
        """Refuse a *claim* on this node if its server must not start.

        :raises ClaimRefused: as for :meth:`start`.
        :raises DeviceFault: as for :meth:`start`.
        """
        if not claim.addresses and not flavors.has_hpc_keys(claim.server.extra_specs):
            return None
        reading = reading or self.node.source.read()
        if self.node.active:
            device_checks.check_health(instance, claim, reading)
        decision = device_checks.check_claimed_flavor(context, instance, claim, reading)
        abi = _wanted_abi_of(instance, claim.server.extra_specs)
        shape = segments.wished_shape_of(instance, claim.server.extra_specs)
        if abi is not None and shape is not None:
            abi = attrs.evolve(abi, segment=shape)  # the segment also needs address space
        guest_topology.check_guest_topology(instance, claim, reading, abi, self._limits())
        return decision

    def _limits(self) -> guest_topology.GuestLimits:
        bits = None  # software emulation has as many as the guest needs
        if CONF.libvirt.virt_type == "kvm":
            bits = processor.physical_address_bits(FileTree(self.node.source.root))
        return guest_topology.GuestLimits(bits, self.libvirt)

    def port(
        self, context: nova_context.RequestContext, instance: objects.Instance, slot: str
    ) -> None:
        """Check a direct port's device together with the server's other devices; give it.

        :param slot: the device's address, from Neutron's binding profile.
        """
        reading = self.node.source.read()
        if instance_has_hpc_keys(instance):
            claim = ServerClaim.of(instance).with_port(slot)
            device_checks.check_claimed_flavor(context, instance, claim, reading)
        address = normalise_address(slot)
        self.node.tenancy.give(instance, [address], reading, [address])

    def restart(self, instance: objects.Instance) -> None:
        """Check only for faults that would fail, or harm the host, now.

        :raises ClaimRefused: the server's hardware cannot be built again.
        :raises DeviceFault: one of its devices must not be used.
        """
        if self.node.active and instance.pci_devices:
            _check_one_node(instance)
            claim, reading = ServerClaim.of(instance), self.node.source.read()
            device_checks.check_health(instance, claim, reading, restart=True)
            self.node.tenancy.keep(instance, claim, reading)
        if instance_has_hpc_keys(instance):
            guest_topology.check_restart(instance, self.node.source, self._limits())

    def arrived(self, context: nova_context.RequestContext, instance: objects.Instance) -> None:
        """Record the decision for a server that has moved here while it runs. Never raises.

        Nova puts the new NUMA topology into the record only after this call.
        """
        try:
            if instance.migration_context is not None:
                instance.numa_topology = instance.migration_context.new_numa_topology
            claim, reading = ServerClaim.of(instance), self.node.source.read()
            decision = device_checks.check_claimed_flavor(context, instance, claim, reading)
            _record_decision(instance, decision)
        except Exception:
            LOG.exception("The server has moved; its decision stays the former", instance=instance)

    def back(self, context: nova_context.RequestContext, instance: objects.Instance) -> None:
        """Check a server that got its former devices back, and record its former decision."""
        self.restart(instance)
        decision = None
        if instance_has_hpc_keys(instance):
            claim, reading = ServerClaim.of(instance), self.node.source.read()
            with contextlib.suppress(ClaimRefused):
                decision = device_checks.check_claimed_flavor(context, instance, claim, reading)
        _record_decision(instance, decision)
        with contextlib.suppress(ClaimRefused):
            guest_topology.record_guest_abi(
                instance, _wanted_abi_of(instance, instance.flavor.extra_specs)
            )


def _check_one_node(instance: objects.Instance) -> None:
    """Refuse to start a guest while a broken live migration has devices on its other host.

    Nova puts the devices of all nodes into the domain (``pci_device_get_all_by_instance_uuid`` of
    nova/db/main/api.py). A resize keeps those of both.

    :raises ClaimRefused: Nova has allocated devices of two nodes.
    """
    if len({device.compute_node_id for device in instance.pci_devices}) < 2:
        return
    context, moved = nova_context.get_admin_context(), instance.migration_context
    if moved is None or objects.Migration.get_by_id(context, moved.migration_id).is_live_migration:
        raise ClaimRefused(
            "A live migration of the server broke off, and its devices at the other host are not "
            "free yet. Try again in some minutes."
        )


def _wanted_abi_of(instance: objects.Instance, extra_specs: Mapping[str, str] | None) -> Abi | None:
    """Return the rules of the guest's hardware for a flavor with these *extra_specs*."""
    return guest_topology.next_abi_of(instance, extra_specs or {}, CONF.hpc.gpudirect_clique)


def _record_decision(instance: objects.Instance, decision: Decision | None) -> None:
    """Store the decision with the server; Nova saves it together with the server's state."""
    if decision is not None:
        instance.system_metadata[wire_decision.KEY] = decision.dumps()
    else:
        instance.system_metadata.pop(wire_decision.KEY, None)
