# SPDX-License-Identifier: Apache-2.0
"""The libvirt driver of HPC nodes: Nova's own, with a check before each start.

Thin on purpose: every override calls Nova's method, and the other modules of this package
do the work. The driver keeps no state that two threads could corrupt,
and does not depend on the concurrency backend.

Statements about Nova hold for releases 32 to 34 (nova/compute/manager.py and
nova/virt/libvirt/driver.py); no bugs of Nova are known to be filed for them. ``patches.ALL``
lists the overridden private methods, with Nova's lines.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nova.conf
from nova import exception, objects
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.context import RequestContext
from nova.virt import hardware
from nova.virt.libvirt import event as libvirtevent
from nova.virt.libvirt import utils as libvirt_utils
from nova.virt.libvirt.driver import LibvirtDriver
from oslo_log import log as logging

from nova_hpc.from_nova import gate
from nova_hpc.from_nova.claim import instance_has_hpc_keys
from nova_hpc.topology.model import normalise_address
from virt_driver_patches import errors, patches
from virt_driver_patches.domain import attach, emulator_threads
from virt_driver_patches.domain.guest_domain import GuestDomainXml
from virt_driver_patches.driver import (
    arrivals,
    contract,
    guest_topology,
    position,
    suspend,
    way_back,
)
from virt_driver_patches.driver.admission import Admission
from virt_driver_patches.driver.broken_moves import BrokenMoves
from virt_driver_patches.driver.domains import LibvirtDomains
from virt_driver_patches.driver.host_boot import HostBoot
from virt_driver_patches.driver.kept_devices import GuestComparison
from virt_driver_patches.driver.node import HpcNode
from virt_driver_patches.driver.segment_keeper import SegmentKeeper
from virt_driver_patches.driver.segments import NodeSegments
from virt_driver_patches.driver.tenancy import LAST_TASKS
from virt_driver_patches.driver.watch import DeviceWatch, used_devices_of
from virt_driver_patches.errors import ClaimRefused, DeviceFault, StartFault, wrap_for_rollback
from virt_driver_patches.patches import pci_devices, refuse_early

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def _word_start_fault(context: RequestContext, instance: objects.Instance) -> Iterator[None]:
    """Put the kind of thing that failed into the server's fault when its start fails."""
    try:
        yield
    except Exception as error:
        fault = (
            errors.fault_of(error, context.request_id) if instance_has_hpc_keys(instance) else None
        )
        if fault is None:
            raise
        LOG.exception("The server cannot be started", instance=instance)
        raise fault from error


