# SPDX-License-Identifier: Apache-2.0
"""A device that is withheld keeps its resource provider, and nobody gets it from Placement.

A withheld device is left out of what Nova's PCI tracker knows: so no claim at the node and
no filter of the scheduler can take it, not even one of several virtual functions of one
adapter, of which Placement names none. Its provider is *not* left out. After Nova has made
its providers from its tracker (``update_provider_tree_for_pci`` of
nova/compute/pci_placement_translator.py), what is withheld is added again to the total, and
reserved: no candidate has it, whoever asks, and UUID, traits and aggregates stay. Two locks
instead of one, and neither fails the claim of anything else.

What is reserved is decided by :mod:`nova_hpc.tenancy.reserve` and written into the ledger
before Placement hears of it. Where the ledger cannot be written, the provider itself says by
a trait that what is reserved of it is this node's, and how much an operator had reserved: so
nobody gets the device meanwhile, and it is lifted when all is well, after a restart, too.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs
import os_traits
from nova.compute.provider_tree import ProviderTree
from nova.objects import fields
from oslo_log import log as logging

from nova_hpc.tenancy import reserve
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.reserve import Found
from nova_hpc.topology.model import AddressError, Node, normalise_address
from nova_hpc.wire.ledger import Ledger
from nova_hpc.wire.reservation import Provider

LOG = logging.getLogger(__name__)

_GONE: Final = (fields.PciDeviceStatus.REMOVED, fields.PciDeviceStatus.DELETED)
#: Trait of a provider of which the node has reserved what it could not write down, before
#: the number that was an operator's.
UNWRITTEN: Final = "CUSTOM_HPC_RESERVED_UNWRITTEN_"
_CHILDREN: Final = (fields.PciDeviceType.SRIOV_VF, fields.PciDeviceType.VDPA)


@attrs.frozen
class Look:
    """What the last periodic update has found."""

    node: Node
    #: Everything that ``device_spec`` matches.
    offered: frozenset[str]
    #: Address of a provider -> its devices that are left out of Nova's tracker.
    withheld: Mapping[str, frozenset[str]]

    @classmethod
    def of(
        cls,
        node: Node,
        entries: Mapping[str, Mapping[str, str]],
        reported: Iterable[Mapping[str, Any]],
        withheld: Collection[str],
    ) -> Look:
        """Sort what is withheld by the provider that it belongs to.

        :param entries: address -> the tags of the matching entry.
        :param reported: what libvirt lists.
        """
        found: dict[str, set[str]] = {}
        for device in reported:
            address = _normal(device.get("address"))
            # Nova does not report devices of Neutron's networks in Placement.
            if address not in withheld or "physical_network" in entries.get(address, ()):
                continue
            provider = address
            if device.get("dev_type") in _CHILDREN:
                provider = _normal(device.get("parent_addr")) or address
            found.setdefault(provider, set()).add(address)
        return cls(
            node, frozenset(entries), {each: frozenset(some) for each, some in found.items()}
        )

    def vanished(self, address: str, removed: Collection[str]) -> bool:
        """Whether the devices of a provider went by themselves, not from the configuration.

        :param removed: devices that Nova's tracker has just given up.
        """
        function = self.node.function(address)
        if function is None or address in self.offered:
            return True
        children = function.virtual_functions
        if children:
            return not self.offered.isdisjoint(children)
        return address not in removed and bool(function.total_vfs)


@attrs.frozen
class Known:
    """A provider of one device, or of one adapter's functions, in the tree."""

    data: Any
    #: Empty: Placement did not say what there is.
    resource_class: str = ""
    fields: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    @property
    def uuid(self) -> str:
        """Its UUID."""
        return str(self.data.uuid)

    @property
    def total(self) -> int:
        """Devices in its inventory."""
        return int(self.fields.get("total", 0))

    @property
    def unwritten(self) -> int | None:
        """What was an operator's when the node could not write down its own; None: it could."""
        ends = [
            each.removeprefix(UNWRITTEN) for each in self.data.traits if each.startswith(UNWRITTEN)
        ]
        return next((int(each) for each in ends if each.isdecimal()), None)

    @property
    def once(self) -> bool:
        """Nova reserves it by itself."""
        return os_traits.HW_PCI_ONE_TIME_USE in self.data.traits


