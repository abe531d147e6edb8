# SPDX-License-Identifier: Apache-2.0
"""Accelerators that are linked by xGMI, AMD's counterpart of NVLink, as the kernel reports.

There are two sources, both from the driver ``amdgpu`` and KFD. Accelerators that are bound
to vfio-pci show neither, so they have to be read before they are bound. The first source is
the hive number of an accelerator (:file:`xgmi_hive_info/xgmi_hive_id` in its directory; all
with one number are one hive). If no accelerator has one, the links of KFD's topology count
(``type 11`` in :file:`io_links` and :file:`p2p_links`): all that are joined by links, in
one step or more, are one hive. Formats as in drivers/gpu/drm/amd/amdgpu/amdgpu_xgmi.c and
drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import address_key

_DEVICES: Final = "/sys/bus/pci/devices"
_NODES: Final = "/sys/class/kfd/kfd/topology/nodes"
_LINKS: Final = ("io_links", "p2p_links")
#: CRAT_IOLINK_TYPE_XGMI
_XGMI: Final = 11
_NUMBER: Final = re.compile(r"\d{1,20}", re.ASCII)
_LINE: Final = re.compile(r"^(\w+)\s+(\d{1,20})\s*$", re.ASCII | re.MULTILINE)
_LARGEST: Final = 1 << 64


def read_xgmi_hives(tree: FileTree, addresses: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return accelerator -> its xGMI hive, named by the hive's lowest address; and problems.

    A hive is a set of AMD GPUs with direct links. A file with a senseless value is a problem.

    :param addresses: normalised addresses of the accelerators.
    """
    problems: list[str] = []
    accelerators = sorted(set(addresses), key=address_key)
    hives: dict[int, list[str]] = {}
    for address in accelerators:
        number = _read_hive_id(tree, address, problems)
        if number:
            hives.setdefault(number, []).append(address)
    groups = list(hives.values()) or _join_linked(_kfd_links(tree, accelerators, problems))
    return {
        address: min(group, key=address_key)
        for group in groups
        if len(group) > 1
        for address in group
    }, problems


def _read_hive_id(tree: FileTree, address: str, problems: list[str]) -> int | None:
    path = f"{_DEVICES}/{address}/xgmi_hive_info/xgmi_hive_id"
    try:
        text = tree.text(path)
    except FileError as error:
        problems.append(str(error))
        return None
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or int(text) >= _LARGEST:
        problems.append(f"{path}: {text[:40]!r} is no number of a hive")
        return None
    return int(text)


def _kfd_links(
    tree: FileTree, accelerators: list[str], problems: list[str]
) -> list[tuple[str, str]]:
    """List pairs of accelerators with a link between them, from the files of AMD's KFD driver."""
    places: dict[int, str] = {}
    wires: list[tuple[int, int]] = []
    for number in _numbered_names_in(tree, _NODES, problems):
        folder = f"{_NODES}/{number}"
        address = _pci_address_of(_read_properties(tree, f"{folder}/properties", problems))
        if address in accelerators:
            places[number] = address
        for kind in _LINKS:
            for link in _numbered_names_in(tree, f"{folder}/{kind}", problems):
                properties = _read_properties(tree, f"{folder}/{kind}/{link}/properties", problems)
                if (
                    properties.get("type") == _XGMI
                    and {"node_from", "node_to"} <= properties.keys()
                ):
                    wires.append((properties["node_from"], properties["node_to"]))
    return [
        (places[first], places[second])
        for first, second in wires
        if {first, second} <= places.keys()
    ]


def _numbered_names_in(tree: FileTree, folder: str, problems: list[str]) -> list[int]:
    try:
        names = tree.names(folder) if tree.exists(folder) else []
    except FileError as error:
        problems.append(str(error))
        return []
    return sorted(int(name) for name in names if re.fullmatch(r"\d{1,5}", name, re.ASCII))


def _read_properties(tree: FileTree, path: str, problems: list[str]) -> dict[str, int]:
    try:
        return {key: int(value) for key, value in _LINE.findall(tree.text(path) or "")}
    except FileError as error:
        problems.append(str(error))
        return {}


def _pci_address_of(properties: Mapping[str, int]) -> str | None:
    """Return the PCI address in the properties of a KFD node; None for a CPU."""
    place = properties.get("location_id", 0)
    if not 0 < place < 1 << 16:
        return None
    bus, slot, function = place >> 8, place >> 3 & 31, place & 7
    return f"{properties.get('domain', 0):04x}:{bus:02x}:{slot:02x}.{function:x}"


def _join_linked(links: Iterable[tuple[str, str]]) -> list[list[str]]:
    groups: list[set[str]] = []
    for pair in links:
        touched = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if not group & set(pair)]
        groups.append(set(pair).union(*touched))
    return [sorted(group, key=address_key) for group in groups]
