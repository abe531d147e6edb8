"""The libvirt driver of HPC nodes: Nova's own, with a check before each start.

Thin on purpose: every override hands on to Nova, and the work is done by the
other modules of this package. It keeps no state that two threads could tear,
and knows nothing of the concurrency backend.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.compute import power_state, task_states
from nova.compute import utils as compute_utils
from nova.virt import hardware
from nova.virt.libvirt.driver import LibvirtDriver
from oslo_log import log as logging

from nova_hpc import conf as hpc_conf
from nova_hpc.placement import flavor as flavors
from nova_hpc.placement.decision import Decision
from nova_hpc.topology.guest import Abi
from nova_hpc.topology.model import normalise_address
from virt_driver_patches import (
    adapters,
    attach,
    attach_reason,
    before_start,
    bind_moves,
    check_moves,
    compat,
    contract,
    follow,
    guest_topology,
    guest_xml,
    hygiene,
    last_host,
    nvlink,
    refuse_early,
)
from virt_driver_patches.devices import Claim
from virt_driver_patches.errors import ClaimRefused, DeviceFault, rollback
from virt_driver_patches.reading import Reading, Source
from virt_driver_patches.tenancy import Tenancy
from virt_driver_patches.withhold import Withholder, in_use

CONF = nova.conf.CONF
hpc_conf.register(CONF)
LOG = logging.getLogger(__name__)


class HpcLibvirtDriver(LibvirtDriver):
    """Nova's libvirt driver for nodes whose ``device_spec`` has ``hpc_*`` tags.

    Elsewhere, and for flavors without ``hpc:`` keys, it is Nova's driver.
    """

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
        if self.hpc_active or _has_hpc_keys(instance):
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
        if _has_hpc_keys(instance):
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
        if _has_hpc_keys(instance):
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
        if not cold or not _has_hpc_keys(instance):
            return
        guest = self._host.get_guest(instance)
        if guest.get_power_state(self._host) in (power_state.RUNNING, power_state.PAUSED):
            attach.check_suspend(guest.get_xml_desc(dump_inactive=True))
            self._hpc_check_restart(instance)  # the devices have to come back

    # -- a server starts --------------------------------------------------------

    def spawn(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Check, then start; nothing has been made for the guest yet."""
        rebuilt = instance.task_state == task_states.REBUILD_SPAWNING
        if rebuilt and instance.migration_context is None:
            self._hpc_check_restart(instance)  # the same host, the same devices
        else:
            self._hpc_check(context, instance)
        super().spawn(context, instance, *args, **kwargs)

    def rebuild(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Check before Nova tears the old guest down, and leave the rest to Nova.

        An evacuation has been checked when it claimed its devices.
        """
        if not kwargs.get("evacuate"):
            try:
                self._hpc_check_restart(instance)
            except exception.NovaException as error:
                raise rollback(error) from error
        super().rebuild(context, instance, *args, **kwargs)  # raises NotImplementedError

    def _hard_reboot(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Check before the old domain is destroyed; also start and host boot."""
        self._hpc_check_restart(instance)
        super()._hard_reboot(context, instance, *args, **kwargs)

    def resume_state_on_host_boot(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Tell the user why a server did not come back; Nova only logs it."""
        try:
            super().resume_state_on_host_boot(context, instance, *args, **kwargs)
        except (ClaimRefused, DeviceFault) as error:
            compute_utils.add_instance_fault_from_exc(context, instance, error, sys.exc_info())
            raise

    def resume(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Check before the saved guest is started and gets its devices back."""
        try:
            self._hpc_check_restart(instance)
        except exception.NovaException as error:
            raise rollback(error) from error
        super().resume(context, instance, *args, **kwargs)

    def suspend(self, context: nova_context.RequestContext, instance: objects.Instance) -> None:
        """Refuse where the guest's devices could not come back as they were."""
        if _has_hpc_keys(instance):
            xml = self._host.get_guest(instance).get_xml_desc(dump_inactive=True)
            try:
                attach.check_suspend(xml)
            except exception.NovaException as error:
                raise rollback(error) from error
        try:
            super().suspend(context, instance)
        except exception.PciDeviceDetachFailed as error:
            raise rollback(error) from error  # it runs on as before

    def _detach_pci_devices(self, guest: Any, pci_devs: Any) -> None:
        """A guest with places of this project's gets the time that it needs."""
        if not attach.places(guest.get_xml_desc(dump_inactive=True)):
            super()._detach_pci_devices(guest, pci_devs)
            return
        devices = {
            normalise_address(each.address): self._get_guest_pci_device(each) for each in pci_devs
        }
        limit = CONF.libvirt.device_detach_timeout * CONF.libvirt.device_detach_attempts
        attach.detach(guest, devices, limit)

    def _attach_pci_devices(self, guest: Any, pci_devs: Any) -> None:
        """After a suspend or a snapshot, each device goes where it was."""
        super()._attach_pci_devices(attach.placing(guest) if pci_devs else guest, pci_devs)

    def attach_interface(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        image_meta: Any,
        vif: Any,
    ) -> None:
        """Check a direct port's device together with those that the server has."""
        slot = (vif.get("profile") or {}).get("pci_slot")
        if slot and _has_hpc_keys(instance):
            claim = Claim.of(instance).with_port(slot)
            before_start.check_flavor(context, instance, claim, self.hpc_source.read())
        if slot:
            self.hpc_tenancy.give(instance, [normalise_address(slot)], self.hpc_source.read())
        super().attach_interface(context, instance, image_meta, vif)

    def rescue(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Check before the guest is replaced by the rescue guest."""
        self._hpc_check_restart(instance)
        super().rescue(context, instance, *args, **kwargs)

    # -- a server ends --------------------------------------------------------

    def destroy(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Clean the devices of a server that is gone, before Nova frees them."""
        super().destroy(context, instance, *args, **kwargs)
        self.hpc_tenancy.take_back(instance, self.hpc_source)

    # -- a server moves -----------------------------------------------------------

    def migrate_disk_and_power_off(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """On the source: its adapters forget a server that goes on elsewhere."""
        disks = super().migrate_disk_and_power_off(context, instance, *args, **kwargs)
        if self.hpc_active and self.hpc_adapters is not None:
            self.hpc_adapters.rest(instance, self.hpc_source)
        return disks

    def finish_migration(
        self,
        context: nova_context.RequestContext,
        migration: objects.Migration,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """On the destination: the full check, with a fresh reading."""
        self._hpc_check(context, instance)
        super().finish_migration(context, migration, instance, *args, **kwargs)

    def finish_revert_migration(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Back on the source, with the devices that the server had before."""
        self._hpc_check_restart(instance)
        self._hpc_record_again(context, instance)
        super().finish_revert_migration(context, instance, *args, **kwargs)

    def check_can_live_migrate_source(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Refuse: nobody could check the destination's devices before the move."""
        if _has_hpc_keys(instance) and instance.pci_devices:
            raise exception.MigrationPreCheckError(
                reason="a server with hpc: keys in its flavor and PCI devices cannot be "
                "live-migrated; use cold migration"
            )
        return super().check_can_live_migrate_source(context, instance, *args, **kwargs)

    # -- the domain ---------------------------------------------------------------

    def _get_guest_xml(
        self,
        context: nova_context.RequestContext,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> str:
        """Nova's domain, with what the flavor's ``hpc:`` keys change in it."""
        xml = super()._get_guest_xml(context, instance, *args, **kwargs)
        if not _has_hpc_keys(instance):
            return xml
        xml = guest_topology.apply(xml, instance, self.hpc_source)
        xml = self._hpc_keep_emulator_off(xml, instance)
        return guest_topology.tell(xml, instance, self.hpc_source)

    def _hpc_keep_emulator_off(self, xml: str, instance: objects.Instance) -> str:
        """Emulator threads on housekeeping CPUs of the guest's own NUMA nodes."""
        if instance.numa_topology is None:
            return xml
        specs = instance.flavor.extra_specs
        if specs.get("hw:emulator_threads_policy") or specs.get("hw:cpu_realtime"):
            return xml  # the flavor says itself where they go
        cells = self._host.get_capabilities().host.topology.cells
        cpus = guest_xml.housekeeping(
            online=self._host.get_online_cpus(),
            dedicated=hardware.get_cpu_dedicated_set() or (),
            shared=hardware.get_cpu_shared_set() or (),
            cells={cell.id: {cpu.id for cpu in cell.cpus} for cell in cells},
            nodes=[cell.id for cell in instance.numa_topology.cells],
        )
        return guest_xml.keep_emulator_off(xml, cpus)


def _has_hpc_keys(instance: objects.Instance) -> bool:
    return flavors.has_hpc_keys(instance.flavor.extra_specs or {})
