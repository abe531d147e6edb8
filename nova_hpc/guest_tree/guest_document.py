# SPDX-License-Identifier: Apache-2.0
"""The two files that describe a guest's devices to it: the document, and NCCL's topology.

Neither contains a name, an address or a serial number of the host: switches and
root complexes get numbers of the guest's own, which start at 0 in every guest. The
user guide describes the schema; :mod:`nova_hpc_guest.document` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from nova_hpc.topology import classes, nccl, peer, peer_wish
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc.wire import guest_terms as terms
from nova_hpc.wire.guest_texts import GUEST_DOCUMENT


@attrs.frozen
class DocumentCell:
    """A NUMA cell in the document that describes the guest's topology to the guest."""

    cpus: int
    memory_kib: int
    #: Size of the host's pages in KiB. None if the guest's memory requests no size.
    page_kib: int | None
    #: The host's NUMA node that holds this cell.
    host_node: int


@attrs.frozen
class PortPartition:
    """The partition of an InfiniBand network, from the binding of the server's port."""

    #: ``0x0101``: the P_Key without its membership bit.
    pkey: str
    #: None if the operator has set no service level.
    service_level: int | None = None


@attrs.frozen
class DocumentDevice:
    """A device in the document that describes the guest's topology to the guest."""

    #: Address on the host. Only a key for look-ups: the document does not contain it.
    address: str
    #: Place in the guest: bus of its root, then device.function of each step down to it,
    #: ``("20", "00.0", "00.0")``. None if the place is not fixed.
    path: tuple[str, ...] | None = None
    role: str | None = None
    #: MAC of the interface, if the device serves one of Neutron's ports.
    mac: str | None = None
    #: Number of its group of ``hpc:group``; set if the server has ports.
    group: int | None = None
    #: The project's name of its rail.
    rail: str | None = None
    #: Partition of its port's network.
    partition: PortPartition | None = None


def build_guest_entries(
    node: Node,
    topology: str,
    cells: Sequence[DocumentCell],
    devices: Iterable[DocumentDevice],
    processor: nccl.Processor | None = None,
    fabric: Mapping[str, str] | None = None,
    wish: PeerWish = PeerWish.KEEP,
    shared: Mapping[str, Any] | None = None,
) -> dict[str, bytes]:
    """Build the fw_cfg entries that describe the topology to the guest: name -> text.

    :param topology: ``mirror``, ``numa`` or ``flat``.
    :param devices: in the order in which the guest finds devices without a path.
        A device that is missing in *node*, or that has no ids there, is left out.
    :param processor: the host's, if the guest has the same.
    :param fabric: level of the fabric -> the project's name of the domain.
    :param wish: the node's setting ``[hpc]peer_to_peer``.
    :param shared: description of the memory that the guest shares; None if the flavor
        requests none.
    """
    given = [(device, node.function(device.address)) for device in devices]
    identified = [
        (device, function)
        for device, function in given
        if function is not None and function.vendor_id and function.product_id
    ]
    places = _Places.of([function for _, function in identified])
    homes = {cell.host_node: number for number, cell in enumerate(cells)}
    entry = {
        **GUEST_DOCUMENT.head(),
        "topology": topology,
        "cells": [
            {"cpus": cell.cpus, "memory_kib": cell.memory_kib, "page_kib": cell.page_kib}
            for cell in cells
        ],
        "devices": [
            _build_device_entry(node, device, function, homes, places)
            for device, function in identified
        ],
        "peer_to_peer": _build_peer_entries(node, [function for _, function in identified], wish),
        # Keys of later releases are present only if they carry a value.
        **({} if wish is PeerWish.KEEP else {"peer_wish": wish.value}),
        **({"fabric": dict(fabric)} if fabric else {}),
        **({"shared_memory": dict(shared)} if shared else {}),
    }
    text = json.dumps(entry, separators=(",", ":"), ensure_ascii=True)
    entries = {terms.DOCUMENT: text.encode("ascii")}
    if not identified:
        return entries  # the server requests a description and has no devices
    try:
        template = _write_guest_topology(
            node, [function for _, function in identified], homes, processor
        )
    except nccl.NcclError:
        return entries  # more devices than NCCL can read: NCCL detects the topology itself
    return {**entries, terms.NCCL: template.encode("ascii")}


@attrs.frozen
class _Places:
    """The host's PCIe roots and switches, numbered for the guest."""

    roots: Mapping[str, int]
    switches: Mapping[str, int]

    @classmethod
    def of(cls, functions: Iterable[PciFunction]) -> _Places:
        functions = list(functions)
        shared = nccl.shared_points(functions)
        roots: dict[str, int] = {}
        switches: dict[str, int] = {}
        for function in functions:
            if function.root is not None:
                roots.setdefault(function.root, len(roots))
            for point in function.switches:
                if point in shared:
                    switches.setdefault(point, len(switches))
        return cls(roots, switches)