def providers(tree: ProviderTree, nodename: str) -> dict[str, Known]:
    """Address -> provider of this node's PCI devices, with one resource class at most."""
    found = {}
    for uuid in tree.get_provider_uuids_in_tree(nodename):
        data = tree.data(uuid)
        node, _, rest = data.name.rpartition("_")
        address = _normal(rest)
        managed = os_traits.COMPUTE_MANAGED_PCI_DEVICE in data.traits
        if address and node == nodename and managed and len(data.inventory) <= 1:
            found[address] = Known(data, *next(iter(data.inventory.items()), ()))
    return found


@attrs.frozen
class Said:
    """What operators are told of a provider that this node does not withhold by itself."""

    text: str
    #: It is about each of its devices.
    whole: bool = False


class Reserver:
    """Keeps the providers of one node; below the resource tracker's lock but for :meth:`look`."""

    def __init__(self, ledger: LedgerFile, keep_vanished: float, cleans: bool = True) -> None:
        """Make it; *keep_vanished* is the option, in seconds.

        :param cleans: devices are cleaned here: a mark is not for ever.
        """
        self._ledger = ledger
        self._keep_vanished = keep_vanished
        self._cleans = cleans
        self._look: Look | None = None
        #: As it was last written; None: it was not read yet.
        self._records: Mapping[str, Provider] | None = None
        #: Whether it was said what is reserved by nobody known.
        self._asked = False
        #: Address of a provider -> the word for it, for what nobody here withholds.
        self._said: Mapping[str, Said] = {}

    # -- the periodic update ------------------------------------------------------

    def look(self, look: Look) -> dict[str, str]:
        """Take note of what is withheld.

        :returns: address -> why more devices are not given: an operator has reserved
            them, or they have vanished.
        """
        self._look = look
        shown: dict[str, str] = {}
        for address, said in self._said.items():
            function = look.node.function(address)
            children = () if function is None else function.virtual_functions
            mine = [each for each in children if each in look.offered]
            shown.update(dict.fromkeys(mine if mine and said.whole else [address], said.text))
        return shown

    def held(self) -> frozenset[str]:
        """What is left out of Nova's tracker, or will be at the next update."""
        look, ledger = self._look, self._ledger.read()
        sick = ledger.staged.union(ledger.quarantined)
        return sick if look is None else sick.union(*look.withheld.values())

    # -- Nova makes its providers -------------------------------------------------

    def complete(
        self,
        tree: ProviderTree,
        nodename: str,
        before: Mapping[str, Known],
        devices: Iterable[Any],
        allocations: Mapping[str, Any],
    ) -> None:
        """Put back what Nova has taken out of *tree*, and reserve it.

        :param before: the providers before Nova's step.
        :param devices: what Nova's tracker knows.
        :param allocations: consumer -> what it has of this node, by Placement.
        """
        now = providers(tree, nodename)
        tracked, removed, free = _sort(devices)
        sick = self._sick(free)
        counts = collections.Counter(tracked.values())
        used = _used(allocations)
        records = self._recorded()
        then: dict[str, Provider] = {}
        unread: dict[str, Provider] = {}
        found: dict[str, Found] = {}
        for address in sorted({*before, *now}):
            was, new = before.get(address), now.get(address)
            here = new or was
            known = _unwritten((records or {}).get(address), was)
            if here is None or (new is None and tree.exists(here.uuid)):
                continue  # Nova has changed it into something else
            if not here.resource_class:
                # What Placement did not say is unknown, and never nothing: it stays.
                if new is None:
                    _put_back(tree, here.data)
                if known is not None:
                    unread[address] = known
                continue
            held = self._held(address) - tracked.keys()
            found[address] = one = _found(was, new, used[here.uuid], known)
            if new is not None:
                total = max(counts[address] + len(held), new.total)
                kept = len(held) + sick[address]
                known = _back(known)
            elif held:
                total = kept = max(len(held), one.used)
                known = _back(known)
            else:
                total = kept = max(here.total, one.used)
                known = self._leaving(address, known, one, removed)
                if known is None:
                    continue  # Nova deletes it
            then[address] = reserve.decide(known, one, kept, total)
        if records is not None and not self._asked:
            self._asked = True
            commands = reserve.commands(records, then, found, self._ledger.read())
            if commands:
                LOG.warning("%s %s", reserve.BY_NOBODY_KNOWN, "; ".join(commands))
        done = self._record(records, {**unread, **then})
        for address, record in then.items():
            was, reserved = before.get(address), record.reserved
            more = None
            if not done:
                reserved = min(max(found[address].reserved, reserved), record.total)
                if reserved > found[address].reserved or (was and was.unwritten is not None):
                    more = record.operators
            _write(tree, was, now.get(address), record, reserved, more)
        self._said = dict(_words(then, found))

    def _held(self, address: str) -> frozenset[str]:
        look = self._look
        return frozenset() if look is None else look.withheld.get(address, frozenset())

    def _sick(self, free: Mapping[str, str]) -> collections.Counter[str]:
        """Provider -> how many of its free devices are not free, and tracked still.

        A device that does not pass when its server is deleted is in quarantine; one whose
        server has left for elsewhere, or whose guest runs on, has its mark; one that is to be
        cleaned from within is due; none is known to be clean where the ledger was lost or put
        back. Nova has freed it after the node has looked: until the next look it is free for
        Nova's tracker.
        """
        ledger = self._ledger.read()
        if ledger.lost or (self._cleans and not ledger.compared):
            return collections.Counter(free.values())
        known = ledger.staged.union(ledger.quarantined)
        return collections.Counter(
            place
            for each, place in free.items()
            if each in known or place in known or (self._cleans and ledger.device(each).owes)
        )

    def _leaving(
        self, address: str, known: Provider | None, found: Found, removed: Collection[str]
    ) -> Provider | None:
        """What is remembered of a provider whose devices Nova has none of; None: it may go."""
        if not found.used:
            # Nobody has it, and an operator may have taken it out of the configuration.
            if self._look is not None and not self._look.vanished(address, removed):
                return None
            if not reserve.stays(known, found.used, time.time(), self._keep_vanished):
                LOG.warning("PCI device %s has been gone for long: its provider goes", address)
                return None
        base = known or Provider(
            found.uuid, found.resource_class, found.total, 0, found.reserved, None
        )
        return attrs.evolve(base, gone=time.time() if base.gone is None else base.gone)

    # -- what is remembered ---------------------------------------------------------

    def _recorded(self) -> Mapping[str, Provider] | None:
        """What was last written; None: nobody knows."""
        if self._records is None:
            ledger = self._ledger.read()
            if not ledger.lost:
                self._records = dict(ledger.providers)
        return self._records

    def _record(self, before: Mapping[str, Provider] | None, then: Mapping[str, Provider]) -> bool:
        """Write down what is going to be reserved; False: it cannot be."""
        if before is None:
            LOG.error(
                "What is reserved in Placement is not written down: the ledger cannot be read"
            )
            return False
        kept = {each: one for each, one in then.items() if not reserve.over(one)}
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
        """Lift what this node has reserved, where the project is not in use any more.

        Called before Nova's step, at every update; never raises.
        """
        records = self._recorded()
        now = providers(tree, nodename)
        marked = {each: one for each, one in now.items() if one.unwritten is not None}
        if not (records or marked):
            return
        then, found = {}, {}
        for address in sorted({*(records or {}), *marked}):
            known = _unwritten((records or {}).get(address), now.get(address))
            if address in now and now[address].resource_class:
                found[address] = one = _found(now[address], now[address], 0, known)
                then[address] = reserve.decide(_back(known), one, 0, one.total)
        if self._record(records, then):
            for address, record in then.items():
                if record.reserved != found[address].reserved:
                    LOG.info("PCI device %s is not reserved in Placement any more", address)
                    _write(tree, now[address], now[address], record, record.reserved)


