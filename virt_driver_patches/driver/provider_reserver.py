# SPDX-License-Identifier: Apache-2.0
"""A withheld device keeps its resource provider, and Placement gives it to no server.

A withheld device is missing in Nova's PCI tracker. So no claim at the node and
no filter of the scheduler can take it, not even as one of several virtual functions of an
adapter, which Placement cannot distinguish. Its provider is *not* removed. After Nova has built
its providers from its tracker (``update_provider_tree_for_pci`` of
nova/compute/pci_placement_translator.py), this module adds withheld devices to the total again,
and reserves them. So no allocation candidate contains them, and UUID, traits and aggregates
stay. There are two locks instead of one, and neither fails a claim of other devices.

:mod:`nova_hpc.tenancy.reserve` decides the reserved amount, and this module writes it into the
ledger before it reaches Placement. If the ledger cannot be written, a trait marks the provider:
its reservation belongs to this node, and the trait contains the amount that an operator had
reserved. So no server gets the device until then, and the reservation is lifted when the ledger
works again, even after a restart.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs
from nova.compute.provider_tree import ProviderTree
from nova.objects import fields
from oslo_log import log as logging

from nova_hpc.tenancy import reserve
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.reserve import PlacedProvider
from nova_hpc.topology.model import Node, try_normalise_address
from nova_hpc.wire.ledger import Ledger
from nova_hpc.wire.reservation import ReservedProvider
from virt_driver_patches.driver.provider_tree import (
    TreeProvider,
    pci_providers_of,
    put_provider_back,
    write_tree_provider,
)

LOG = logging.getLogger(__name__)

_GONE: Final = (fields.PciDeviceStatus.REMOVED, fields.PciDeviceStatus.DELETED)
_CHILDREN: Final = (fields.PciDeviceType.SRIOV_VF, fields.PciDeviceType.VDPA)


@attrs.frozen
class WithheldLook:
    """The node, its offered devices and its withheld devices, as the last update saw them."""

    node: Node
    #: All devices that ``device_spec`` matches.
    offered: frozenset[str]
    #: Address of a provider -> its devices that Nova's tracker does not get.
    withheld: Mapping[str, frozenset[str]]

    @classmethod
    def of(
        cls,
        node: Node,
        entries: Mapping[str, Mapping[str, str]],
        reported: Iterable[Mapping[str, Any]],
        withheld: Collection[str],
    ) -> WithheldLook:
        """Sort the withheld devices by their provider.

        :param entries: address -> the tags of the matching entry.
        :param reported: libvirt's list of devices.
        """
        withheld_by_provider: dict[str, set[str]] = {}
        for device in reported:
            address = try_normalise_address(device.get("address")) or ""
            # Nova does not report devices of Neutron's networks in Placement.
            if address not in withheld or "physical_network" in entries.get(address, ()):
                continue
            provider = address
            if device.get("dev_type") in _CHILDREN:
                provider = try_normalise_address(device.get("parent_addr")) or address
            withheld_by_provider.setdefault(provider, set()).add(address)
        return cls(
            node,
            frozenset(entries),
            {provider: frozenset(some) for provider, some in withheld_by_provider.items()},
        )

    def vanished(self, address: str, removed: Collection[str]) -> bool:
        """Whether the devices of a provider vanished, rather than left the configuration.

        :param removed: devices that Nova's tracker has just removed.
        """
        function = self.node.function(address)
        if function is None or address in self.offered:
            return True
        children = function.virtual_functions
        if children:
            return not self.offered.isdisjoint(children)
        return address not in removed and bool(function.total_vfs)


@attrs.frozen
class ProviderNote:
    """A note for operators on a provider that this node does not itself withhold."""

    text: str
    #: Whether the note is about each of its devices.
    whole: bool = False


class ProviderReserver:
    """Keeps the providers of one node; all but :meth:`look` run under the tracker's lock."""

    def __init__(self, ledger: LedgerFile, keep_vanished: float, cleans: bool = True) -> None:
        """Send no request yet. *keep_vanished* is the option's value, in seconds.

        :param cleans: whether devices are cleaned here, so that a mark does not last forever.
        """
        self._ledger = ledger
        self._keep_vanished = keep_vanished
        self._cleans = cleans
        self._look: WithheldLook | None = None
        #: The records that were last written; None if they were not read yet.
        self._records: Mapping[str, ReservedProvider] | None = None
        #: Whether reservations of unknown origin have been logged.
        self._asked = False
        #: Address of a provider -> note, for devices that this node does not withhold.
        self._said: Mapping[str, ProviderNote] = {}

    # -- the periodic update ------------------------------------------------------

    def look(self, look: WithheldLook) -> dict[str, str]:
        """Store the withheld devices.

        :returns: address -> why more devices are not given: an operator has reserved
            them, or they have vanished.
        """
        self._look = look
        shown: dict[str, str] = {}
        for address, note in self._said.items():
            function = look.node.function(address)
            children = () if function is None else function.virtual_functions
            offered = [child for child in children if child in look.offered]
            shown.update(dict.fromkeys(offered if offered and note.whole else [address], note.text))
        return shown

    def held(self) -> frozenset[str]:
        """Return devices that Nova's tracker lacks, or will lack from the next update on."""
        look, ledger = self._look, self._ledger.read()
        sick = ledger.staged.union(ledger.quarantined, ledger.suspect)
        return sick if look is None else sick.union(*look.withheld.values())

    # -- Nova makes its providers -------------------------------------------------

    def complete(
        self,
        tree: ProviderTree,
        nodename: str,
        before: Mapping[str, TreeProvider],
        devices: Iterable[Any],
        allocations: Mapping[str, Any],
    ) -> None:
        """Restore the withheld devices that Nova has removed from *tree*, and reserve them.

        The phases: decide the amounts of each provider from its record and Placement's state, write
        the ledger, and only then write *tree*. So each reservation has a record, or a trait if the
        ledger is unusable, before Placement receives it.

        :param before: the providers before Nova's step.
        :param devices: the devices of Nova's tracker.
        :param allocations: consumer -> its allocation on this node, from Placement.
        """
        after = pci_providers_of(tree, nodename)
        tracked, removed, free = _sort_tracked_devices(devices)
        sick = self._sick(free)
        counts = collections.Counter(tracked.values())
        used = _used_amounts_of(allocations)
        records = self._recorded()
        decided: dict[str, ReservedProvider] = {}
        unread: dict[str, ReservedProvider] = {}
        placed: dict[str, PlacedProvider] = {}
        for address in sorted({*before, *after}):
            former, new = before.get(address), after.get(address)
            current = new or former
            remembered = _restore_unwritten((records or {}).get(address), former)
            if current is None or (new is None and tree.exists(current.uuid)):
                continue  # Nova has replaced it by another provider
            if not current.resource_class:
                # An inventory missing in Placement's answer is unknown, not empty: it stays.
                if new is None:
                    put_provider_back(tree, current.data)
                if remembered is not None:
                    unread[address] = remembered
                continue
            held = self._held(address) - tracked.keys()
            placed[address] = provider = _placed_provider_of(
                former, new, used[current.uuid], remembered
            )
            if new is not None:
                total = max(counts[address] + len(held), new.total)
                kept = len(held) + sick[address]
                remembered = _clear_gone_mark(remembered)
            elif held:
                total = kept = max(len(held), provider.used)
                remembered = _clear_gone_mark(remembered)
            else:
                total = kept = max(current.total, provider.used)
                remembered = self._leaving(address, remembered, provider, removed)
                if remembered is None:
                    continue  # Nova deletes it
            decided[address] = reserve.decide_reservation(remembered, provider, kept, total)
        if records is not None and not self._asked:
            self._asked = True
            commands = reserve.list_lifting_commands(records, decided, placed, self._ledger.read())
            if commands:
                LOG.warning("%s %s", reserve.BY_NOBODY_KNOWN, "; ".join(commands))
        done = self._record(records, {**unread, **decided})
        for address, record in decided.items():
            former, reserved = before.get(address), record.reserved
            more = None
            if not done:
                reserved = min(max(placed[address].reserved, reserved), record.total)
                if reserved > placed[address].reserved or (former and former.unwritten is not None):
                    more = record.operators
            write_tree_provider(tree, former, after.get(address), record, reserved, more)
        self._said = dict(_provider_notes_of(decided, placed))

    def _held(self, address: str) -> frozenset[str]:
        look = self._look
        return frozenset() if look is None else look.withheld.get(address, frozenset())

    def _sick(self, free: Mapping[str, str]) -> collections.Counter[str]:
        """Count by provider the devices that Nova's tracker shows free, but no server may get.

        There are four cases. A device that failed its checks when its server was deleted is in
        quarantine, or suspect. A device has a mark if its server has moved away, or if its guest
        still runs. A device that has to be cleaned from within is due. And no device counts as
        clean if the ledger was lost or restored. Nova has freed these devices after the node's
        last update, so Nova's tracker treats them as free until the next one.

        :param free: address of a device that Nova's tracker has as free -> address of its provider.
        """
        ledger = self._ledger.read()
        if ledger.lost or (self._cleans and not ledger.compared):
            return collections.Counter(free.values())
        withheld = ledger.staged.union(ledger.quarantined, ledger.suspect)
        return collections.Counter(
            place
            for address, place in free.items()
            if address in withheld
            or place in withheld
            or (self._cleans and ledger.device(address).owes)
        )

    def _leaving(
        self,
        address: str,
        remembered: ReservedProvider | None,
        provider: PlacedProvider,
        removed: Collection[str],
    ) -> ReservedProvider | None:
        """Return the record of a provider without devices in Nova; None if it may go."""
        if not provider.used:
            # No server has it, and an operator may have removed it from the configuration.
            if self._look is not None and not self._look.vanished(address, removed):
                return None
            if not reserve.does_provider_stay(
                remembered, provider.used, time.time(), self._keep_vanished
            ):
                LOG.warning("PCI device %s has been gone for long: its provider goes", address)
                return None
        base = remembered or ReservedProvider(
            provider.uuid, provider.resource_class, provider.total, 0, provider.reserved, None
        )
        return attrs.evolve(base, gone=time.time() if base.gone is None else base.gone)

    # -- the records in the ledger --------------------------------------------------

    def _recorded(self) -> Mapping[str, ReservedProvider] | None:
        """Return the records that were last written; None if unknown."""
        if self._records is None:
            ledger = self._ledger.read()
            if not ledger.lost:
                self._records = dict(ledger.providers)
        return self._records

    def _record(
        self, before: Mapping[str, ReservedProvider] | None, decided: Mapping[str, ReservedProvider]
    ) -> bool:
        """Record the reservations that follow; return False if the ledger is unusable."""
        if before is None:
            LOG.error(
                "What is reserved in Placement is not written down: the ledger cannot be read"
            )
            return False
        kept = {
            address: record
            for address, record in decided.items()
            if not reserve.is_reservation_over(record)
        }
        if kept == before:
            return True

        def edit(ledger: Ledger) -> Ledger:
            return attrs.evolve(ledger, providers=kept)

        try:
            self._ledger.change(edit)
        except LedgerError as error:
            LOG.error("What is reserved in Placement is not written down: %s", error)
            return False
        self._records = kept
        return True

    # -- the project is switched off ------------------------------------------------

    def lift(self, tree: ProviderTree, nodename: str) -> None:
        """Lift the reservations that this project has made in Placement for the node's providers.

        Called before Nova's step at every update, if the project is no longer in use here; never
        raises.
        """
        records = self._recorded()
        current = pci_providers_of(tree, nodename)
        marked = {
            address: provider
            for address, provider in current.items()
            if provider.unwritten is not None
        }
        if not (records or marked):
            return
        decided, placed = {}, {}
        for address in sorted({*(records or {}), *marked}):
            remembered = _restore_unwritten((records or {}).get(address), current.get(address))
            if address in current and current[address].resource_class:
                placed[address] = provider = _placed_provider_of(
                    current[address], current[address], 0, remembered
                )
                decided[address] = reserve.decide_reservation(
                    _clear_gone_mark(remembered), provider, 0, provider.total
                )
        if self._record(records, decided):
            for address, record in decided.items():
                if record.reserved != placed[address].reserved:
                    LOG.info("PCI device %s is not reserved in Placement any more", address)
                    write_tree_provider(
                        tree, current[address], current[address], record, record.reserved
                    )