def _build_device_entry(
    node: Node,
    given: DocumentDevice,
    function: PciFunction,
    homes: Mapping[int, int],
    places: _Places,
) -> dict[str, Any]:
    """Build the entry of one device, with the guest's numbers in place of host addresses."""
    # A virtual function has no link of its own: its link registers are void.
    link = None if function.physical_function else nccl.best_link(node, function)
    # Keys of later releases are present only if they carry a value.
    more: dict[str, Any] = {}
    if terms.MAC.fullmatch(given.mac or ""):
        more["mac"] = given.mac
    if given.group is not None:
        more["group"] = given.group
    if given.rail is not None:
        more["rail"] = given.rail
    if given.partition is not None and terms.PKEY.fullmatch(given.partition.pkey):
        more["pkey"] = given.partition.pkey
        if given.partition.service_level is not None:
            more["service_level"] = given.partition.service_level
    return {
        # A tag may hold any text; the document holds only terms of the schema.
        "role": given.role if terms.ROLE.fullmatch(given.role or "") else None,
        "vendor_id": function.vendor_id,
        "product_id": function.product_id,
        "class_code": function.class_code,
        "cell": _cell_of_function(function, homes),
        "root": None if function.root is None else places.roots[function.root],
        "switches": [
            places.switches[point] for point in function.switches if point in places.switches
        ],
        "path": None if given.path is None else list(given.path),
        "link": None if link is None else {"speed": link.max_speed, "width": link.max_width},
        **more,
    }


def _build_peer_entries(
    node: Node, functions: Sequence[PciFunction], wish: PeerWish
) -> list[dict[str, Any]]:
    """List the paths between GPUs and adapters below one switch, as JSON objects by number."""
    entries = []
    for number, gpu in enumerate(functions):
        if not classes.is_gpu(gpu.class_code):
            continue
        alike: dict[tuple[peer.PeerPath, peer.PeerReason], list[int]] = {}
        for adapter_number, adapter in enumerate(functions):
            if classes.is_adapter(adapter.class_code):
                path, reason = peer.judge_peer_path(node, gpu, adapter)
                if reason is not None:
                    alike.setdefault((path, reason), []).append(adapter_number)
        entries += [
            {
                "device": number,
                "with": others,
                "path": None if path is peer.PeerPath.UNKNOWN else path.value,
                "why": reason.value,
                **_wished_key_of(path, reason, wish),
            }
            for (path, reason), others in alike.items()
        ]
    return entries


def _wished_key_of(path: peer.PeerPath, reason: peer.PeerReason, wish: PeerWish) -> dict[str, bool]:
    as_wished = peer_wish.is_path_as_wished(path, reason, wish)
    return {} if as_wished is None else {"as_wished": as_wished}


def _cell_of_function(function: PciFunction, homes: Mapping[int, int]) -> int | None:
    return None if function.numa_node is None else homes.get(function.numa_node)


def _write_guest_topology(
    node: Node,
    functions: Sequence[PciFunction],
    homes: Mapping[int, int],
    processor: nccl.Processor | None,
) -> str:
    """Write NCCL's topology file, with placeholders for the devices' addresses in the guest.

    The guest's PCI addresses are unknown on the host; the placeholder contains the device's
    number in the document.
    """
    chosen = {
        number: function for number, function in enumerate(functions) if nccl.is_read(function)
    }
    shared = nccl.switches_above(chosen.values())
    devices = [
        nccl.NcclDevice(
            busid=terms.PLACEHOLDER.format(number),
            class_code=function.class_code or "",
            numa=_cell_of_function(function, homes),
            switches=tuple(point for point in function.switches if point in shared),
            link=nccl.best_link(node, function),
        )
        for number, function in chosen.items()
    ]
    switches: dict[str, nccl.NcclSwitch] = {}
    for device in devices:
        for point in device.switches:
            if point not in switches:
                busid = _no_address(len(switches) + 1)
                switches[point] = nccl.switch_of(node, point, busid)
    # No CPUs in the file: NCCL reads the guest's own from its sysfs.
    return nccl.write_nccl_file(devices, switches, {}, processor, nccl.version_for(chosen.values()))


def _no_address(number: int) -> str:
    """Return a PCI address that no device of a guest has, different for each *number*."""
    return f"ffff:{0xFF - (number >> 5):02x}:{number & 31:02x}.0"