def _normal(text: object) -> str:
    try:
        return normalise_address(str(text))
    except AddressError:
        return ""


def _sort(devices: Iterable[Any]) -> tuple[dict[str, str], set[str], dict[str, str]]:
    """Tracked device -> address of its provider; those that were given up; those that are free."""
    tracked, removed, free = {}, set(), {}
    for device in devices:
        address = _normal(device.address)
        if device.status in _GONE:
            removed.add(address)
        else:
            child = device.dev_type in _CHILDREN
            tracked[address] = _normal(device.parent_addr) if child else address
            if device.status == fields.PciDeviceStatus.AVAILABLE:
                free[address] = tracked[address]
    return tracked, removed, free


def _used(allocations: Mapping[str, Any]) -> collections.Counter[str]:
    """Provider -> how much of it anybody has."""
    used: collections.Counter[str] = collections.Counter()
    for consumer in allocations.values():
        for uuid, part in consumer["allocations"].items():
            used[uuid] += sum(part["resources"].values())
    return used


def _found(was: Known | None, new: Known | None, used: int, known: Provider | None) -> Found:
    """A provider as Placement has it, but for what Nova has just reserved itself.

    :param known: what is remembered of it, for where Placement did not say.
    """
    here = new or was
    assert here is not None
    reserved = 0 if was is None else int(was.fields.get("reserved", 0))
    if was is not None and not was.resource_class and known is not None:
        reserved = known.reserved
    if new is not None:
        reserved = int(new.fields.get("reserved", reserved))
    return Found(
        uuid=here.uuid,
        resource_class=here.resource_class,
        total=was.total if was is not None and was.resource_class else here.total,
        reserved=reserved,
        used=used,
        once=here.once,
    )


