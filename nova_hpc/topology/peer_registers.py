# SPDX-License-Identifier: Apache-2.0
"""Registers that decide about peer-to-peer, for a process that cannot read them as root.

A process without root can read 64 bytes of a configuration space; ACS and ATS are behind
them. A process that gets them in another way, for example from a privileged helper, adds
them to the node with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from nova_hpc.topology import classes, confspace, peer
from nova_hpc.topology.model import Node, address_key


def find_unread_functions(node: Node, addresses: Iterable[str]) -> tuple[str, ...]:
    """Find functions whose ACS or ATS registers are unknown and decide about peer-to-peer traffic.

    :param addresses: of a server's devices; other functions matter only as ports above them.
    :returns: addresses of ports and devices, in their order; () if all are known, or if no
        GPU of *addresses* shares a switch with one of their adapters.
    """
    functions = [function for function in map(node.function, addresses) if function is not None]
    lacking = set()
    for gpu in (function for function in functions if classes.is_gpu(function.class_code)):
        for adapter in (
            function for function in functions if classes.is_adapter(function.class_code)
        ):
            ports = peer.ports_between(node, gpu, adapter) or ()
            for address, device in zip(ports, (gpu, adapter), strict=False):
                port = node.function(address)
                if port is not None and port.acs_control is None:
                    lacking.add(address)
                if device.ats is None:
                    lacking.add(device.address)
    return tuple(sorted(lacking, key=address_key))


def with_registers(node: Node, configs: Mapping[str, bytes]) -> Node:
    """Return a copy of *node* with the ACS and ATS registers of these configuration spaces.

    :param configs: address -> space; one that is too short, or all ones, is ignored.
    """
    read = {address: confspace.parse_config_space(data) for address, data in configs.items()}
    functions = tuple(
        function
        if (space := read.get(function.address)) is None or space.silent
        else attrs.evolve(
            function,
            acs_capability=space.acs_capability,
            acs_control=space.acs_control,
            ats=space.ats,
            ats_enabled=space.ats_enabled,
        )
        for function in node.functions
    )
    return attrs.evolve(node, functions=functions)
