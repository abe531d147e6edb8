"""Does traffic between two devices stay below the switch that they share?

A downstream port with ACS request redirect sends what a device writes to its
neighbour up to the root complex, where the IOMMU translates it, and down again.
Then a GPU and an adapter below one switch are as slow as through the host,
though the tree shows them side by side. Only a device that translates
addresses itself (ATS) below ports with direct translated peer-to-peer avoids
it. Bits as in PCI Express Base 5.0, 7.7.11.3.
"""

from __future__ import annotations

import enum
import itertools
from typing import Final

from nova_hpc.topology.model import BridgeKind, Function, Node

_REDIRECT: Final = 0x04 | 0x08  # of requests, of completions
_DIRECT: Final = 0x40  # translated requests are not redirected


class Peer(enum.Enum):
    """The path of traffic between two devices."""

    SWITCH = "switch"  # stays below the switch that they share
    ROOT = "root"  # below one switch, but redirected through the root complex
    NONE = "none"  # they share no switch
    UNKNOWN = "unknown"  # ports whose registers could not be read


def path(node: Node, one: Function, other: Function) -> Peer:
    """The path between two functions of *node*."""
    shared = [here for here, there in zip(one.path, other.path, strict=False) if here == there]
    switch = next((each for each in reversed(shared) if _is_upstream(node, each)), None)
    if switch is None:
        return Peer.NONE
    below = one.path.index(switch) + 1
    ports = (one.path[below : below + 1], other.path[below : below + 1])
    if not all(ports) or ports[0] == ports[1]:
        return Peer.UNKNOWN  # two functions of one device: its own business
    states = {
        _redirected(node.function(port[0]), device)
        for port, device in zip(ports, (one, other), strict=True)
    }
    if True in states:
        return Peer.ROOT
    return Peer.UNKNOWN if None in states else Peer.SWITCH


def switches(node: Node) -> dict[str, Peer]:
    """Address of each switch with devices at several ports -> their path.

    :attr:`Peer.ROOT` as soon as one pair is redirected.
    """
    below: dict[str, dict[str, Function]] = {}
    for function in node.functions:
        if function.is_bridge:
            continue
        for above, port in itertools.pairwise(function.path):
            if _is_upstream(node, above):
                # One device speaks for all at its port.
                below.setdefault(above, {}).setdefault(port, function)
    found = {}
    for switch, ports in below.items():
        if len(ports) < 2:
            continue
        states = {_redirected(node.function(port), device) for port, device in ports.items()}
        if True in states:
            found[switch] = Peer.ROOT
        else:
            found[switch] = Peer.UNKNOWN if None in states else Peer.SWITCH
    return found


def _is_upstream(node: Node, address: str) -> bool:
    function = node.function(address)
    return function is not None and function.bridge is BridgeKind.UPSTREAM


def _redirected(port: Function | None, device: Function) -> bool | None:
    """Whether *port* redirects what *device* below it sends; None: not known."""
    if port is None or port.acs_control is None:
        return None
    if not port.acs_control & _REDIRECT:
        return False
    if port.acs_control & _DIRECT and device.ats is not False:
        return None if device.ats is None else False
    return True
