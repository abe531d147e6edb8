# SPDX-License-Identifier: Apache-2.0
"""The promise and the machine, compared."""

from __future__ import annotations

from typing import Final, NamedTuple

from .document import PEER_REASONS, Device, Document
from .machine import Function, Machine

KINDS: Final = ("device", "driver", "link", "numa", "tree", "peer", "cells", "hugepages")

#: A guest's kernel and firmware take some of the memory for themselves.
_KEPT_SHARE: Final = 0.10
_KEPT_KIB: Final = 256 * 1024


class Finding(NamedTuple):
    """One difference, or something worth knowing that is none."""

    kind: str
    #: Number of the device; None: it is about the whole machine.
    device: int | None
    text: str
    #: It is not as promised; otherwise it is only a remark.
    wrong: bool


class Wishes(NamedTuple):
    """What the caller asks for beyond the promise."""

    #: Role, ``vendor:product`` or ``*`` -> driver that must be bound.
    drivers: dict[str, str] = {}
    #: Size in KiB -> pages that the pool must have.
    hugepages: dict[int, int] = {}
    skip: tuple[str, ...] = ()


class Result(NamedTuple):
    """Where the promised devices are, and what is not as promised."""

    places: dict[int, Function]
    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        """Everything is as promised."""
        return not any(finding.wrong for finding in self.findings)


def compare(document: Document, machine: Machine, wishes: Wishes | None = None) -> Result:
    """Look for every promised thing; findings in a stable order."""
    wishes = wishes or Wishes()
    places, findings = locate(document, machine)
    for device in document.devices:
        function = places.get(device.number)
        if function is not None:
            findings.extend(_driver(device, function, wishes))
            findings.extend(_link(device, function))
            if document.topology != "flat":
                findings.extend(_numa(device, function))
    if document.topology == "mirror":
        findings.extend(_tree(document, places))
    findings.extend(_peers(document))
    findings.extend(_cells(document, machine))
    findings.extend(_hugepages(document, machine, wishes))
    kept = (each for each in findings if each.kind not in wishes.skip)
    return Result(places, tuple(sorted(kept, key=lambda each: KINDS.index(each.kind))))


def locate(document: Document, machine: Machine) -> tuple[dict[int, Function], list[Finding]]:
    """Find the promised devices: by their paths, and the others by ids and order."""
    by_path = {each.path: each for each in machine.functions if each.path is not None}
    places: dict[int, Function] = {}
    findings = []
    groups: dict[tuple[str, str, str], list[Device]] = {}
    for device in document.devices:
        if device.path is None:
            key = (*device.ids, (device.class_code or "")[:4])
            groups.setdefault(key, []).append(device)
            continue
        function = by_path.get(device.path)
        if function is None:
            findings.append(_wrong("device", device, f"not there, at {_at(device)}"))
        elif not _same(device, function):
            findings.append(
                _wrong(
                    "device",
                    device,
                    f"at {_at(device)} is {function.vendor_id}:{function.product_id} instead",
                )
            )
        else:
            places[device.number] = function
    taken = {function.address for function in places.values()}
    for devices in groups.values():
        found = [
            each
            for each in sorted(machine.functions, key=_order)
            if each.address not in taken and _same(devices[0], each)
        ]
        if len(found) == len(devices):
            # The hypervisor gives addresses in the order of the list.
            places.update((device.number, each) for device, each in zip(devices, found))  # noqa: B905
        elif len(found) < len(devices):
            text = f"{len(devices)} promised, {len(found)} there"
            findings.extend(_wrong("device", device, text) for device in devices)
        else:
            text = f"{len(devices)} promised, {len(found)} there: which is which is not known"
            findings.extend(Finding("device", each.number, text, False) for each in devices)
    return places, findings


def _same(device: Device, function: Function) -> bool:
    kind, real = device.class_code, function.class_code
    return (function.vendor_id, function.product_id) == device.ids and (
        kind is None or real is None or kind[:4] == real[:4]
    )


def _order(function: Function) -> tuple[tuple[str, ...], str]:
    return function.path or (), function.address


def _at(device: Device) -> str:
    return "/".join(device.path or ())


def _wrong(kind: str, device: Device, text: str) -> Finding:
    return Finding(kind, device.number, text, True)


def _driver(device: Device, function: Function, wishes: Wishes) -> list[Finding]:
    keys = (device.role, ":".join(device.ids), "*")
    wanted = next((wishes.drivers[key] for key in keys if key in wishes.drivers), None)
    if function.driver is None:
        return [_wrong("driver", device, "no driver is bound to it")]
    if wanted is not None and function.driver != wanted:
        return [_wrong("driver", device, f"bound to {function.driver} instead of {wanted}")]
    return []


