"""The libvirt driver of HPC nodes: Nova's own, with a check before each start.

Thin on purpose: every override hands on to Nova, and the work is done by the
other modules of this package. It keeps no state that two threads could tear,
and knows nothing of the concurrency backend.
"""

from __future__ import annotations

import sys
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.virt import hardware
from oslo_log import log as logging

from nova_hpc.from_nova.claim import Claim, has_hpc_keys
from nova_hpc.topology.model import normalise_address
from virt_driver_patches.domain import attach, guest_topology, guest_xml
from virt_driver_patches.driver import before_start
from virt_driver_patches.driver.node import HpcNodeDriver
from virt_driver_patches.errors import ClaimRefused, DeviceFault, rollback

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


class HpcLibvirtDriver(HpcNodeDriver):
    """Nova's libvirt driver for nodes whose ``device_spec`` has ``hpc_*`` tags.

    Elsewhere, and for flavors without ``hpc:`` keys, it is Nova's driver.
    """

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
        if has_hpc_keys(instance):
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
        if slot and has_hpc_keys(instance):
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
        if has_hpc_keys(instance) and instance.pci_devices:
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
        if not has_hpc_keys(instance):
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
