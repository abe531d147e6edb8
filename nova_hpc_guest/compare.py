# SPDX-License-Identifier: Apache-2.0
"""The promise and the machine, compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from .document import PEER_REASONS, SHARED_REASONS, GuestDevice, GuestDocument, SharedMemory
from .machine import GuestFunction, GuestMachine
from .pkeys import IbPort, describe_key, find_port_keys
from .segment import SegmentView, segment_bytes

KINDS: Final = (
    *("device", "driver", "link", "numa", "tree", "peer", "pkey", "cells", "hugepages"),
    *("disk", "shared-memory"),
)

#: Kind of a finding -> the word of ``openstack hpc cluster show`` for the same fault.
#: ``nova_hpc_common.wire.server_faults`` has the words, and this wheel does not need that one.
FAULTS: Final = {"device": "gone", "link": "link", "pkey": "partition"}

#: A guest's kernel and firmware take some of the memory for themselves.
_KEPT_SHARE: Final = 0.10
_KEPT_KIB: Final = 256 * 1024


class GuestFinding(NamedTuple):
    """One difference between promise and machine (*wrong* is True), or a remark."""

    kind: str
    #: Number of the device; None if it is about the whole machine.
    device: int | None
    text: str
    #: It is not as promised; otherwise it is only a remark.
    wrong: bool

    @property
    def fault(self) -> str | None:
        """The word for the fault that the owner reads of the server; None if there is none."""
        return FAULTS.get(self.kind) if self.wrong else None


class GuestWishes(NamedTuple):
    """A caller's needs beyond the promise: drivers, hugepages, skipped checks, empty disks."""

    #: Role, ``vendor:product`` or ``*`` -> driver that must be bound.
    drivers: dict[str, str] = {}
    #: Size in KiB -> pages that the pool must have.
    hugepages: dict[int, int] = {}
    skip: tuple[str, ...] = ()
    #: No disk was used yet.
    empty_disks: bool = False


class Result(NamedTuple):
    """The places of the promised devices, and the findings."""

    places: dict[int, GuestFunction]
    findings: tuple[GuestFinding, ...]

    @property
    def good(self) -> bool:
        """Whether everything is as promised; remarks do not count."""
        return not any(finding.wrong for finding in self.findings)


def compare_with_machine(
    document: GuestDocument,
    machine: GuestMachine,
    wishes: GuestWishes | None = None,
    ports: Iterable[IbPort] | None = None,
    more: Iterable[GuestFinding] = (),
) -> Result:
    """Look for every promised thing; findings in a stable order.

    :param ports: the InfiniBand ports of the machine; None if they were not looked for.
    :param more: findings that were made elsewhere.
    """
    wishes = wishes or GuestWishes()
    places, findings = locate_devices(document, machine)
    for device in document.devices:
        function = places.get(device.number)
        if function is not None:
            findings.extend(_check_driver(device, function, wishes))
            findings.extend(_check_link(device, function))
            if document.topology != "flat":
                findings.extend(_check_numa_node(device, function))
    if document.topology == "mirror":
        findings.extend(_check_tree(document, places))
    findings.extend(_remark_on_peers(document))
    if ports is not None:
        findings.extend(_check_port_keys(document, places, ports))
    findings.extend(_check_numa_cells(document, machine))
    findings.extend(_check_hugepages(document, machine, wishes))
    findings.extend(_check_shared_memory(document, machine.segment))
    findings.extend(more)
    kept = (finding for finding in findings if finding.kind not in wishes.skip)
    return Result(places, tuple(sorted(kept, key=lambda finding: KINDS.index(finding.kind))))


def locate_devices(
    document: GuestDocument, machine: GuestMachine
) -> tuple[dict[int, GuestFunction], list[GuestFinding]]:
    """Find the promised devices: by their paths, and the others by ids and order.

    A device with a path has to be at that path. The others are grouped by ids and class. A group is
    matched in the order of addresses if the machine has exactly as many functions of its kind. With
    fewer functions each device of the group counts as missing; with more, the match is unknown.

    :returns: number of a device -> its function, and the findings.
    """
    by_path = {
        function.path: function for function in machine.functions if function.path is not None
    }
    places: dict[int, GuestFunction] = {}
    findings = []
    groups: dict[tuple[str, str, str], list[GuestDevice]] = {}
    for device in document.devices:
        if device.path is None:
            key = (*device.ids, (device.class_code or "")[:4])
            groups.setdefault(key, []).append(device)
            continue
        function = by_path.get(device.path)
        if function is None:
            findings.append(_broken_promise("device", device, f"not there, at {_path_of(device)}"))
        elif not _is_same_product(device, function):
            findings.append(
                _broken_promise(
                    "device",
                    device,
                    f"at {_path_of(device)} is {function.vendor_id}:{function.product_id} instead",
                )
            )
        else:
            places[device.number] = function
    taken = {function.address for function in places.values()}
    for devices in groups.values():
        candidates = [
            function
            for function in sorted(machine.functions, key=_function_order)
            if function.address not in taken and _is_same_product(devices[0], function)
        ]
        if len(candidates) == len(devices):
            # The hypervisor gives addresses in the order of the list.
            places.update(
                (device.number, function)
                for device, function in zip(devices, candidates)  # noqa: B905
            )
        elif len(candidates) < len(devices):
            text = f"{len(devices)} promised, {len(candidates)} there"
            findings.extend(_broken_promise("device", device, text) for device in devices)
        else:
            text = f"{len(devices)} promised, {len(candidates)} there: which is which is not known"
            findings.extend(
                GuestFinding("device", device.number, text, False) for device in devices
            )
    return places, findings


