# SPDX-License-Identifier: Apache-2.0
"""Judges from a fresh reading whether devices may be given to guests.

Pure: a node as data in, findings out. The rules for IOMMU groups come from
the kernel (``Documentation/driver-api/vfio.rst``): a group is opened as a
whole, so all its members except bridges must be free of host drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.wire.ledger import DeviceState, Ledger

#: Checks that an operator may switch off. The other checks protect the host or a tenant.
OPTIONAL: Final = (HealthSign.LINK, HealthSign.RESET)

#: Signs that a device does not meet the promises of this project's flavors. An entry
#: without tags makes no such promise: Nova and libvirt give its devices as in stock Nova.
PROMISED: Final = frozenset({HealthSign.UNIT, HealthSign.DRIVER, HealthSign.LINK, HealthSign.RESET})

#: Signs that make even the restart of a server fail or harm the host.
DANGER: Final = frozenset(
    {HealthSign.ABSENT, HealthSign.SILENT, HealthSign.IOMMU, HealthSign.DRIVER, HealthSign.UNBOUND}
)


_NO_RESET: Final = "no way to reset it between two guests"


@attrs.frozen
class OfferedFunction:
    """One PCI function that an entry of the node's ``device_spec`` matches."""

    address: str  # normalised
    #: Whether libvirt itself binds it to a VFIO driver (``managed``, Nova's default is yes).
    managed: bool = True
    #: The tag ``hpc_group``: the IOMMU unit that it belongs to.
    unit: str | None = None
    #: Whether its entry has this project's tags. For other entries only host-side faults count.
    tagged: bool = True


#: All signs that this module checks.
ALL: Final = frozenset(
    {
        HealthSign.ABSENT,
        HealthSign.QUARANTINE,
        HealthSign.IOMMU,
        HealthSign.UNIT,
        HealthSign.DRIVER,
        HealthSign.LINK,
        HealthSign.RESET,
        HealthSign.UNFIT,
        HealthSign.SUSPECT,
    }
)

#: Signs in the node's present state, independent of the ledger.
FRESH: Final = ALL - {HealthSign.QUARANTINE, HealthSign.SUSPECT}


def judge_offered_functions(
    node: Node,
    offers: Iterable[OfferedFunction],
    ledger: Ledger | None = None,
    signs: frozenset[HealthSign] = ALL,
    own_resets: Mapping[str, str] | None = None,
) -> dict[str, Symptom]:
    """Judge every offered device.

    :param node: a fresh reading of the node.
    :param offers: everything that the node's ``device_spec`` matches.
    :param ledger: where the devices that are in quarantine are.
    :param signs: what to look for, of :data:`ALL`.
    :param own_resets: address -> why a reset of the device's cleaner cannot be made, or "" if it
        can; without the devices that the kernel resets.
    :returns: address -> the first finding; a device that may be given has none.
    """
    by_address = {offer.address: offer for offer in offers}
    checks = _HealthChecks(node, by_address, ledger or Ledger(), own_resets or {})
    findings = {}
    for address in sorted(checks.offers):
        finding = next(checks.findings(checks.offers[address], signs), None)
        if finding is not None:
            findings[address] = finding
    if HealthSign.UNIT in signs:
        checks.spread(findings)
    return findings


def explain_missing_reset(function: PciFunction, own_resets: Mapping[str, str]) -> str | None:
    """Explain why a device cannot be reset between two servers; None if it can.

    :param own_resets: as for :func:`judge_offered_functions`.
    """
    own = own_resets.get(function.address)
    if own is None:
        return _NO_RESET if function.reset_methods == () else None
    # The cleaner uses its own reset, also if the kernel has one.
    return f"{_NO_RESET}: {own}" if own else None


