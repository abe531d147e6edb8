# SPDX-License-Identifier: Apache-2.0
"""The distances between the GPUs and adapters of a node: the host's ``topo -m``.

NCCL and ``nvidia-smi topo -m`` print the same words. A distance that the kernel does not report
is ``?``, and never ``SYS``. Links between GPUs (NVLink) are not PCI Express. They are not in the
matrix, because no program can read them while vfio-pci has the devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.topology import classes
from nova_hpc.topology.cpuset import format_list
from nova_hpc.topology.model import BridgeKind, Node, PciFunction
from nova_hpc.topology.peer import PeerPath, peer_path_between
from nova_hpc_common.level import Distance, distance_between

SCHEMA: Final = "nova-hpc/matrix"
VERSION: Final = 1
ITSELF: Final = "X"
UNKNOWN: Final = "?"
#: Suffix of a distance: below one switch, but the traffic passes through the root complex.
REDIRECTED: Final = "^"
_LEGEND: Final[Mapping[str, str]] = {
    ITSELF: "the device itself",
    Distance.PIX.name: "at most one PCIe switch between them",
    Distance.PXB.name: "several PCIe switches, no host bridge",
    Distance.PHB.name: "one PCIe host bridge (root complex)",
    Distance.NODE.name: "host bridges of one NUMA node",
    Distance.SYS.name: "the link between NUMA nodes, within a socket or between two",
    REDIRECTED: "below one switch, but ACS sends the traffic through the root complex",
    UNKNOWN: "the kernel does not report the place of one of them",
}
_GAP: Final = "  "


@attrs.frozen
class MatrixDevice:
    """A GPU or adapter in the distance matrix.

    :ivar label: ``GPU0``, ``NIC3``: numbered in the order of addresses.
    :ivar cpus: the local CPUs, as a list in the kernel's form; "" if unknown.
    :ivar numa: the local NUMA nodes in the same form; "" if unknown.
    """

    label: str
    function: PciFunction
    cpus: str
    numa: str

    @property
    def product(self) -> str:
        """The product name, or the vendor and product ids."""
        function = self.function
        ids = f"{function.vendor_id or '????'}:{function.product_id or '????'}"
        return function.model or ids

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Names of the device in the kernel, RDMA devices first: ``mlx5_0``, ``ib0``."""
        names = [device.name for device in self.function.rdma]
        names += [name.partition(" ")[2] for name in self.function.os_devices]
        return tuple(dict.fromkeys(names))


@attrs.frozen
class DistanceMatrix:
    """The distances between the GPUs and adapters of a node."""

    devices: tuple[MatrixDevice, ...]
    rows: tuple[tuple[str, ...], ...]


def build_distance_matrix(node: Node, everything: bool = False) -> DistanceMatrix:
    """Compute the distances between all GPUs and adapters of *node*.

    :param everything: include virtual functions, which have the place of their physical function.
    """
    gpus: list[PciFunction] = []
    adapters: list[PciFunction] = []
    for function in node.functions:
        if _is_listed(node, function, everything):
            (gpus if classes.is_gpu(function.class_code) else adapters).append(function)
    devices = tuple(
        _describe_device(node, f"{word}{number}", function)
        for word, functions in (("GPU", gpus), ("NIC", adapters))
        for number, function in enumerate(functions)
    )
    rows = tuple(
        tuple(_format_distance(node, first.function, second.function) for second in devices)
        for first in devices
    )
    return DistanceMatrix(devices, rows)


def _is_listed(node: Node, function: PciFunction, everything: bool) -> bool:
    if function.is_bridge or (function.physical_function is not None and not everything):
        return False
    above = (node.function(address) for address in function.path)
    if any(bridge is not None and bridge.bridge is BridgeKind.PCI for bridge in above):
        return False  # conventional PCI: the display of a management controller
    return classes.is_gpu(function.class_code) or classes.is_adapter(function.class_code)


def _describe_device(node: Node, label: str, function: PciFunction) -> MatrixDevice:
    near = function.local_numa_nodes
    if not near and function.numa_node is not None:
        near = frozenset({function.numa_node})
    cpus = frozenset[int]().union(*(numa.cpus for numa in node.numa_nodes if numa.id in near))
    return MatrixDevice(label, function, format_list(cpus), format_list(near))


def _format_distance(node: Node, first: PciFunction, second: PciFunction) -> str:
    if first.address == second.address:
        return ITSELF
    places = first.location, second.location
    if any(place.root is None for place in places):
        return UNKNOWN
    distance = distance_between(*places)
    if distance is Distance.SYS and any(place.numa is None for place in places):
        return UNKNOWN
    redirected = peer_path_between(node, first, second) is PeerPath.ROOT
    return distance.name + REDIRECTED * redirected


# --- for people ------------------------------------------------------------------------


def format_matrix_lines(matrix: DistanceMatrix) -> Iterator[str]:
    """Format the matrix with its devices and legend, line by line."""
    if not matrix.devices:
        yield "no GPU and no adapter"
        return
    labels = [device.label for device in matrix.devices]
    yield from _align_columns(
        [
            ["", *labels, "CPU affinity", "NUMA affinity"],
            *(
                [device.label, *row, device.cpus or UNKNOWN, device.numa or UNKNOWN]
                for device, row in zip(matrix.devices, matrix.rows, strict=True)
            ),
        ]
    )
    yield ""
    yield from _align_columns(
        [
            [
                device.label,
                device.function.address,
                _GAP.join(filter(None, [device.product, " ".join(device.kernel_names)])),
            ]
            for device in matrix.devices
        ]
    )
    yield ""
    written = {cell for row in matrix.rows for cell in row}
    words = {cell.rstrip(REDIRECTED) for cell in written}
    words |= {REDIRECTED} if any(cell.endswith(REDIRECTED) for cell in written) else set()
    yield from _align_columns([[word, text] for word, text in _LEGEND.items() if word in words])


def _align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, wide, strict=True)]
        yield _GAP.join(cells).rstrip()


# --- for programs ------------------------------------------------------------------------


def list_matrix_columns(matrix: DistanceMatrix) -> tuple[str, ...]:
    """Return the columns of a list: the device, its distance to each device, and its affinities."""
    labels = (device.label for device in matrix.devices)
    return ("Device", "Address", *labels, "CPU affinity", "NUMA affinity")


def list_matrix_rows(matrix: DistanceMatrix) -> list[tuple[str, ...]]:
    """Return the rows for the columns of :func:`list_matrix_columns`, one for each device."""
    return [
        (device.label, device.function.address, *row, device.cpus, device.numa)
        for device, row in zip(matrix.devices, matrix.rows, strict=True)
    ]


def dump_matrix_document(node: Node, matrix: DistanceMatrix) -> str:
    """Format JSON: ``distances`` has a row for each device, in the order of ``devices``."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "hostname": node.hostname,
        "devices": [
            {
                "label": device.label,
                "address": device.function.address,
                "vendor_id": device.function.vendor_id,
                "product_id": device.function.product_id,
                "model": device.function.model,
                "kernel_names": list(device.kernel_names),
                "cpus": device.cpus or None,
                "numa_nodes": device.numa or None,
            }
            for device in matrix.devices
        ],
        "distances": [
            [cell.rstrip(REDIRECTED) if cell != UNKNOWN else None for cell in row]
            for row in matrix.rows
        ],
        "redirected": [[cell.endswith(REDIRECTED) for cell in row] for row in matrix.rows],
    }
    return json.dumps(document, indent=2) + "\n"