def _is_same_product(device: GuestDevice, function: GuestFunction) -> bool:
    kind, real = device.class_code, function.class_code
    return (function.vendor_id, function.product_id) == device.ids and (
        kind is None or real is None or kind[:4] == real[:4]
    )


def _function_order(function: GuestFunction) -> tuple[tuple[str, ...], str]:
    return function.path or (), function.address


def _path_of(device: GuestDevice) -> str:
    return "/".join(device.path or ())


def _broken_promise(kind: str, device: GuestDevice, text: str) -> GuestFinding:
    return GuestFinding(kind, device.number, text, True)


def _check_driver(
    device: GuestDevice, function: GuestFunction, wishes: GuestWishes
) -> list[GuestFinding]:
    keys = (device.role, ":".join(device.ids), "*")
    wanted = next((wishes.drivers[key] for key in keys if key in wishes.drivers), None)
    if function.driver is None:
        return [_broken_promise("driver", device, "no driver is bound to it")]
    if wanted is not None and function.driver != wanted:
        return [
            _broken_promise("driver", device, f"bound to {function.driver} instead of {wanted}")
        ]
    return []


def _check_link(device: GuestDevice, function: GuestFunction) -> list[GuestFinding]:
    findings = []
    if device.width is not None:
        if function.width is None:
            findings.append(
                GuestFinding("link", device.number, "width of the link not known", False)
            )
        elif function.width < device.width:
            text = f"the link has {function.width} lanes of {device.width}"
            findings.append(_broken_promise("link", device, text))
    if device.speed is not None:
        if function.max_speed is not None and function.max_speed < device.speed:
            text = f"the link makes {function.max_speed:g} GT/s at most, not {device.speed:g}"
            findings.append(_broken_promise("link", device, text))
        elif function.speed is not None and function.speed < device.speed:
            # An idle device lowers the speed to save power.
            text = f"the link makes {function.speed:g} of {device.speed:g} GT/s now"
            findings.append(GuestFinding("link", device.number, text, False))
    return findings


def _check_numa_node(device: GuestDevice, function: GuestFunction) -> list[GuestFinding]:
    if device.cell is None or function.numa_node == device.cell:
        return []
    real = "not known" if function.numa_node is None else str(function.numa_node)
    return [_broken_promise("numa", device, f"NUMA node {real} instead of {device.cell}")]


def _check_tree(document: GuestDocument, places: dict[int, GuestFunction]) -> list[GuestFinding]:
    findings = []
    devices = [device for device in document.devices if device.number in places]
    for index, first in enumerate(devices):
        for second in devices[index + 1 :]:
            promised = promised_distance(first, second)
            real = real_distance(places[first.number], places[second.number])
            if promised != real:
                text = f"{real} to {second.name} instead of {promised}"
                findings.append(_broken_promise("tree", first, text))
    return findings


def _remark_on_peers(document: GuestDocument) -> list[GuestFinding]:
    """Return remarks on peer-to-peer paths that leave the switch, or are unknown.

    They are no faults: the host is as it is, and nothing else was promised.
    """
    findings = []
    for peers in document.peers:
        if peers.path == "switch":
            continue
        which = ", ".join(str(number) for number in peers.others)
        text = (
            f"peer-to-peer with {which} goes through the host's root complex, not below the switch"
            if peers.path == "root"
            else f"whether peer-to-peer with {which} stays below the switch is not known"
        )
        reason = "" if peers.why is None else f" ({PEER_REASONS[peers.why]})"
        wished = ", and the operator wishes it otherwise" if peers.as_wished is False else ""
        findings.append(GuestFinding("peer", peers.device, text + reason + wished, False))
    return findings


def promised_distance(first: GuestDevice, second: GuestDevice) -> str:
    """Return the path between two promised devices, in NCCL's words such as ``PIX``."""
    numa = first.cell is not None and first.cell == second.cell
    root = first.root is not None and first.root == second.root
    return _path_type(root, first.switches, second.switches, numa)


def real_distance(first: GuestFunction, second: GuestFunction) -> str:
    """Return the path between two functions of this machine, in NCCL's words such as ``PIX``."""
    has_node = first.numa_node is not None and first.numa_node >= 0
    root = first.root is not None and first.root == second.root
    return _path_type(
        root, first.switches, second.switches, has_node and first.numa_node == second.numa_node
    )


