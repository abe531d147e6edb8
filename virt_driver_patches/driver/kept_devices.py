# SPDX-License-Identifier: Apache-2.0
"""Checks that each server has the devices that it was given, and reports differences.

Every periodic update compares the guests with Nova's PCI records
(:mod:`nova_hpc.tenancy.kept_devices`). Differences appear in the log, in ``stats['hpc']``, in
a notification and in the ledger, which ``nova-hpc device list`` shows. Only nova-compute has
all the data for this judgement, so only nova-compute records it. If a guest releases a device
late, after a request that has failed (:mod:`virt_driver_patches.driver.suspend`), the device is
attached again at its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs
from nova import context as nova_context
from nova import exception, objects, utils
from nova.compute import vm_states
from nova.objects import fields
from oslo_log import log as logging

from nova_hpc.tenancy import kept_devices
from nova_hpc.tenancy.guest_domains import NodeGuestDomains
from nova_hpc.tenancy.kept_devices import GuestDifference, PromisedDevices, PromiseLook
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.topology.model import AddressError, normalise_address
from nova_hpc.wire import stats
from nova_hpc.wire.ledger import Ledger
from virt_driver_patches.domain import attach
from virt_driver_patches.driver import suspend
from virt_driver_patches.driver.notifications import GuestNotifier

LOG = logging.getLogger(__name__)

#: States in which a server's guest has its devices, and Nova makes no changes.
_SETTLED = (vm_states.ACTIVE, vm_states.PAUSED)

#: Comparisons after a lost device, and the seconds that they are apart at least.
_COMPARISONS: Final = 2
_APART: Final = 10.0


class GuestComparison:
    """The comparison of one node. It stores the last result, and the reported differences."""

    def __init__(
        self,
        domains: Callable[[], NodeGuestDomains],
        guest: Callable[[objects.Instance], Any],
        check: Callable[[objects.Instance], object],
    ) -> None:
        """Create the comparison.

        :param domains: reads the node's guest domains.
        :param guest: finds Nova's ``Guest`` of a server.
        :param check: raises if a server must not get its devices again.
        """
        self._domains, self._guest, self._check = domains, guest, check
        self._lock = threading.Lock()
        self._look = PromiseLook()
        self._notifier = GuestNotifier()
        #: Differences in the ledger; None if not yet written since the service started.
        self._written: Mapping[str, str] | None = None
        #: Comparisons between two updates that are due since libvirt reported a lost device.
        self._due = 0
        #: Host and node of the last update; None before the first.
        self._place: tuple[str, str] | None = None
        #: When the last comparison between two updates was made, by time.monotonic().
        self._between: float | None = None

    def report(
        self, resources: dict[str, Any], host: str, nodename: str, ledger: LedgerFile
    ) -> None:
        """Compare, and report the differences. Never raises.

        :param resources: the answer of ``get_available_resource``, with the document of
            :mod:`nova_hpc.wire.stats`; changed in place.
        """
        try:
            with self._lock:
                self._place = (host, nodename)
                if self._is_too_early():
                    texts = kept_devices.reasons_of_differences(self._look.known)
                else:
                    texts = self._texts(host, nodename)
                document = (
                    stats.read_stats(resources["stats"].get(stats.KEY)) or stats.StatsDocument()
                )
                document = attrs.evolve(document, differs=texts)
                resources["stats"][stats.KEY] = document.dumps()
                self._write(ledger, texts)
                self._notifier.tell(
                    kept_devices.difference_words_of(self._look.known), host, nodename
                )
        except Exception:
            LOG.exception("The driver cannot tell whether the servers have their devices")

    def removed(self, server: str) -> None:
        """Handle the loss of a device by a running guest. Never raises.

        This method cannot see whether Nova waits for the loss, as for a port. So only
        the next update draws a conclusion. But a device whose removal was requested at a
        failed suspend is put back at once.
        """
        self._due = _COMPARISONS
        try:
            context = nova_context.get_admin_context()
            instance = objects.Instance.get_by_uuid(
                context, server, expected_attrs=["system_metadata"]
            )
            if suspend.is_marked(instance) and _is_settled(instance):
                self._put_back(server)
        except Exception:
            LOG.exception("A device that a guest gave up cannot be put back: server %s", server)

    def look_again(self) -> None:
        """Compare between two updates if libvirt has reported a lost device. Never raises.

        The watch of devices calls this every few seconds, so that it need not wait for two updates.
        """
        if not self._due or self._place is None:
            return
        try:
            with self._lock:
                if not self._is_too_early():
                    self._due -= 1
                    self._texts(*self._place)
                    self._between = time.monotonic()
        except Exception:
            LOG.exception("The driver cannot tell whether the servers have their devices")

    def gone_from_guests(self) -> list[tuple[str, str]]:
        """Return (server, address) of devices that two comparisons have missed in their guests."""
        words = kept_devices.difference_words_of(self._look.known)
        return [key for key, word in words.items() if word == kept_devices.GONE]

    def _is_too_early(self) -> bool:
        """Whether a comparison now would confirm another one after a moment.

        Nova removes the record of a direct port's device seconds after the guest has lost it.
        """
        return self._between is not None and time.monotonic() - self._between < _APART

    # -- looking ------------------------------------------------------------------

    def _texts(self, host: str, nodename: str) -> dict[str, str]:
        """Compare the guests with Nova's records; map a device's address to the difference as text.

        Devices that a marked server's guest has lost are attached again before the result is made.
        If the guests' domains cannot be read, the former differences are returned.
        """
        guests = self._domains()
        if guests.problem is not None:
            LOG.warning("The guests' devices are not compared: %s", guests.problem)
            return kept_devices.reasons_of_differences(self._look.known)
        marked, promised = _read_promised_devices(host, nodename)
        differences = kept_devices.find_guest_differences(promised, guests)
        put_back = {
            difference.server
            for difference in differences
            if difference.gone and difference.server in marked
        }
        if put_back:
            for server in sorted(put_back):
                self._put_back(server)
            differences = kept_devices.find_guest_differences(promised, self._domains())
        before = kept_devices.reasons_of_differences(self._look.known)
        self._look = self._look.then(differences)
        self._log(before, self._look.known)
        return kept_devices.reasons_of_differences(self._look.known)

    @staticmethod
    def _log(before: Mapping[str, str], differences: Iterable[GuestDifference]) -> None:
        current_texts = kept_devices.reasons_of_differences(differences)
        for address, text in sorted(current_texts.items()):
            if before.get(address) != text:
                LOG.error("PCI device %s %s", address, text)
        for address in sorted(before.keys() - current_texts.keys()):
            LOG.info("PCI device %s is where it should be again", address)

    def _write(self, file: LedgerFile, texts: Mapping[str, str]) -> None:
        """Write the differences for ``nova-hpc device list``."""
        if texts == self._written:
            return

        def edit(ledger: Ledger) -> Ledger:
            return ledger.put(
                {
                    address: attrs.evolve(ledger.device(address), differs=texts.get(address, ""))
                    for address in ledger.devices.keys() | texts.keys()
                    if ledger.device(address).differs != texts.get(address, "")
                }
            )

        try:
            file.change(edit)
        except LedgerError as error:
            LOG.error("nova-hpc device list does not show what differs: %s", error)
        else:
            self._written = dict(texts)

    # -- putting back ----------------------------------------------------------------

    def _put_back(self, server: str) -> None:
        """Attach the PCI devices that a server's guest lost, at their former guest addresses."""

        # Nova also holds this lock while it stops, starts or deletes a server.
        @utils.synchronized(server)
        def locked() -> None:
            instance = objects.Instance.get_by_uuid(
                nova_context.get_admin_context(),
                server,
                expected_attrs=["flavor", "system_metadata", "pci_devices", "numa_topology"],
            )
            if not _is_settled(instance):
                return
            # Without the devices of ports, which Nova itself attaches and detaches.
            wanted = {
                normalise_address(device.address)
                for device in instance.get_pci_devices(
                    source=objects.InstancePCIRequest.FLAVOR_ALIAS
                )
            }
            guest = self._guest(instance)
            gone = wanted - attach.list_attached_addresses(guest)
            if not gone:
                return
            self._check(instance)
            back = attach.give_devices_back(guest, gone)
            LOG.warning(
                "The guest gave up PCI devices that it was asked for at a suspend: %s are back "
                "where they were, %s are not",
                ", ".join(sorted(back)) or "none",
                ", ".join(sorted(gone - back)) or "none",
                instance=instance,
            )

        try:
            locked()
        except Exception as error:
            LOG.error("The devices of server %s are not put back: %s", server, error)


