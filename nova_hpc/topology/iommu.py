# SPDX-License-Identifier: Apache-2.0
"""Which functions could reach each other past the IOMMU, from the bits of ACS.

The kernel forms its IOMMU groups when it finds a device, and never again: whoever
changes ACS afterwards changes what devices can do, and not what the groups say. So what
a change would do has to be computed before it is made.

Two rules. That of the kernel (``pci_device_group`` in ``drivers/iommu/iommu.c``): a group
reaches up to the bridge from which on everything above isolates, and functions of one
slot without ACS of their own are together. And one that the kernel leaves out: below a
switch with a port that does not redirect, what that port sends reaches all other ports.

What is not known counts as not isolating. What the kernel knows of single models (its
quirks) is not known here; see :func:`joined`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.topology.confspace import ACS_NEEDED
from nova_hpc.topology.model import BridgeKind, Function, Node, address_key

_PORTS: Final = (BridgeKind.ROOT_PORT, BridgeKind.DOWNSTREAM)

#: Address of a port -> its ACS control register, as it would be.
Controls = Mapping[str, int]


def groups(node: Node, controls: Controls | None = None) -> tuple[frozenset[str], ...]:
    """The groups that the kernel would form, by their lowest address.

    :param controls: registers that differ from those that were read.
    """
    return _Rules(node, controls or {}).groups()


def reach(node: Node, controls: Controls | None = None) -> tuple[frozenset[str], ...]:
    """The same, and together what could reach each other below a switch all the same."""
    rules = _Rules(node, controls or {})
    found = [set(each) for each in rules.groups()]
    for switch in (each for each in node.functions if each.bridge is BridgeKind.UPSTREAM):
        below = [each for each in node.functions if switch.address in each.path]
        ports = [
            each
            for each in below
            if each.bridge is BridgeKind.DOWNSTREAM and each.path[-1] == switch.address
        ]
        if all(rules.isolates(port) for port in ports):
            continue
        members = {each.address for each in below if each not in ports}
        touched = [each for each in found if each & members]
        found = [each for each in found if not each & members]
        if touched:
            found.append(set().union(*touched))
    return _ordered(found)


def joined(node: Node, controls: Controls) -> tuple[str, ...]:
    """Devices that the kernel keeps apart now, and that a change would bring together.

    What the kernel's groups say now is believed, whatever is computed: a quirk may keep
    apart what the registers do not.

    :param controls: the registers that would change.
    :returns: their addresses, without bridges; () where nothing would be lost.
    """
    changed = set(controls)
    lost: set[str] = set()
    for together in reach(node, controls):
        members = [each for each in map(node.function, together) if each is not None]
        if not any(changed & {each.address, *each.path} for each in members):
            continue
        devices = [each for each in members if not each.is_bridge]
        if len({each.iommu_group for each in devices}) > 1:
            lost.update(each.address for each in devices)
    return tuple(sorted(lost, key=address_key))


@attrs.define
class _Rules:
    node: Node
    controls: Controls
    _slots: dict[tuple[int, ...], list[Function]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = {}
        for each in (*self.node.functions, *self.node.inactive):
            if each.physical_function is None:  # a virtual one is alone, as the kernel has it
                self._slots.setdefault(_slot(each), []).append(each)

    def groups(self) -> tuple[frozenset[str], ...]:
        found: dict[str, set[str]] = {}
        for each in self.node.functions:
            found.setdefault(self._head(each), set()).add(each.address)
        return _ordered(found.values())

    def _head(self, one: Function) -> str:
        """The function whose group it is in."""
        head = one
        for address in reversed(one.path):
            above = self.node.function(address)
            if above is not None and not self._path_isolates(above):
                head = above
        if head.physical_function is not None or self.isolates(head):
            return head.address
        # Functions of one slot that may reach each other inside the device.
        mates = [each for each in self._slots.get(_slot(head), ()) if not self.isolates(each)]
        return min((each.address for each in (head, *mates)), key=address_key)

    def _path_isolates(self, bridge: Function) -> bool:
        above = [self.node.function(each) for each in bridge.path]
        return all(each is not None and self.isolates(each) for each in (*above, bridge))

    def isolates(self, one: Function) -> bool:
        """ACS on one function, or no need of it (``pci_acs_enabled``)."""
        if one.bridge is BridgeKind.PCI:
            return False
        if one.bridge not in _PORTS and len(self._slots.get(_slot(one), ())) < 2:
            return True
        control = self.controls.get(one.address, one.acs_control)
        if one.acs_capability is None or control is None:
            return False
        needed = ACS_NEEDED & one.acs_capability
        return control & needed == needed


def _slot(one: Function) -> tuple[int, ...]:
    return address_key(one.address)[:3]


def _ordered(found: Iterable[Iterable[str]]) -> tuple[frozenset[str], ...]:
    return tuple(
        sorted(
            (frozenset(each) for each in found),
            key=lambda group: min(address_key(each) for each in group),
        )
    )