def _link(device: Device, function: Function) -> list[Finding]:
    found = []
    if device.width is not None:
        if function.width is None:
            found.append(Finding("link", device.number, "width of the link not known", False))
        elif function.width < device.width:
            text = f"the link has {function.width} lanes of {device.width}"
            found.append(_wrong("link", device, text))
    if device.speed is not None:
        if function.max_speed is not None and function.max_speed < device.speed:
            text = f"the link makes {function.max_speed:g} GT/s at most, not {device.speed:g}"
            found.append(_wrong("link", device, text))
        elif function.speed is not None and function.speed < device.speed:
            # An idle device lowers the speed to save power.
            text = f"the link makes {function.speed:g} of {device.speed:g} GT/s now"
            found.append(Finding("link", device.number, text, False))
    return found


def _numa(device: Device, function: Function) -> list[Finding]:
    if device.cell is None or function.numa_node == device.cell:
        return []
    real = "not known" if function.numa_node is None else str(function.numa_node)
    return [_wrong("numa", device, f"NUMA node {real} instead of {device.cell}")]


def _tree(document: Document, places: dict[int, Function]) -> list[Finding]:
    found = []
    devices = [device for device in document.devices if device.number in places]
    for index, one in enumerate(devices):
        for other in devices[index + 1 :]:
            promised = distance(one, other)
            real = real_distance(places[one.number], places[other.number])
            if promised != real:
                text = f"{real} to {other.name} instead of {promised}"
                found.append(_wrong("tree", one, text))
    return found


def _peers(document: Document) -> list[Finding]:
    """Remarks only: the host is as it is, and nothing else was promised."""
    found = []
    for each in document.peers:
        if each.path == "switch":
            continue
        which = ", ".join(str(other) for other in each.others)
        text = (
            f"peer-to-peer with {which} goes through the host's root complex, not below the switch"
            if each.path == "root"
            else f"whether peer-to-peer with {which} stays below the switch is not known"
        )
        why = "" if each.why is None else f" ({PEER_REASONS[each.why]})"
        wished = ", and the operator wishes it otherwise" if each.as_wished is False else ""
        found.append(Finding("peer", each.device, text + why + wished, False))
    return found


def distance(one: Device, other: Device) -> str:
    """The path between two promised devices, in NCCL's words."""
    numa = one.cell is not None and one.cell == other.cell
    root = one.root is not None and one.root == other.root
    return _path_type(root, one.switches, other.switches, numa)


def real_distance(one: Function, other: Function) -> str:
    """The path between two functions of this machine, in NCCL's words."""
    known = one.numa_node is not None and one.numa_node >= 0
    root = one.root is not None and one.root == other.root
    return _path_type(
        root, one.switches, other.switches, known and one.numa_node == other.numa_node
    )


def _path_type(root: bool, one: tuple[object, ...], other: tuple[object, ...], numa: bool) -> str:
    if root:
        if one and other and one == other:
            return "PIX"
        return "PXB" if one and other and one[0] == other[0] else "PHB"
    return "NODE" if numa else "SYS"


def _cells(document: Document, machine: Machine) -> list[Finding]:
    if not document.cells:
        return []
    real = {node.number: node for node in machine.nodes}
    with_cpus = [node.number for node in machine.nodes if node.cpus]
    found = []
    if len(with_cpus) != len(document.cells):
        text = f"{len(with_cpus)} NUMA nodes with CPUs instead of {len(document.cells)}"
        found.append(Finding("cells", None, text, True))
    for number, cell in enumerate(document.cells):
        node = real.get(number)
        if node is None:
            found.append(Finding("cells", None, f"NUMA node {number} is not there", True))
            continue
        if node.cpus != cell.cpus:
            text = f"NUMA node {number} has {node.cpus} CPUs instead of {cell.cpus}"
            found.append(Finding("cells", None, text, True))
        least = cell.memory_kib * (1 - _KEPT_SHARE) - _KEPT_KIB
        if node.memory_kib is not None and node.memory_kib < least:
            text = (
                f"NUMA node {number} has {node.memory_kib // 1024} MiB of {cell.memory_kib // 1024}"
            )
            found.append(Finding("cells", None, text, True))
    return found


def _hugepages(document: Document, machine: Machine, wishes: Wishes) -> list[Finding]:
    found = []
    for size in sorted({cell.page_kib for cell in document.cells if cell.page_kib}):
        if size > 4 and size not in machine.hugepages:
            text = (
                f"the memory lies in the host's pages of {size} KiB, and this kernel offers "
                "no pages of that size"
            )
            found.append(Finding("hugepages", None, text, True))
    for size, count in sorted(wishes.hugepages.items()):
        real = machine.hugepages.get(size, 0)
        if real < count:
            text = f"{real} pages of {size} KiB in the pool, {count} asked for"
            found.append(Finding("hugepages", None, text, True))
    return found