@attrs.frozen
class _HealthChecks:
    node: Node
    offers: Mapping[str, OfferedFunction] = attrs.field(hash=False)
    ledger: Ledger
    own_resets: Mapping[str, str] = attrs.field(hash=False)

    def findings(self, offer: OfferedFunction, signs: frozenset[HealthSign]) -> Iterator[Symptom]:
        function = self.node.function(offer.address)
        if function is None:
            yield Symptom(HealthSign.ABSENT, "the device is not there")
            return
        checks: tuple[
            tuple[HealthSign, Callable[[PciFunction, OfferedFunction], str | None]], ...
        ] = (
            (HealthSign.ABSENT, self._present),
            (HealthSign.QUARANTINE, self._quarantine),
            (HealthSign.IOMMU, self._iommu),
            (HealthSign.UNIT, self._unit),
            (HealthSign.DRIVER, self._driver),
            (HealthSign.LINK, self._link),
            (HealthSign.RESET, self._reset),
            (HealthSign.UNFIT, self._vgpu_type),
            (HealthSign.SUSPECT, self._suspect),
        )
        looked = signs if offer.tagged else signs - PROMISED
        for sign, check in checks:
            reason = check(function, offer) if sign in looked else None
            if reason is not None:
                yield Symptom(_refine_sign(sign, function), reason)

    def _present(self, function: PciFunction, offer: OfferedFunction) -> str | None:
        if function.is_bridge:
            return "a bridge cannot be given to a guest"
        return function.unknown

    def _quarantine(self, function: PciFunction, offer: OfferedFunction) -> str | None:
        reason = self.ledger.why(function.address, function.physical_function)
        return None if reason is None else f"in quarantine: {reason}"

    def _suspect(self, function: PciFunction, offer: OfferedFunction) -> str | None:
        device = self.ledger.device(function.address)
        return f"suspect: {device.reason}" if device.state is DeviceState.SUSPECT else None

    def _iommu(self, function: PciFunction, offer: OfferedFunction) -> str | None:
        if function.iommu_group is None:
            return "in no IOMMU group: the IOMMU is off, or does not reach the device"
        for member in self.node.group_members(function):
            if member == function.address:
                continue
            member_function = self.node.function(member)
            if member_function is None:
                return self._not_viable(function, f"{member} is in it")
            # vfio ignores bridges with a driver. An offered function is judged on
            # its own: it goes to the same guest, or its unit is not given.
            if (
                member_function.is_bridge
                or member_function.driver is None
                or member_function.on_vfio
            ):
                continue
            if member in self.offers and self.offers[member].managed:
                continue
            return self._not_viable(function, f"{member} ({member_function.driver}) is in it")
        return None

    @staticmethod
    def _not_viable(function: PciFunction, reason: str) -> str:
        return f"IOMMU group {function.iommu_group} is not viable: {reason}"

    def mates(self, function: PciFunction) -> list[str]:
        """Return the offered functions of a function's IOMMU group, including itself."""
        return [address for address in self.node.group_members(function) if address in self.offers]

    def _unit(self, function: PciFunction, offer: OfferedFunction) -> str | None:
        mates = self.mates(function)
        if len(mates) < 2:
            return None
        what = f"IOMMU group {function.iommu_group} has {len(mates)} assignable functions"
        physical = {function.physical_function, *(self._physical(mate) for mate in mates)}
        if physical & set(mates):
            return f"{what}, a physical function and its own virtual functions among them"
        units = {self.offers[mate].unit for mate in mates}
        if len(units) > 1 or None in units:
            return f"{what}, which device_spec does not tag as one unit (hpc_group={min(mates)})"
        return None

    def _physical(self, address: str) -> str | None:
        function = self.node.function(address)
        return None if function is None else function.physical_function

    def _driver(self, function: PciFunction, offer: OfferedFunction) -> str | None:
        if offer.managed or function.on_vfio:
            return None
        bound = "no driver" if function.driver is None else f"driver {function.driver}"
        wanted = function.guest_driver
        return f"bound to {bound} and not to {wanted}, and device_spec says managed=no"

    def _link(self, function: PciFunction, offer: OfferedFunction) -> str | None:
        trial = self.ledger.device(function.address).trial
        if trial is not None and trial.spared:
            return None  # too many others are withheld for this sign
        # A virtual function has no link of its own; take its physical function's.
        place = function
        if function.physical_function is not None:
            place = self.node.function(function.physical_function) or function
        link = place.link
        if link is None or not link.width or not link.max_width:
            return None
        # A wide card in a narrow slot cannot use its full width. Speed is not
        # judged: an idle device lowers it to save power.
        above = self.node.function(place.path[-1]) if place.path else None
        slot = above.link.max_width if above is not None and above.link is not None else None
        if slot is None:
            return None
        can = min(slot, link.max_width)
        return f"link is x{link.width}, can be x{can}" if link.width < can else None

    def _reset(self, function: PciFunction, offer: OfferedFunction) -> str | None:
        return explain_missing_reset(function, self.own_resets)

    def _vgpu_type(self, function: PciFunction, offer: OfferedFunction) -> str | None:
        if function.vgpu_type == 0:
            return "no vGPU type is set (nvidia/current_vgpu_type is 0)"
        return None

    def spread(self, findings: dict[str, Symptom]) -> None:
        """Withhold a whole unit if one member must not be given."""
        for address, finding in list(findings.items()):
            function = self.node.function(address)
            if function is None or finding.sign is HealthSign.UNIT:
                continue
            for mate in self.mates(function):
                reason = f"{address} of the same IOMMU group must not be given: {finding.reason}"
                findings.setdefault(mate, Symptom(finding.sign, reason))


def _refine_sign(sign: HealthSign, function: PciFunction) -> HealthSign:
    """Return the exact health sign of a check for two signs, by the function's present state."""
    if sign is HealthSign.ABSENT and function.silent:
        return HealthSign.SILENT
    if sign is HealthSign.DRIVER and function.driver is None:
        return HealthSign.UNBOUND
    return sign
