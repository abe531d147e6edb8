"""What the libvirt driver of an HPC node knows of its node, and its checks of servers.

Where the node is read, what is done to its devices around a server, what it
reports, and the checks that :mod:`virt_driver_patches.driver.hpc_libvirt` makes at each action.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import objects
from nova.compute import power_state
from nova.virt.libvirt.driver import LibvirtDriver
from oslo_log import log as logging

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova.claim import Claim, has_hpc_keys
from nova_hpc.guest_tree import Abi
from nova_hpc.placement import flavor as flavors
from nova_hpc.wire.decision import Decision
from virt_driver_patches.domain import attach, guest_topology
from virt_driver_patches.driver import (
    adapters,
    before_start,
    contract,
    hygiene,
    nvlink,
)
from virt_driver_patches.driver.reading import Reading, Source
from virt_driver_patches.driver.tenancy import Tenancy
from virt_driver_patches.driver.withhold import Withholder, in_use
from virt_driver_patches.errors import ClaimRefused
from virt_driver_patches.patches import (
    attach_reason,
    bind_moves,
    check_moves,
    compat,
    follow,
    last_host,
    refuse_early,
)

CONF = nova.conf.CONF
hpc_conf.register(CONF)
LOG = logging.getLogger(__name__)


class HpcNodeDriver(LibvirtDriver):
    """Nova's libvirt driver, on a node whose ``device_spec`` has ``hpc_*`` tags."""

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        self._hpc_host = CONF.host
        self._hpc_withholder = Withholder()

    @functools.cached_property
    def hpc_source(self) -> Source:
        """Where this node's topology and quarantine are read."""
        return Source.from_config(CONF)

    @functools.cached_property
    def hpc_hygiene(self) -> hygiene.Hygiene | None:
        """Keeps this node's devices clean; None: switched off."""
        return hygiene.Hygiene.from_config(CONF)

    @functools.cached_property
    def hpc_links(self) -> nvlink.Links | None:
        """Sets this node's NVLink partitions; None: nobody has to."""
        return nvlink.Links.from_config(CONF, self._hpc_host)

    @functools.cached_property
    def hpc_adapters(self) -> adapters.Adapters | None:
        """Sets this node's virtual functions; None: switched off."""
        return adapters.Adapters.from_config(CONF, self.hpc_source)

    @property
    def hpc_tenancy(self) -> Tenancy:
        """What is done to devices around a server; nothing without ``hpc_*`` tags."""
        if not self.hpc_active:
            return Tenancy()
        steps = (self.hpc_hygiene, self.hpc_links, self.hpc_adapters)
        return Tenancy(tuple(step for step in steps if step is not None))

    @property
    def hpc_active(self) -> bool:
        """Whether this node's ``device_spec`` has ``hpc_*`` tags."""
        return self.hpc_source.specs.tagged

    # -- the node -----------------------------------------------------------

    def init_host(self, host: str) -> None:
        """Refuse to start where a contract with Nova does not hold."""
        self._hpc_host = host
        active = contract.check_config(CONF)
        if active and self.hpc_hygiene is None:
            LOG.warning("[hpc]clean_devices is off: PCI devices are not cleaned between servers")
        if active and self.hpc_adapters is None:
            LOG.warning("[hpc]set_adapters is off: virtual functions are left as they are")
        super().init_host(host)
        if active:
            bind_moves.install()
            check_moves.install(self.virtapi, self._hpc_check_claim)
            follow.follow(self.virtapi)
            last_host.keep_reason(self.virtapi)
            attach_reason.keep(self.virtapi)
            refuse_early.install(self.virtapi, self._hpc_early_checks())
            reading = self.hpc_source.read()
            contract.check_devices(reading.specs.offers(reading.node), reading.node)
            if self.hpc_links is not None:
                self.hpc_links.begin(reading)

    def _get_pci_passthrough_devices(self) -> str:
        """Nova's reading, afresh where this project is in use."""
        if self.hpc_active:
            return compat.fresh_pci_devices()(self)
        return super()._get_pci_passthrough_devices()

    def get_available_resource(self, nodename: str) -> dict[str, Any]:
        """Nova's answer without the devices that must not be given."""
        resources = super().get_available_resource(nodename)
        if self.hpc_active:
            taken = functools.partial(in_use, self._hpc_host, nodename)
            reading = self.hpc_source.read()
            more = self.hpc_tenancy.sweep(reading, taken)
            self._hpc_withholder.edit(resources, reading, taken, more)
        return resources

    def update_provider_tree(
        self, provider_tree: Any, nodename: str, allocations: Any = None
    ) -> None:
        """Nova's answer, and clean one-time-use devices are free again."""
        super().update_provider_tree(provider_tree, nodename, allocations=allocations)
        if self.hpc_active and self.hpc_hygiene is not None:
            self.hpc_hygiene.unreserve(provider_tree, nodename)

    # -- the check ------------------------------------------------------------

    def _hpc_check(self, context: nova_context.RequestContext, instance: objects.Instance) -> None:
        """Full check of the devices that *instance* has; records the decision."""
        decision = None
        if self.hpc_active or has_hpc_keys(instance):
            claim, reading = Claim.of(instance), self.hpc_source.read()
            decision = self._hpc_check_claim(context, instance, claim, reading)
            self.hpc_tenancy.give(instance, claim.addresses, reading)
        self._hpc_record(instance, decision)
        guest_topology.record(instance, self._hpc_abi(instance, instance.flavor.extra_specs))

    def _hpc_check_claim(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        claim: Claim,
        reading: Reading | None = None,
    ) -> Decision | None:
        """Refuse a *claim* on this node that must not, or may not, start."""
        if not claim.addresses and not flavors.has_hpc_keys(claim.extra_specs):
            return None
        reading = reading or self.hpc_source.read()
        if self.hpc_active:
            before_start.check_health(instance, claim, reading)
        decision = before_start.check_flavor(context, instance, claim, reading)
        abi = self._hpc_abi(instance, claim.extra_specs)
        guest_topology.check(instance, claim, reading, abi)
        return decision

    @staticmethod
    def _hpc_abi(instance: objects.Instance, extra_specs: Mapping[str, str] | None) -> Abi | None:
        """The rules of the guest's hardware, with a flavor of these *extra_specs*."""
        return guest_topology.wanted(instance, extra_specs or {}, CONF.hpc.gpudirect_clique)

    def _hpc_record_again(
        self, context: nova_context.RequestContext, instance: objects.Instance
    ) -> None:
        """Record the decision of a server that has its former devices back."""
        decision = None
        if has_hpc_keys(instance):
            claim, reading = Claim.of(instance), self.hpc_source.read()
            with contextlib.suppress(ClaimRefused):
                decision = before_start.check_flavor(context, instance, claim, reading)
        self._hpc_record(instance, decision)
        with contextlib.suppress(ClaimRefused):
            guest_topology.record(instance, self._hpc_abi(instance, instance.flavor.extra_specs))

    @staticmethod
    def _hpc_record(instance: objects.Instance, decision: Decision | None) -> None:
        """Nova saves it together with the server's state when it has started."""
        if decision is not None:
            instance.system_metadata[before_start.DECISION] = decision.dumps()
        else:
            instance.system_metadata.pop(before_start.DECISION, None)

    def _hpc_check_restart(self, instance: objects.Instance) -> None:
        """Check only for what would fail, or harm the host, now."""
        if self.hpc_active and instance.pci_devices:
            claim, reading = Claim.of(instance), self.hpc_source.read()
            before_start.check_health(instance, claim, reading, restart=True)
            self.hpc_tenancy.keep(instance, claim, reading)
        if has_hpc_keys(instance):
            guest_topology.check_restart(instance, self.hpc_source)

    def _hpc_early_checks(self) -> dict[str, refuse_early.Check]:
        """Method of the compute manager -> what is checked before it."""
        return {
            "reboot_instance": self._hpc_check_restart,
            "rescue_instance": self._hpc_check_restart,
            "unrescue_instance": self._hpc_check_restart,
            "rebuild_instance": self._hpc_check_restart,
            "snapshot_instance": self._hpc_check_snapshot,
            "backup_instance": self._hpc_check_snapshot,
        }

    def _hpc_check_snapshot(self, instance: objects.Instance) -> None:
        """Refuse a snapshot for which Nova would suspend a guest that must not be."""
        cold = (
            CONF.libvirt.images_type == "lvm"
            or CONF.ephemeral_storage_encryption.enabled
            or CONF.workarounds.disable_libvirt_livesnapshot
        )
        if not cold or not has_hpc_keys(instance):
            return
        guest = self._host.get_guest(instance)
        if guest.get_power_state(self._host) in (power_state.RUNNING, power_state.PAUSED):
            attach.check_suspend(guest.get_xml_desc(dump_inactive=True))
            self._hpc_check_restart(instance)  # the devices have to come back