def _unwritten(known: Provider | None, was: Known | None) -> Provider | None:
    """What is known of a provider of which more is reserved than could be written down."""
    if was is None or was.unwritten is None or not was.resource_class:
        return known
    if known is None or known.uuid != was.uuid:
        known = Provider(was.uuid, was.resource_class, was.total)
    reserved = int(was.fields.get("reserved", 0))
    return attrs.evolve(known, operators=was.unwritten, earlier=reserved)


def _back(known: Provider | None) -> Provider | None:
    """The same of a device that is here."""
    return known if known is None or known.gone is None else attrs.evolve(known, gone=None)


def _write(
    tree: ProviderTree,
    was: Known | None,
    new: Known | None,
    record: Provider,
    reserved: int,
    unwritten: int | None = None,
) -> None:
    """Put a provider into *tree* as it shall be; see :attr:`Known.unwritten`."""
    here = new or was
    assert here is not None
    if new is None:
        _put_back(tree, here.data)
    kept = was.fields if was is not None and was.resource_class == here.resource_class else {}
    inventory = {
        **kept,
        **here.fields,
        "total": record.total,
        "max_unit": record.total,
        "reserved": reserved,
    }
    tree.update_inventory(here.uuid, {here.resource_class: inventory})
    kept_traits = {each for each in here.data.traits if not each.startswith(UNWRITTEN)}
    more = set() if unwritten is None else {f"{UNWRITTEN}{unwritten}"}
    tree.update_traits(here.uuid, kept_traits | more)


def _put_back(tree: ProviderTree, data: Any) -> None:
    """Give *tree* a provider again that Nova has taken out of it."""
    tree.new_child(data.name, data.parent_uuid, uuid=data.uuid, generation=data.generation)
    tree.update_inventory(data.uuid, data.inventory)
    tree.update_traits(data.uuid, data.traits)
    tree.update_aggregates(data.uuid, data.aggregates)


def _words(
    records: Mapping[str, Provider], found: Mapping[str, Found]
) -> Iterable[tuple[str, Said]]:
    """What operators are told of what this node does not withhold by itself."""
    for address, record in records.items():
        theirs = min(record.operators, record.total)
        if record.gone is not None:
            yield (
                address,
                Said("the device has vanished; its resource provider is kept and reserved"),
            )
        elif theirs >= record.total and not found[address].once:
            yield address, Said(reserve.BY_OPERATOR, whole=True)
        elif theirs and not found[address].once:
            text = f"{theirs} of its {record.total} functions are {reserve.BY_OPERATOR}"
            yield address, Said(text)
