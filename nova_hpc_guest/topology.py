# SPDX-License-Identifier: Apache-2.0
"""The place of this machine on the fabric, for people, for Slurm and for programs.

All names are the project's own: the same name on two of its machines only means that they
share the domain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .document import DocumentError, GuestDevice, GuestDocument
from .machine import GuestFunction
from .terms import DOCUMENT

#: Slurm's name of the topology without another name.
DEFAULT: Final = "default"
_WORDS: Final = {"nvlink_domain": "NVLink domain", "sub_domain": "sub-domain"}
#: Levels of the tree; a domain is part of one of the level before.
_TREE: Final = ("spine", "block", "leaf")


def check_place_known(document: GuestDocument) -> None:
    """Refuse a document that lacks the machine's place.

    :raises DocumentError: it contains neither a domain nor a rail.
    """
    if not document.fabric and not any(device.rail for device in document.devices):
        raise DocumentError(
            f"{DOCUMENT} does not say where this machine is on the fabric: the cloud did not know "
            "it when the machine was started"
        )


def format_place_lines(document: GuestDocument, places: dict[int, GuestFunction]) -> Iterator[str]:
    """Yield lines for people: the machine's fabric domains, and the rail of each device."""
    for level, name in document.fabric:
        yield f"{_WORDS.get(level, level)} {name}"
    for device in document.devices:
        if device.rail:
            yield f"rail {device.rail}: {device.name}{_describe_located(device, places)}"


def _describe_located(device: GuestDevice, places: dict[int, GuestFunction]) -> str:
    function = places.get(device.number)
    if function is None:
        return ""
    names = " ".join(name.partition(" ")[2] for name in function.names)
    return f": {function.address} {names}".rstrip()


def format_slurm_place(
    document: GuestDocument, level: str, topology: str, below: str | None
) -> str:
    """Format the configuration of a Slurm node, as in ``slurmd -Z --conf``.

    :param level: the level whose domains Slurm has as switches or blocks.
    :param topology: name of Slurm's topology.
    :param below: a switch that Slurm has; the result has the path from there, and Slurm makes its
        missing switches (26.05). None for only the domain's name.
    :raises DocumentError: the domain is not known.
    """
    domains = dict(document.fabric)
    if level not in domains:
        named_levels = ", ".join(domains) or "nothing"
        raise DocumentError(
            f"{DOCUMENT} names no {level} of this machine; it names: {named_levels}"
        )
    path = [domains[level]]
    if below:
        wider = _TREE[: _TREE.index(level)] if level in _TREE else ()
        path = [
            below,
            *(domains[wider_level] for wider_level in wider if wider_level in domains),
            *path,
        ]
    return f"Topology={topology}:{':'.join(path)}"


def build_place_data(document: GuestDocument, places: dict[int, GuestFunction]) -> dict[str, Any]:
    """Return the places of the document's devices, as the JSON of ``nova-hpc-guest topology``.

    :param places: number of a device in the document -> the PCI function in this guest.
    """
    rails = []
    for device in document.devices:
        if device.rail:
            function = places.get(device.number)
            rails.append(
                {
                    "device": device.number,
                    "role": device.role,
                    "rail": device.rail,
                    "address": function.address if function else None,
                    "kernel_devices": list(function.names) if function else [],
                }
            )
    return {
        "schema": "nova-hpc/guest-topology",
        "version": 1,
        "fabric": dict(document.fabric),
        "rails": rails,
    }
