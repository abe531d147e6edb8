# SPDX-License-Identifier: Apache-2.0
"""The functions that could reach each other past the IOMMU, from the bits of ACS.

The kernel forms its IOMMU groups once, when it finds a device. A later change of ACS changes
the reach of devices, but not the groups. So the effect of a change has to be computed before
it is made.

There are two rules. The kernel's rule (``pci_device_group`` in ``drivers/iommu/iommu.c``): a
group reaches up to the bridge from which on everything above isolates, and functions of one
slot without ACS of their own are together. The second rule is missing in the kernel: if a
port of a switch does not redirect, its traffic reaches all other ports of the switch.

Unknown registers count as not isolating. The kernel's quirks for single models are not
modelled here; see :func:`find_joined_devices`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.topology.confspace import ACS_NEEDED
from nova_hpc.topology.model import BridgeKind, Node, PciFunction, address_key

_PORTS: Final = (BridgeKind.ROOT_PORT, BridgeKind.DOWNSTREAM)

#: Address of a port -> its ACS control register after the change.
Controls = Mapping[str, int]


def compute_iommu_groups(
    node: Node, controls: Controls | None = None
) -> tuple[frozenset[str], ...]:
    """Compute the IOMMU groups that the kernel would form, sorted by their lowest address.

    :param controls: ACS control registers that replace those of the reading.
    """
    return _IommuRules(node, controls or {}).groups()


def compute_reach_groups(
    node: Node, controls: Controls | None = None
) -> tuple[frozenset[str], ...]:
    """Compute the kernel's groups, joined if devices could reach each other below a switch.

    For example, a switch has a GPU and an adapter at two ports, and only the GPU's port redirects.
    The kernel may give them two groups, because each has a path that isolates. But the requests of
    the adapter reach the GPU below the switch. So the two are one group here.
    """
    rules = _IommuRules(node, controls or {})
    group_sets = [set(group) for group in rules.groups()]
    for switch in (
        function for function in node.functions if function.bridge is BridgeKind.UPSTREAM
    ):
        below = [function for function in node.functions if switch.address in function.path]
        ports = [
            function
            for function in below
            if function.bridge is BridgeKind.DOWNSTREAM and function.path[-1] == switch.address
        ]
        if all(rules.isolates(port) for port in ports):
            continue
        members = {function.address for function in below if function not in ports}
        touched = [group for group in group_sets if group & members]
        group_sets = [group for group in group_sets if not group & members]
        if touched:
            group_sets.append(set().union(*touched))
    return _order_address_groups(group_sets)


def find_joined_devices(node: Node, controls: Controls) -> tuple[str, ...]:
    """Find devices that the kernel keeps apart now, and that a change would bring together.

    The kernel's groups win over the computed ones: a quirk may keep devices apart although their
    registers do not.

    :param controls: the registers that would change.
    :returns: their addresses, without bridges; () if no separation would be lost.
    """
    changed = set(controls)
    lost: set[str] = set()
    for together in compute_reach_groups(node, controls):
        members = [function for function in map(node.function, together) if function is not None]
        if not any(changed & {function.address, *function.path} for function in members):
            continue
        devices = [function for function in members if not function.is_bridge]
        if len({function.iommu_group for function in devices}) > 1:
            lost.update(function.address for function in devices)
    return tuple(sorted(lost, key=address_key))


@attrs.define
class _IommuRules:
    node: Node
    controls: Controls
    _slots: dict[tuple[int, ...], list[PciFunction]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = {}
        for function in (*self.node.functions, *self.node.inactive):
            if function.physical_function is None:  # the kernel groups a VF by itself
                self._slots.setdefault(_slot_of(function), []).append(function)

    def groups(self) -> tuple[frozenset[str], ...]:
        groups: dict[str, set[str]] = {}
        for function in self.node.functions:
            groups.setdefault(self._head(function), set()).add(function.address)
        return _order_address_groups(groups.values())

    def _head(self, function: PciFunction) -> str:
        """Return the address of the function that determines the IOMMU group of *function*."""
        head = function
        for address in reversed(function.path):
            above = self.node.function(address)
            if above is not None and not self._path_isolates(above):
                head = above
        if head.physical_function is not None or self.isolates(head):
            return head.address
        # Functions of one slot that may reach each other inside the device.
        mates = [mate for mate in self._slots.get(_slot_of(head), ()) if not self.isolates(mate)]
        return min((member.address for member in (head, *mates)), key=address_key)

    def _path_isolates(self, bridge: PciFunction) -> bool:
        above = [self.node.function(address) for address in bridge.path]
        return all(port is not None and self.isolates(port) for port in (*above, bridge))

    def isolates(self, function: PciFunction) -> bool:
        """Whether ACS isolates *function*, or the function needs no ACS (``pci_acs_enabled``)."""
        if function.bridge is BridgeKind.PCI:
            return False
        if function.bridge not in _PORTS and len(self._slots.get(_slot_of(function), ())) < 2:
            return True
        control = self.controls.get(function.address, function.acs_control)
        if function.acs_capability is None or control is None:
            return False
        needed = ACS_NEEDED & function.acs_capability
        return control & needed == needed


def _slot_of(function: PciFunction) -> tuple[int, ...]:
    return address_key(function.address)[:3]


def _order_address_groups(groups: Iterable[Iterable[str]]) -> tuple[frozenset[str], ...]:
    return tuple(
        sorted(
            (frozenset(group) for group in groups),
            key=lambda group: min(address_key(address) for address in group),
        )
    )
