# SPDX-License-Identifier: Apache-2.0
"""The topology file for NCCL and RCCL of a node itself, not of a guest."""

from __future__ import annotations

import re

from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.nccl import (
    NcclDevice,
    Processor,
    best_link,
    is_read,
    switch_of,
    switches_above,
    version_for,
    write_nccl_file,
)


def from_node(node: Node, processor: Processor | None = None) -> str:
    """Format the NCCL topology file of the node: its GPUs and adapters, without virtual functions.

    :raises NcclError: the node has more than NCCL can read.
    """
    chosen = [function for function in node.functions if _is_device(function)]
    shared = switches_above(chosen)
    devices = [
        NcclDevice(
            busid=function.address,
            class_code=function.class_code or "",
            numa=function.numa_node,
            switches=tuple(point for point in function.switches if point in shared),
            link=best_link(node, function),
        )
        for function in chosen
    ]
    switches = {point: switch_of(node, point) for device in devices for point in device.switches}
    cells = {numa.id: numa.cpus for numa in node.numa_nodes}
    return write_nccl_file(devices, switches, cells, processor, version_for(chosen))


def _is_device(function: PciFunction) -> bool:
    return function.bridge is None and function.physical_function is None and is_read(function)


def read_nccl_processor(tree: FileTree) -> Processor | None:
    """Read the processor from ``/proc/cpuinfo``; None if it is unreadable or of another kind."""
    try:
        text = tree.text("/proc/cpuinfo") or ""
    except FileError:
        return None
    first: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        first.setdefault(key.strip(), value.strip())
    if re.fullmatch(r"[A-Za-z ]{12}", first.get("vendor_id", ""), re.ASCII):
        family, model = first.get("cpu family", ""), first.get("model", "")
        if re.fullmatch(r"\d{1,5}", family, re.ASCII) and re.fullmatch(r"\d{1,5}", model, re.ASCII):
            return Processor("x86_64", first["vendor_id"], int(family), int(model))
        return None
    if "CPU implementer" in first:
        return Processor("arm64")
    return Processor("ppc64") if first.get("cpu", "").startswith("POWER") else None