def _sort_tracked_devices(
    devices: Iterable[Any],
) -> tuple[dict[str, str], set[str], dict[str, str]]:
    """Return tracked device -> address of its provider; removed devices; free devices."""
    tracked, removed, free = {}, set(), {}
    for device in devices:
        address = try_normalise_address(device.address) or ""
        if device.status in _GONE:
            removed.add(address)
        else:
            child = device.dev_type in _CHILDREN
            place = device.parent_addr if child else address
            tracked[address] = try_normalise_address(place) or ""
            if device.status == fields.PciDeviceStatus.AVAILABLE:
                free[address] = tracked[address]
    return tracked, removed, free


def _used_amounts_of(allocations: Mapping[str, Any]) -> collections.Counter[str]:
    """Sum the allocated amounts by the provider's UUID, over all consumers.

    :param allocations: consumer -> its allocations, as Placement returns them.
    """
    used: collections.Counter[str] = collections.Counter()
    for consumer in allocations.values():
        for uuid, part in consumer["allocations"].items():
            used[uuid] += sum(part["resources"].values())
    return used


def _placed_provider_of(
    former: TreeProvider | None,
    new: TreeProvider | None,
    used: int,
    record: ReservedProvider | None,
) -> PlacedProvider:
    """Return a provider's state in Placement, including Nova's own new reservation.

    :param record: the stored record, for the case that Placement gave no inventory.
    """
    current = new or former
    assert current is not None
    reserved = 0 if former is None else int(former.fields.get("reserved", 0))
    if former is not None and not former.resource_class and record is not None:
        reserved = record.reserved
    if new is not None:
        reserved = int(new.fields.get("reserved", reserved))
    return PlacedProvider(
        uuid=current.uuid,
        resource_class=current.resource_class,
        total=former.total if former is not None and former.resource_class else current.total,
        reserved=reserved,
        used=used,
        once=current.once,
    )