def _is_settled(instance: objects.Instance) -> bool:
    return instance.vm_state in _SETTLED and instance.task_state is None


def _read_promised_devices(
    host: str, nodename: str
) -> tuple[frozenset[str], list[PromisedDevices]]:
    """Return servers with an unanswered unplug request, and the devices of each server here."""
    context = nova_context.get_admin_context()
    try:
        node = objects.ComputeNode.get_by_host_and_nodename(context, host, nodename)
    except exception.ComputeHostNotFound:
        return frozenset(), []  # the service starts for the first time
    devices: dict[str, set[str]] = {}
    moving = set()
    for device in objects.PciDeviceList.get_by_compute_node(context, node.id):
        if device.instance_uuid is None:
            continue
        try:
            devices.setdefault(device.instance_uuid, set()).add(normalise_address(device.address))
        except AddressError:
            moving.add(device.instance_uuid)  # it has a device that cannot be compared
        if device.status != fields.PciDeviceStatus.ALLOCATED:
            moving.add(device.instance_uuid)
    servers = objects.InstanceList.get_by_host(context, host, expected_attrs=["system_metadata"])
    return (
        frozenset(server.uuid for server in servers if suspend.is_marked(server)),
        [
            PromisedDevices(
                server=server.uuid,
                devices=frozenset(devices.get(server.uuid, ())),
                settled=_is_settled(server)
                and server.uuid not in moving
                and server.node == nodename,
            )
            for server in servers
        ],
    )
