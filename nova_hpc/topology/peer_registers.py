# SPDX-License-Identifier: Apache-2.0
"""Registers that decide about peer-to-peer, and that a process which is not root lacks.

Everybody may read 64 bytes of a configuration space, and ACS and ATS lie behind them.
Who has them by other means, as from a privileged helper, puts them into the node here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from nova_hpc.topology import classes, confspace, peer
from nova_hpc.topology.model import Node, address_key


def unread(node: Node, addresses: Iterable[str]) -> tuple[str, ...]:
    """The functions whose registers are not known, of those that decide.

    :param addresses: of a server's devices; others are looked at only as ports above them.
    :returns: addresses of ports and devices, in their order; () where all is known, or no
        GPU of *addresses* shares a switch with an adapter of them.
    """
    functions = [each for each in map(node.function, addresses) if each is not None]
    found = set()
    for gpu in (each for each in functions if classes.is_gpu(each.class_code)):
        for adapter in (each for each in functions if classes.is_adapter(each.class_code)):
            ports = peer.ports(node, gpu, adapter) or ()
            for address, device in zip(ports, (gpu, adapter), strict=False):
                port = node.function(address)
                if port is not None and port.acs_control is None:
                    found.add(address)
                if device.ats is None:
                    found.add(device.address)
    return tuple(sorted(found, key=address_key))


def with_registers(node: Node, configs: Mapping[str, bytes]) -> Node:
    """*node* with the ACS and ATS registers of these configuration spaces.

    :param configs: address -> space; one that is too short, or all ones, says nothing.
    """
    read = {address: confspace.parse(data) for address, data in configs.items()}
    functions = tuple(
        each
        if (found := read.get(each.address)) is None or found.silent
        else attrs.evolve(
            each,
            acs_capability=found.acs_capability,
            acs_control=found.acs_control,
            ats=found.ats,
            ats_enabled=found.ats_enabled,
        )
        for each in node.functions
    )
    return attrs.evolve(node, functions=functions)