def _restore_unwritten(
    record: ReservedProvider | None, former: TreeProvider | None
) -> ReservedProvider | None:
    """Return the record of a provider whose reservation the ledger does not contain."""
    if former is None or former.unwritten is None or not former.resource_class:
        return record
    if record is None or record.uuid != former.uuid:
        record = ReservedProvider(former.uuid, former.resource_class, former.total)
    reserved = int(former.fields.get("reserved", 0))
    return attrs.evolve(record, operators=former.unwritten, earlier=reserved)


def _clear_gone_mark(record: ReservedProvider | None) -> ReservedProvider | None:
    """Return the record without the mark of a missing device, because the device is here."""
    return record if record is None or record.gone is None else attrs.evolve(record, gone=None)


def _provider_notes_of(
    records: Mapping[str, ReservedProvider], placed: Mapping[str, PlacedProvider]
) -> Iterable[tuple[str, ProviderNote]]:
    """Yield (PCI address, note for operators) of reservations that this node did not decide.

    They are those of an operator, and those of a device that has vanished.
    """
    for address, record in records.items():
        theirs = min(record.operators, record.total)
        if record.gone is not None:
            yield (
                address,
                ProviderNote("the device has vanished; its resource provider is kept and reserved"),
            )
        elif theirs >= record.total and not placed[address].once:
            yield address, ProviderNote(reserve.BY_OPERATOR, whole=True)
        elif theirs and not placed[address].once:
            text = f"{theirs} of its {record.total} functions are {reserve.BY_OPERATOR}"
            yield address, ProviderNote(text)
