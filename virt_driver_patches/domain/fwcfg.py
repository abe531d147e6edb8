# SPDX-License-Identifier: Apache-2.0
"""The guest's documents in its domain, as entries of fw_cfg.

Their content follows from the finished domain (the devices' places in the guest) and a
reading of the node (their places on the host).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lxml import etree

from nova_hpc.guest_tree import guest_document
from nova_hpc.topology.model import Node
from nova_hpc.topology.nccl import Processor
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc.wire.guest_terms import PREFIX
from virt_driver_patches.domain.guest_domain import GuestDomainXml

#: An argument of QEMU has at most 128 KiB, and commas in it are doubled.
_LONGEST: Final = 90_000


def tell_guest_devices(
    domain: GuestDomainXml,
    node: Node,
    topology: str,
    cells: Sequence[guest_document.DocumentCell],
    roles: Mapping[str, str],
    processor: Processor | None = None,
    groups: Mapping[str, int] | None = None,
    fabric: Mapping[str, str] | None = None,
    rails: Mapping[str, str] | None = None,
    wish: PeerWish = PeerWish.KEEP,
    shared: Mapping[str, Any] | None = None,
    partitions: Mapping[str, guest_document.PortPartition] | None = None,
) -> None:
    """Describe to the guest its devices, its place in the fabric and its shared memory.

    A domain without devices, fabric and shared memory is not changed.

    This is the last change of a domain, because the text depends on the devices' final
    places. An error leaves the domain unchanged.

    :param node: a reading of the host with the claimed devices.
    :param topology: ``hpc:guest_topology``: mirror, numa or flat.
    :param roles: host address of a device -> its role, if it has one.
    :param processor: the host's, if the guest has the same.
    :param groups: host address of a device -> its group, if ports belong to groups.
    :param fabric: level of the fabric -> the project's name of the domain.
    :param rails: host address of a device -> the project's name of its rail.
    :param wish: the node's setting ``[hpc]peer_to_peer``.
    :param shared: description of the memory that the guest shares; None if the flavor
        requests none.
    :param partitions: host address of a port's device -> the partition of the port's network.
    :raises ValueError: the text is too long.
    """
    # The MACs identify the interfaces of the groups; without groups they are not needed.
    macs = domain.macs() if groups else {}
    given = [
        guest_document.DocumentDevice(
            address,
            path,
            role=roles.get(address),
            mac=macs.get(address),
            group=(groups or {}).get(address),
            rail=(rails or {}).get(address),
            partition=(partitions or {}).get(address),
        )
        for address, path in domain.paths()
    ]
    if not given and not fabric and not shared:
        return
    # Nova lists host devices in any order. If all have places, sort them by place.
    if all(device.path is not None for device in given):
        given.sort(key=lambda device: device.path or ())
    add_documents(
        domain,
        guest_document.build_guest_entries(
            node, topology, cells, given, processor, fabric, wish, shared
        ),
    )


def add_documents(domain: GuestDomainXml, documents: Mapping[str, bytes]) -> None:
    """Put *documents* (name -> ASCII text) into fw_cfg; they replace entries of the same name.

    :raises ValueError: a name or a text is not valid; nothing has been
        changed then.
    """
    for name, text in documents.items():
        # libvirt accepts only opt/; QEMU's names have at most 55 characters.
        if not name.startswith(PREFIX) or len(name) > 55 or not name.isascii():
            raise ValueError(f"{name!r} is no name for an entry of fw_cfg")
        if b"\0" in text or not text.isascii() or len(text) > _LONGEST:
            raise ValueError(f"{name}: no ASCII text of at most {_LONGEST} characters")
    root = domain.edit()
    former = root.find("sysinfo[@type='fwcfg']")
    sysinfo = etree.SubElement(root, "sysinfo", type="fwcfg") if former is None else former
    for entry in sysinfo.findall("entry"):
        if entry.get("name") in documents:
            sysinfo.remove(entry)
    for name, text in sorted(documents.items()):
        # libvirt quotes nothing for QEMU, so the text may contain no comma or quotation mark.
        etree.SubElement(sysinfo, "entry", name=name).text = base64.b64encode(text).decode("ascii")
