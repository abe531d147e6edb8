# SPDX-License-Identifier: Apache-2.0
"""What is wrong with how a host starts: address space, two tools, a restart that is due. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.offer.findings import Finding
from nova_hpc.topology.model import Function, Node

_ACTIVE: Final = "ACTIVE"


@attrs.frozen
class HostFacts:
    """What files of the host say."""

    #: Address -> numbers of the BARs that have no address.
    unassigned: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict, hash=False)
    #: Address -> the driver that driverctl gives the device at boot.
    overrides: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Files of others that switch virtual functions on, where ``nova-hpc prepare`` does.
    numvfs: tuple[str, ...] = ()
    #: Prepared words of the command line that the kernel was not started with.
    not_booted: tuple[str, ...] = ()


def look(host: HostFacts, node: Node, offered: Iterable[Function]) -> Iterator[Finding]:
    """What is wrong with a host.

    :param offered: what servers can be given.
    """
    functions = tuple(offered)
    for address, bars in host.unassigned.items():
        yield Finding(
            "bar-unassigned",
            f"{address}: the kernel has no address for BAR {', '.join(map(str, bars))}.",
            "Switch Above 4G Decoding on in the firmware, and make its MMIO window larger; the "
            f"kernel's log says which is missing: dmesg | grep {address}",
        )
    for address, driver in host.overrides.items():
        if not driver.replace("_", "-").endswith("vfio-pci"):
            yield Finding(
                "driver-at-boot",
                f"{address}: driverctl binds it to {driver} at the next start.",
                f"driverctl set-override {address} vfio-pci",
            )
    if host.numvfs:
        yield Finding(
            "vfs-twice",
            f"Virtual functions are switched on by nova-hpc prepare and by "
            f"{', '.join(host.numvfs)}.",
            f"Take sriov_numvfs out of {host.numvfs[0]}; the declaration has the number.",
        )
    if host.not_booted:
        yield Finding(
            "prepare-restart",
            f"The kernel was started without {' '.join(host.not_booted)}.",
            "Run update-grub and restart the host when no server is on it.",
        )
    yield from _ports(node, functions)


def _ports(node: Node, offered: Iterable[Function]) -> Iterator[Finding]:
    """Adapters of which virtual functions are offered, and whose port is not up."""
    parents = {each.physical_function for each in offered} - {None}
    for function in node.functions:
        if function.address not in parents:
            continue
        for device in function.rdma:
            for port in device.ports:
                if port.state not in (None, _ACTIVE):
                    yield Finding(
                        "port-down",
                        f"{function.address}: port {port.number} of {device.name} is {port.state}.",
                        f"See the cable, the switch and the subnet manager: ibstat {device.name}",
                    )