class HpcLibvirtDriver(LibvirtDriver):
    """Nova's libvirt driver for nodes whose ``device_spec`` has ``hpc_*`` tags.

    On other nodes, and for flavors without ``hpc:`` keys, it behaves as Nova's driver. It holds
    its node and the checks of servers on it, and makes no decision itself.
    """

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        # A function, because Nova creates its connection to libvirt later.
        self.hpc_domains = LibvirtDomains(lambda: self._host, root=Path(CONF.hpc.sysfs_root))
        self.hpc_node = HpcNode(self.hpc_domains.read)
        self.hpc_admission = Admission(
            self.hpc_node, lambda version: bool(self._host.has_min_version(version))
        )
        keeper = SegmentKeeper.from_options(
            CONF,
            self.hpc_domains.read,
            lambda: [cell.id for cell in self._host.get_capabilities().host.topology.cells],
        )
        self.hpc_segments = NodeSegments(keeper)
        #: Nova's name for this node's service.
        self.hpc_service: str = CONF.host
        self.hpc_promises = GuestComparison(
            LibvirtDomains(lambda: self._host).read,
            lambda instance: self._host.get_guest(instance),
            self.hpc_admission.restart,
        )
        self.hpc_moves = BrokenMoves(
            self.hpc_domains.read,
            lambda instance: int(self._host.get_guest(instance).get_job_info().type),
            CONF.long_rpc_timeout,
        )
        self.hpc_watch = DeviceWatch(
            lambda: used_devices_of(virtapi), self.hpc_promises, lambda: self.hpc_node.source.ledger
        )

    @functools.cached_property
    def _hpc_host_boot(self) -> HostBoot:
        return HostBoot(self.hpc_node.source.read, CONF.hpc.boot_patience)

    # -- the node ---------------------------------------------------------------

    def init_host(self, host: str) -> None:
        """Refuse to start if a contract with Nova does not hold."""
        active = self.hpc_node.check_options(host)
        contract.check_segment_options(CONF)
        self.hpc_service = host
        super().init_host(host)
        self.hpc_segments.keeper.put_in_order()
        if active:
            patches.install_all_wraps(
                self.virtapi,
                self.hpc_admission.claim,
                self._hpc_early_checks(),
                self.hpc_node.providers,
            )
            self.hpc_node.begin()
            self.hpc_watch.begin(host)
        elif self.hpc_segments.keeper.given:
            patches.install_early_wraps(self.virtapi, self._hpc_early_checks())

    def _get_pci_passthrough_devices(self) -> str:
        """Return Nova's reading, without its cache if this project is in use."""
        if self.hpc_node.active:
            return pci_devices.read_pci_devices_afresh(self)
        return str(super()._get_pci_passthrough_devices())

    def get_available_resource(self, nodename: str) -> dict[str, Any]:
        """Return Nova's answer without the devices that must not be given."""
        if self.hpc_node.active:
            tracker = gate.manager_of(self.virtapi).rt
            self.hpc_moves.end_moves(tracker, self.hpc_service)
            arrivals.free_left_claims(tracker, self.hpc_service, self.hpc_domains.read)
        resources: dict[str, Any] = super().get_available_resource(nodename)
        self.hpc_node.report(resources, nodename)
        if self.hpc_node.active:
            ledger = self.hpc_node.source.ledger
            self.hpc_promises.report(resources, self.hpc_service, nodename, ledger)
        self.hpc_segments.report(resources)
        return resources

    def update_provider_tree(
        self, provider_tree: Any, nodename: str, allocations: Any = None
    ) -> None:
        """Return Nova's answer, with needless reservations of this project lifted."""
        super().update_provider_tree(provider_tree, nodename, allocations=allocations)
        self.hpc_node.report_providers(provider_tree, nodename)

    def emit_event(self, event: Any) -> None:
        """Handle the event as Nova does; for a removed device, also check the guest in a thread.

        Nova ignores a device that leaves a guest unexpectedly.
        """
        super().emit_event(event)
        if isinstance(event, libvirtevent.DeviceRemovedEvent) and self.hpc_node.active:
            # This thread must not delay libvirt's other events.
            threading.Thread(
                target=self.hpc_promises.removed, args=(event.uuid,), name="hpc-lost", daemon=True
            ).start()

    def _hpc_early_checks(self) -> dict[str, refuse_early.Check]:
        """Map each method of Nova's compute manager to the check that is called before it."""
        restart = self._hpc_check_restart
        return {
            "reboot_instance": restart,
            "rescue_instance": restart,
            "unrescue_instance": self.hpc_admission.restart,
            "rebuild_instance": restart,
            "snapshot_instance": self._hpc_check_snapshot,
            "backup_instance": self._hpc_check_snapshot,
            "revert_resize": self._hpc_check_revert,
        }

    def _hpc_check_restart(self, instance: objects.Instance) -> None:
        """Refuse a restart of a server that would not get its devices and memory again."""
        self.hpc_admission.restart(instance)
        self.hpc_segments.check_restart(instance)

    def _hpc_check_revert(self, instance: objects.Instance) -> None:
        """Refuse a revert to devices that are gone, while the guest still runs."""
        reading = self.hpc_node.source.read() if self.hpc_node.active else None
        way_back.check_revert_possible(instance, self.hpc_service, reading)

    def _hpc_check_snapshot(self, instance: objects.Instance) -> None:
        """Refuse a snapshot that would make Nova suspend a guest that must keep running."""
        self._hpc_check_shared_snapshot(instance)
        if not suspend.is_answering_for_guest(instance, self.hpc_node.active):
            return
        guest = self._host.get_guest(instance)
        if suspend.does_snapshot_suspend(guest, self._host):
            suspend.check_suspend_allowed(instance, guest)
            self.hpc_admission.restart(instance)  # the devices have to come back

    def _hpc_check_shared_snapshot(self, instance: objects.Instance) -> None:
        try:
            guest = self._host.get_guest(instance)
        except exception.InstanceNotFound:
            return  # a stopped server: Nova reports it
        if suspend.does_snapshot_suspend(guest, self._host):
            self.hpc_segments.check_allowed("snapshot", instance, lambda: guest)

    def snapshot(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse a snapshot that suspends a guest with shared memory, also without early check."""
        self._hpc_check_shared_snapshot(instance)
        super().snapshot(context, instance, *args, **kwargs)

    # -- a server starts --------------------------------------------------------

    def spawn(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Check the server's devices, hold its part of a segment, then let Nova start the guest."""
        rebuilt = instance.task_state == task_states.REBUILD_SPAWNING
        here = rebuilt and instance.migration_context is None
        if here:
            self.hpc_admission.restart(instance)  # the same host, the same devices
        else:
            self.hpc_admission.start(context, instance)
        with self.hpc_watch.restarting(instance), self.hpc_segments.starting(instance, not here):
            position.write_position_metadata(instance, self.hpc_node)
            with _word_start_fault(context, instance):
                super().spawn(context, instance, *args, **kwargs)

    def rebuild(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Check before Nova tears the old guest down, and leave the rest to Nova.

        Nova's libvirt driver has no ``rebuild`` of its own: the manager goes on with
        ``_rebuild_default_impl`` after the NotImplementedError of nova/virt/driver.py.
        An evacuation has been checked when it claimed its devices.
        """
        if not kwargs.get("evacuate"):
            try:
                self._hpc_check_restart(instance)
            except exception.NovaException as error:
                raise wrap_for_rollback(error) from error
        super().rebuild(context, instance, *args, **kwargs)  # raises NotImplementedError

    def _hard_reboot(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Check the server's devices before Nova destroys the old domain, then reboot.

        ``power_on``, ``resume_state_on_host_boot`` and a failed soft reboot also call this method.
        """
        self.hpc_admission.restart(instance)
        with self.hpc_watch.restarting(instance), self.hpc_segments.starting(instance, anew=False):
            position.write_position_metadata(instance, self.hpc_node)
            with _word_start_fault(context, instance):
                super()._hard_reboot(context, instance, *args, **kwargs)

    def reboot(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Keep the server's shared memory while a soft reboot starts its domain again."""
        with self.hpc_watch.restarting(instance), self.hpc_segments.staying(instance):
            super().reboot(context, instance, *args, **kwargs)

    def resume_state_on_host_boot(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Wait for late resources of the host, and report to the user why a start failed.

        The manager (``_resume_guests_state``) only logs it and sets the server to ERROR.
        """
        if self.hpc_node.active:
            self._hpc_host_boot.wait(instance)
        try:
            self.hpc_segments.check_saved_state(instance)
            super().resume_state_on_host_boot(context, instance, *args, **kwargs)
        except (ClaimRefused, DeviceFault, StartFault) as error:
            compute_utils.add_instance_fault_from_exc(context, instance, error, sys.exc_info())
            raise

    def resume(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Check before the saved guest is started and gets its devices back."""
        try:
            self.hpc_segments.check_allowed(
                "resume", instance, lambda: self._host.get_guest(instance)
            )
            self.hpc_admission.restart(instance)
        except exception.NovaException as error:
            raise wrap_for_rollback(error) from error
        with self.hpc_watch.restarting(instance), _word_start_fault(context, instance):
            super().resume(context, instance, *args, **kwargs)

    def suspend(self, context: RequestContext, instance: objects.Instance) -> None:
        """Refuse a suspend that the guest's hardware forbids, before Nova detaches anything."""
        try:
            self.hpc_segments.check_allowed(
                "suspend", instance, lambda: self._host.get_guest(instance)
            )
        except exception.NovaException as error:
            raise wrap_for_rollback(error) from error
        if not suspend.is_answering_for_guest(instance, self.hpc_node.active):
            super().suspend(context, instance)
            return
        try:
            suspend.check_suspend_allowed(instance, self._host.get_guest(instance))
        except exception.NovaException as error:
            raise wrap_for_rollback(error) from error
        try:
            super().suspend(context, instance)
        except exception.PciDeviceDetachFailed as error:
            raise wrap_for_rollback(suspend.mark_left_asked(instance, error)) from error

    def _detach_pci_devices(self, guest: Any, pci_devs: Any) -> None:
        """Give the guest enough time, and detach all of its devices or none.

        Nova waits only as long as libvirt does; ``[libvirt]device_detach_timeout``
        and ``device_detach_attempts`` apply only to volumes and ports.
        """
        if not (self.hpc_node.active or attach.read_inactive_domain(guest).placed()):
            super()._detach_pci_devices(guest, pci_devs)
            return
        devices = {
            normalise_address(device.address): self._get_guest_pci_device(device)
            for device in pci_devs
        }
        limit = CONF.libvirt.device_detach_timeout * CONF.libvirt.device_detach_attempts
        attach.detach_all_or_none(guest, devices, limit)

    def _attach_pci_devices(self, guest: Any, pci_devs: Any) -> None:
        """Attach each PCI device at its former guest address, after a suspend or a snapshot."""
        super()._attach_pci_devices(
            attach.wrap_placing_guest(guest) if pci_devs else guest, pci_devs
        )

    def attach_interface(
        self, context: RequestContext, instance: objects.Instance, image_meta: Any, vif: Any
    ) -> None:
        """Check a direct port's device together with the server's other devices."""
        slot = (vif.get("profile") or {}).get("pci_slot")
        if slot:
            self.hpc_admission.port(context, instance, slot)
        super().attach_interface(context, instance, image_meta, vif)

    def rescue(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Check before the guest is replaced by the rescue guest."""
        self.hpc_admission.restart(instance)
        with (
            self.hpc_watch.restarting(instance),
            self.hpc_segments.starting(instance, anew=False),
            _word_start_fault(context, instance),
        ):
            super().rescue(context, instance, *args, **kwargs)

    def unrescue(self, context: RequestContext, instance: objects.Instance) -> None:
        """Keep the guest's former memory: Nova starts the guest with a stored domain."""

        def read_xml() -> str:
            path = Path(libvirt_utils.get_instance_path(instance)) / "unrescue.xml"
            return str(libvirt_utils.load_file(str(path)))

        with self.hpc_watch.restarting(instance), self.hpc_segments.returning(instance, read_xml):
            super().unrescue(context, instance)

    # -- a server ends --------------------------------------------------------

    def destroy(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Clean the devices of a server that is gone, before Nova frees them."""
        super().destroy(context, instance, *args, **kwargs)
        self.hpc_segments.keeper.put_in_order()
        if self.hpc_node.active and instance.task_state in LAST_TASKS:
            self.hpc_watch.end_server(instance)
        self.hpc_node.tenancy.take_back(instance, self.hpc_node.source)

    # -- a server moves -----------------------------------------------------------

    def migrate_disk_and_power_off(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> Any:
        """On the source of a move: run Nova's step, then reset the settings of its adapters."""
        disks = super().migrate_disk_and_power_off(context, instance, *args, **kwargs)
        self.hpc_segments.keeper.put_in_order()
        self.hpc_node.tenancy.rest(instance, self.hpc_node.source)
        return disks

    def finish_migration(
        self,
        context: RequestContext,
        migration: objects.Migration,
        instance: objects.Instance,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """On the destination of a move: check the server's devices afresh, then run Nova's step."""
        self.hpc_admission.start(context, instance)
        with self.hpc_watch.restarting(instance), self.hpc_segments.starting(instance, anew=True):
            position.write_position_metadata(instance, self.hpc_node)
            with _word_start_fault(context, instance):
                super().finish_migration(context, migration, instance, *args, **kwargs)

    def finish_revert_migration(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Back on the source, with the server's former devices."""
        self.hpc_admission.back(context, instance)
        with self.hpc_watch.restarting(instance), self.hpc_segments.starting(instance, anew=True):
            position.write_position_metadata(instance, self.hpc_node)
            with _word_start_fault(context, instance):
                super().finish_revert_migration(context, instance, *args, **kwargs)

    def check_can_live_migrate_source(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse a server that cannot move while it runs, with the reason."""
        try:
            arrivals.check_departure(instance, self.hpc_node)
            self.hpc_segments.check_allowed(
                "live-migration", instance, lambda: self._host.get_guest(instance)
            )
        except ClaimRefused as error:
            raise exception.MigrationPreCheckError(reason=str(error)) from error
        return super().check_can_live_migrate_source(context, instance, *args, **kwargs)

    def check_source_migrate_data_at_dest(
        self,
        ctxt: RequestContext,
        instance: objects.Instance,
        migrate_data: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Check the devices that the destination has claimed for the server.

        This is Nova's last check there, and the first at which the devices are claimed.
        """
        if self.hpc_node.active:
            arrivals.check_arriving_devices(
                self.hpc_admission, gate.manager_of(self.virtapi).rt, ctxt, instance, migrate_data
            )
        return super().check_source_migrate_data_at_dest(
            ctxt, instance, migrate_data, *args, **kwargs
        )

    def pre_live_migration(
        self,
        context: RequestContext,
        instance: objects.Instance,
        block_device_info: Any,
        network_info: Any,
        disk_info: Any,
        migrate_data: Any,
    ) -> Any:
        """Refuse a server that does not move any more, then run Nova's step."""
        if self.hpc_node.active:
            tracker = gate.manager_of(self.virtapi).rt
            arrivals.check_still_coming(tracker, instance, migrate_data)
        return super().pre_live_migration(
            context, instance, block_device_info, network_info, disk_info, migrate_data
        )

    def post_claim_migrate_data(
        self, context: RequestContext, instance: objects.Instance, migrate_data: Any, claim: Any
    ) -> Any:
        """Keep emulator threads off the vCPUs' CPUs on the destination, too."""
        data = super().post_claim_migrate_data(context, instance, migrate_data, claim)
        if instance_has_hpc_keys(instance) and "emulator_pins" in data.dst_numa_info:
            cpus = self._hpc_housekeeping_cpus(instance.flavor, claim.claimed_numa_topology)
            if cpus:
                data.dst_numa_info.emulator_pins = set(cpus)
        return data

    def post_live_migration_at_destination(
        self, context: RequestContext, instance: objects.Instance, *args: Any, **kwargs: Any
    ) -> None:
        """Write the server's records for this node; its guest runs here already."""
        if instance_has_hpc_keys(instance):
            self.hpc_admission.arrived(context, instance)
            position.write_position_metadata(instance, self.hpc_node)
        super().post_live_migration_at_destination(context, instance, *args, **kwargs)

    # -- the domain ---------------------------------------------------------------

    def _get_guest_xml(
        self,
        context: RequestContext,
        instance: objects.Instance,
        network_info: Any,
        *args: Any,
        **kwargs: Any,
    ) -> str:
        """Return Nova's domain, with the changes for the flavor's ``hpc:`` keys."""
        xml: str = super()._get_guest_xml(context, instance, network_info, *args, **kwargs)
        suspend.forget_unplug_requests(instance)
        is_ours = instance_has_hpc_keys(instance)
        if not is_ours and not self.hpc_segments.is_starting(instance):
            return xml
        domain = GuestDomainXml(xml)
        shared = self.hpc_segments.add_to(domain, instance)
        if not is_ours:
            if shared is not None:
                guest_topology.tell_guest_segment(domain, instance, shared)
            return domain.text()
        guest_topology.arrange_recorded_tree(domain, instance, self.hpc_node.source)
        self._hpc_keep_emulator_off(domain, instance)
        where = self.hpc_node.whereabouts(instance)
        guest_topology.tell_guest_topology(
            domain, instance, self.hpc_node.source, where, shared, network_info
        )
        return domain.text()

    def _hpc_keep_emulator_off(self, domain: GuestDomainXml, instance: objects.Instance) -> None:
        """Pin emulator threads to housekeeping CPUs of the guest's own NUMA nodes."""
        cpus = self._hpc_housekeeping_cpus(instance.flavor, instance.numa_topology)
        emulator_threads.pin_emulator_threads(domain, cpus)

    def _hpc_housekeeping_cpus(
        self, flavor: objects.Flavor, topology: objects.InstanceNUMATopology | None
    ) -> frozenset[int]:
        """Return the CPUs for a guest's emulator threads; none if they stay as Nova pins them."""
        specs = flavor.extra_specs
        if topology is None or specs.get("hw:emulator_threads_policy"):
            return frozenset()
        if specs.get("hw:cpu_realtime"):
            return frozenset()  # the flavor itself places them
        cells = self._host.get_capabilities().host.topology.cells
        return emulator_threads.choose_housekeeping_cpus(
            online=self._host.get_online_cpus(),
            dedicated=hardware.get_cpu_dedicated_set() or (),
            shared=hardware.get_cpu_shared_set() or (),
            cells={cell.id: {cpu.id for cpu in cell.cpus} for cell in cells},
            nodes=[cell.id for cell in topology.cells],
        )
