# SPDX-License-Identifier: Apache-2.0
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
from collections.abc import Collection, Iterator
from typing import Final

import attrs

from nova_hpc.topology import classes
from nova_hpc.topology.model import BridgeKind, Function, Node, address_key

_REDIRECT: Final = 0x04 | 0x08  # of requests, of completions
_DIRECT: Final = 0x40  # translated requests are not redirected


class Peer(enum.Enum):
    """The path of traffic between two devices."""

    SWITCH = "switch"  # stays below the switch that they share
    ROOT = "root"  # below one switch, but redirected through the root complex
    NONE = "none"  # they share no switch
    UNKNOWN = "unknown"  # ports whose registers could not be read


class Why(enum.Enum):
    """What decides about the path of two devices below one switch."""

    #: A port redirects, and lets translated requests not pass either.
    REDIRECT = "acs-redirect"
    #: The ports redirect all but translated requests, which a device cannot make.
    NO_ATS = "no-ats"
    #: The same, and both devices can: with ATS in use it stays below the switch.
    ATS = "ats"
    #: No port redirects.
    FREE = "no-redirect"
    #: The registers of a port or a device could not be read.
    UNREADABLE = "unreadable"


@attrs.frozen
class Pair:
    """A GPU and functions of one adapter below the same switch."""

    gpu: str
    #: The physical function, or the one function that there is.
    adapter: str
    #: Of which this holds: itself, or its virtual functions.
    functions: tuple[str, ...]
    path: Peer
    why: Why
    #: ATS is switched on in all of them now; None: not known. It is switched on
    #: when a device is attached to a guest behind an IOMMU that supports it.
    ats_enabled: bool | None


def pairs(node: Node) -> Iterator[Pair]:
    """Every GPU with every adapter below the same switch, in order of addresses.

    Functions of one adapter of which the same is true are in one pair.
    """
    adapters: dict[str, dict[str, list[Function]]] = {}
    for each in node.functions:
        if classes.is_adapter(each.class_code) and each.switches:
            below = adapters.setdefault(each.switches[0], {})
            below.setdefault(each.physical_function or each.address, []).append(each)
    for gpu in node.functions:
        if not classes.is_gpu(gpu.class_code) or not gpu.switches:
            continue
        for adapter, functions in adapters.get(gpu.switches[0], {}).items():
            found: dict[tuple[Peer, Why, bool | None], list[str]] = {}
            for function in functions:
                where, why = verdict(node, gpu, function)
                enabled = _both(gpu.ats_enabled, function.ats_enabled)
                if why is not None:
                    found.setdefault((where, why, enabled), []).append(function.address)
            for (where, why, enabled), alike in found.items():
                yield Pair(gpu.address, adapter, tuple(alike), where, why, enabled)


def redirected(node: Node, addresses: Collection[str]) -> tuple[int, int] | None:
    """Of these devices: pairs below one switch whose traffic leaves it, and all pairs.

    :returns: None where no pair does, as far as it is known.
    """
    functions = [each for each in map(node.function, addresses) if each is not None]
    total = away = 0
    for gpu in filter(lambda each: classes.is_gpu(each.class_code), functions):
        for adapter in filter(lambda each: classes.is_adapter(each.class_code), functions):
            where = path(node, gpu, adapter)
            total += where is not Peer.NONE
            away += where is Peer.ROOT
    return (away, total) if away else None


def between(node: Node, addresses: Collection[str]) -> tuple[tuple[int, int, Why], ...]:
    """Of these devices: every GPU with every adapter below one switch, as far as it is known.

    :returns: their numbers in the order of addresses, and what decides about their path.
    """
    ordered = sorted(addresses, key=address_key)
    functions = [(number, node.function(each)) for number, each in enumerate(ordered)]
    found = []
    for one, gpu in functions:
        for other, adapter in functions:
            if gpu is None or adapter is None:
                continue
            if classes.is_gpu(gpu.class_code) and classes.is_adapter(adapter.class_code):
                why = verdict(node, gpu, adapter)[1]
                if why is not None and why is not Why.UNREADABLE:
                    found.append((one, other, why))
    return tuple(found)


def _both(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def path(node: Node, one: Function, other: Function) -> Peer:
    """The path between two functions of *node*."""
    return verdict(node, one, other)[0]


def verdict(node: Node, one: Function, other: Function) -> tuple[Peer, Why | None]:
    """The path between two functions of *node*, and why; None: they share no switch."""
    between = ports(node, one, other)
    if between is None:
        return Peer.NONE, None
    if not between:
        return Peer.UNKNOWN, Why.UNREADABLE
    # The one that decides most comes first.
    states = [
        _state(node.function(port), device)
        for port, device in zip(between, (one, other), strict=True)
    ]
    for why, where in _PATHS.items():
        if why in states:
            return where, why
    return Peer.SWITCH, Why.FREE


def path_of(why: Why) -> Peer:
    """The path of two functions below one switch of which this decides."""
    return _PATHS.get(why, Peer.SWITCH)


def ports(node: Node, one: Function, other: Function) -> tuple[str, ...] | None:
    """The ports of the nearest switch above both through which each reaches the other.

    Those of switches further down send upwards what is for a neighbour elsewhere, whether
    they redirect or not.

    :returns: that of *one*, then that of *other*; () where they are not known, as for two
        functions of one device; None: they share no switch.
    """
    shared = [here for here, there in zip(one.path, other.path, strict=False) if here == there]
    switch = next((each for each in reversed(shared) if _is_upstream(node, each)), None)
    if switch is None:
        return None
    below = one.path.index(switch) + 1
    found = (one.path[below : below + 1], other.path[below : below + 1])
    if not all(found) or found[0] == found[1]:
        return ()
    return found[0] + found[1]


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
        states = {_state(node.function(port), device) for port, device in ports.items()}
        found[switch] = next((where for why, where in _PATHS.items() if why in states), Peer.SWITCH)
    return found


def _is_upstream(node: Node, address: str) -> bool:
    function = node.function(address)
    return function is not None and function.bridge is BridgeKind.UPSTREAM


#: In the order in which one device decides for both.
_PATHS: Final = {
    Why.REDIRECT: Peer.ROOT,
    Why.NO_ATS: Peer.ROOT,
    Why.UNREADABLE: Peer.UNKNOWN,
    Why.ATS: Peer.SWITCH,
}


def _state(port: Function | None, device: Function) -> Why:
    """What *port* does with what *device* below it sends."""
    if port is None or port.acs_control is None:
        return Why.UNREADABLE
    if not port.acs_control & _REDIRECT:
        return Why.FREE
    if not port.acs_control & _DIRECT:
        return Why.REDIRECT
    if device.ats is None:
        return Why.UNREADABLE
    return Why.ATS if device.ats else Why.NO_ATS
