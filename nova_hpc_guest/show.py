# SPDX-License-Identifier: Apache-2.0
"""The promised devices and their places, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .compare import Result, promised_distance
from .document import PEER_REASONS, GuestDevice, GuestDocument

#: A table of distances for more devices than this would be too wide.
_WIDEST = 32


def format_promise_tree(document: GuestDocument, result: Result) -> Iterator[str]:
    """Yield the promised topology, with the devices that were found; then distances."""
    yield f"topology {document.topology}, {_pluralise_word(len(document.devices), 'device')}"
    cells: list[int | None] = list(range(len(document.cells)))
    cells += sorted(
        {device.cell for device in document.devices if device.cell is not None} - set(cells)
    )
    if any(device.cell is None for device in document.devices):
        cells.append(None)
    for number in cells:
        yield _format_cell(document, number)
        near = [device for device in document.devices if device.cell == number]
        last: tuple[int | None, ...] = ()
        for device in sorted(near, key=lambda device: (device.root is None, device.root or 0)):
            above = (device.root, *device.switches)
            for depth, point in enumerate(above):
                if last[: depth + 1] != above[: depth + 1]:
                    word = "switch" if depth else "root"
                    yield f"{'  ' * (depth + 1)}{word} {'?' if point is None else point}"
            last = above
            yield f"{'  ' * (len(above) + 1)}{_format_device(device, result)}"
    if 1 < len(document.devices) <= _WIDEST:
        yield ""
        yield from _format_distance_table(document)
    if document.peers:
        yield ""
        yield from _format_peers(document)
    if document.shared_memory is not None:
        size = format_size(document.shared_memory.part_bytes >> 10)
        yield ""
        yield f"shared memory: {size} of each of {document.shared_memory.parts} servers"


def _format_peers(document: GuestDocument) -> Iterator[str]:
    """Yield lines on the paths of traffic between GPUs and adapters below one switch."""
    wish = {"keep": "", None: ", wished: not known"}.get(
        document.peer_wish, f", wished: {document.peer_wish}"
    )
    yield f"peer-to-peer below one switch{wish}"
    for peers in document.peers:
        path = {"switch": "stays below it", "root": "through the root complex"}
        others = ", ".join(str(number) for number in peers.others)
        reason = "" if peers.why is None else f": {PEER_REASONS[peers.why]}"
        wished = ", not as wished" if peers.as_wished is False else ""
        route = path.get(peers.path or "", "not known")
        yield f"  {peers.device} with {others}: {route}{reason}{wished}"


def _format_cell(document: GuestDocument, number: int | None) -> str:
    if number is None:
        return "near to none of the NUMA nodes"
    if number >= len(document.cells):
        return f"NUMA node {number}"
    cell = document.cells[number]
    pages = f", pages of {format_size(cell.page_kib)}" if cell.page_kib else ""
    return (
        f"NUMA node {number}: {_pluralise_word(cell.cpus, 'CPU')}, "
        f"{format_size(cell.memory_kib)}{pages}"
    )


def _format_device(device: GuestDevice, result: Result) -> str:
    function = result.places.get(device.number)
    if function is None:
        return f"{device.name}: not found"
    names = " ".join(name.partition(" ")[2] for name in function.names)
    parts = [f"{device.name}: {function.address}", function.driver or "no driver", names]
    return " ".join(part for part in parts if part)


def _format_distance_table(document: GuestDocument) -> Iterator[str]:
    width = max(4, len(str(len(document.devices) - 1)))
    numbers = [str(device.number).rjust(width) for device in document.devices]
    yield " ".join([" " * width, *numbers])
    for row_device, number in zip(document.devices, numbers):  # noqa: B905
        row = [
            "-" if row_device is column_device else promised_distance(row_device, column_device)
            for column_device in document.devices
        ]
        yield " ".join([number, *(word.rjust(width) for word in row)])


def _pluralise_word(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def format_size(kib: int) -> str:
    """Format a size in KiB in the unit that people would take, such as ``4 GiB``."""
    value, unit = float(kib), "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def build_report_data(document: GuestDocument, result: Result) -> dict[str, Any]:
    """Return the promised devices, their places and the findings as a JSON object."""
    devices = []
    for device in document.devices:
        function = result.places.get(device.number)
        devices.append(
            {
                "number": device.number,
                "role": device.role,
                "vendor_id": device.vendor_id,
                "product_id": device.product_id,
                "cell": device.cell,
                "root": device.root,
                "switches": list(device.switches),
                "address": function.address if function else None,
                "driver": function.driver if function else None,
                "numa_node": function.numa_node if function else None,
                "kernel_devices": list(function.names) if function else [],
                "distances": [
                    None if device is second else promised_distance(device, second)
                    for second in document.devices
                ],
            }
        )
    return {
        "schema": "nova-hpc/guest-report",
        "version": 1,
        "topology": document.topology,
        "good": result.good,
        "devices": devices,
        "peer_wish": document.peer_wish,
        "peer_to_peer": [
            {
                "device": peers.device,
                "with": list(peers.others),
                "path": peers.path,
                "why": peers.why,
                "as_wished": peers.as_wished,
            }
            for peers in document.peers
        ],
        "shared_memory": None
        if document.shared_memory is None
        else document.shared_memory._asdict(),
        "findings": [
            {
                "kind": finding.kind,
                "device": finding.device,
                "text": finding.text,
                "wrong": finding.wrong,
                "fault": finding.fault,
            }
            for finding in result.findings
        ],
    }