def _path_type(
    root: bool, first: tuple[object, ...], second: tuple[object, ...], numa: bool
) -> str:
    if root:
        if first and second and first == second:
            return "PIX"
        return "PXB" if first and second and first[0] == second[0] else "PHB"
    return "NODE" if numa else "SYS"


def _check_port_keys(
    document: GuestDocument, places: dict[int, GuestFunction], ports: Iterable[IbPort]
) -> list[GuestFinding]:
    """Whether each port's table has the key of its network: right, missing or unknown."""
    findings = []
    keys = find_port_keys(ports, document.devices, places)
    for key in keys:
        if key.device is None:
            continue
        text = f"{key.port.name}: {describe_key(key)}"
        findings.append(GuestFinding("pkey", key.device, text, key.missing))
    seen = {key.device for key in keys}
    for device in document.devices:
        if device.pkey is not None and device.number in places and device.number not in seen:
            text = "P_Key unknown: no InfiniBand port of it is there (is its driver loaded?)"
            findings.append(GuestFinding("pkey", device.number, text, False))
    return findings


def _check_numa_cells(document: GuestDocument, machine: GuestMachine) -> list[GuestFinding]:
    if not document.cells:
        return []
    real = {node.number: node for node in machine.nodes}
    with_cpus = [node.number for node in machine.nodes if node.cpus]
    findings = []
    if len(with_cpus) != len(document.cells):
        text = f"{len(with_cpus)} NUMA nodes with CPUs instead of {len(document.cells)}"
        findings.append(GuestFinding("cells", None, text, True))
    for number, cell in enumerate(document.cells):
        node = real.get(number)
        if node is None:
            findings.append(GuestFinding("cells", None, f"NUMA node {number} is not there", True))
            continue
        if node.cpus != cell.cpus:
            text = f"NUMA node {number} has {node.cpus} CPUs instead of {cell.cpus}"
            findings.append(GuestFinding("cells", None, text, True))
        least = cell.memory_kib * (1 - _KEPT_SHARE) - _KEPT_KIB
        if node.memory_kib is not None and node.memory_kib < least:
            text = (
                f"NUMA node {number} has {node.memory_kib // 1024} MiB of {cell.memory_kib // 1024}"
            )
            findings.append(GuestFinding("cells", None, text, True))
    return findings


def _check_hugepages(
    document: GuestDocument, machine: GuestMachine, wishes: GuestWishes
) -> list[GuestFinding]:
    findings = []
    for size in sorted({cell.page_kib for cell in document.cells if cell.page_kib}):
        if size > 4 and size not in machine.hugepages:
            text = (
                f"the memory lies in the host's pages of {size} KiB, and this kernel offers "
                "no pages of that size"
            )
            findings.append(GuestFinding("hugepages", None, text, True))
    for size, count in sorted(wishes.hugepages.items()):
        real = machine.hugepages.get(size, 0)
        if real < count:
            text = f"{real} pages of {size} KiB in the pool, {count} asked for"
            findings.append(GuestFinding("hugepages", None, text, True))
    return findings


def _check_shared_memory(document: GuestDocument, view: SegmentView | None) -> list[GuestFinding]:
    """Compare the memory that is shared with other servers with the promise: size, part, mapping.

    Return the findings; [] if nothing was promised or all is as promised.
    """
    if document.not_shared is not None:
        reason = SHARED_REASONS.get(document.not_shared, document.not_shared)
        text = f"started without it: {reason}"
        return [GuestFinding(_SHARED, None, text, False)]
    promise = document.shared_memory
    if promise is None or view is None:
        return []
    if view.device is None:
        size = segment_bytes(promise) >> 20
        text = (
            f"no device of {size} MiB: this kernel has made none of the memory (modules nfit, "
            "nd_pmem, dax_pmem, device_dax)"
        )
        return [GuestFinding(_SHARED, None, text, True)]
    if view.head is None:
        # Without read permission the result is unknown; otherwise it is not such memory.
        text = f"{view.device.path}: {view.problem}"
        return [GuestFinding(_SHARED, None, text, not view.denied)]
    return [
        GuestFinding(_SHARED, None, text, wrong) for text, wrong in _judge_segment(promise, view)
    ]


_SHARED: Final = "shared-memory"


def _judge_segment(promise: SharedMemory, view: SegmentView) -> Iterator[tuple[str, bool]]:
    if view.mapping is None:
        yield "how this kernel maps it is not known to this user", False
    elif view.mapping != "write-back":
        yield f"this kernel maps it {view.mapping} instead of write-back", True
    for obstacle in view.obstacles:
        yield obstacle, False
    if view.installed not in (None, promise.part):
        yield f"programs use part {view.installed}, and part {promise.part} is promised", True
