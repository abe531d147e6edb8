# SPDX-License-Identifier: Apache-2.0
"""Does traffic between two devices stay below the switch that they share?

A downstream port with ACS request redirect sends writes from a device to its neighbour up
to the root complex, where the IOMMU translates them, and down again. Then a GPU and an
adapter below one switch are as slow as through the host, though the tree shows them side by
side. The detour is avoided only if the device translates addresses itself (ATS) and the
ports allow direct translated peer-to-peer. Bits as in PCI Express Base 5.0, 7.7.11.3.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Iterator
from typing import Final

import attrs

from nova_hpc.topology import classes
from nova_hpc.topology.model import BridgeKind, Node, PciFunction, address_key

_REDIRECT: Final = 0x04 | 0x08  # of requests, of completions
_DIRECT: Final = 0x40  # translated requests are not redirected


class PeerPath(enum.Enum):
    """The path of peer-to-peer traffic between two PCI devices."""

    SWITCH = "switch"  # stays below the switch that they share
    ROOT = "root"  # below one switch, but redirected through the root complex
    NONE = "none"  # they share no switch
    UNKNOWN = "unknown"  # ports whose registers could not be read


class PeerReason(enum.Enum):
    """The cause of the path between two devices below one switch."""

    #: A port redirects, also translated requests.
    REDIRECT = "acs-redirect"
    #: The ports redirect all but translated requests, and a device cannot make those.
    NO_ATS = "no-ats"
    #: The same, and both devices can make them: traffic with ATS stays below the switch.
    ATS = "ats"
    #: No port redirects.
    FREE = "no-redirect"
    #: The registers of a port or a device could not be read.
    UNREADABLE = "unreadable"


@attrs.frozen
class PeerPair:
    """A GPU and functions of one network adapter below the same PCIe switch."""

    gpu: str
    #: The physical function, or the one function that there is.
    adapter: str
    #: The functions with this path: the adapter itself, or its virtual functions.
    functions: tuple[str, ...]
    path: PeerPath
    why: PeerReason
    #: ATS is on in all of them now; None if unknown. The kernel switches it on
    #: when a device is attached to a guest behind an IOMMU that supports it.
    ats_enabled: bool | None


def find_peer_pairs(node: Node) -> Iterator[PeerPair]:
    """Yield every GPU with every network adapter below the same switch, sorted by address.

    Functions of one adapter with equal results are in one pair.
    """
    adapters: dict[str, dict[str, list[PciFunction]]] = {}
    for candidate in node.functions:
        if classes.is_adapter(candidate.class_code) and candidate.switches:
            below = adapters.setdefault(candidate.switches[0], {})
            below.setdefault(candidate.physical_function or candidate.address, []).append(candidate)
    for gpu in node.functions:
        if not classes.is_gpu(gpu.class_code) or not gpu.switches:
            continue
        for adapter, functions in adapters.get(gpu.switches[0], {}).items():
            by_verdict: dict[tuple[PeerPath, PeerReason, bool | None], list[str]] = {}
            for function in functions:
                where, reason = judge_peer_path(node, gpu, function)
                enabled = _both_enabled(gpu.ats_enabled, function.ats_enabled)
                if reason is not None:
                    by_verdict.setdefault((where, reason, enabled), []).append(function.address)
            for (where, reason, enabled), alike in by_verdict.items():
                yield PeerPair(gpu.address, adapter, tuple(alike), where, reason, enabled)


def count_redirected_pairs(node: Node, addresses: Collection[str]) -> tuple[int, int] | None:
    """Count the pairs of a GPU and an adapter whose traffic leaves their switch, and all pairs.

    :returns: None if no known pair's traffic does.
    """
    functions = [function for function in map(node.function, addresses) if function is not None]
    total = away = 0
    for gpu in filter(lambda function: classes.is_gpu(function.class_code), functions):
        for adapter in filter(lambda function: classes.is_adapter(function.class_code), functions):
            where = peer_path_between(node, gpu, adapter)
            total += where is not PeerPath.NONE
            away += where is PeerPath.ROOT
    return (away, total) if away else None


def peer_reasons_between(
    node: Node, addresses: Collection[str]
) -> tuple[tuple[int, int, PeerReason], ...]:
    """List every readable pair of a GPU and an adapter of *addresses* below one switch.

    :returns: their numbers in the order of addresses, and the reason for their path.
    """
    ordered = sorted(addresses, key=address_key)
    functions = [(number, node.function(address)) for number, address in enumerate(ordered)]
    reasons = []
    for gpu_number, gpu in functions:
        for adapter_number, adapter in functions:
            if gpu is None or adapter is None:
                continue
            if classes.is_gpu(gpu.class_code) and classes.is_adapter(adapter.class_code):
                reason = judge_peer_path(node, gpu, adapter)[1]
                if reason is not None and reason is not PeerReason.UNREADABLE:
                    reasons.append((gpu_number, adapter_number, reason))
    return tuple(reasons)


def _both_enabled(first: bool | None, second: bool | None) -> bool | None:
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def peer_path_between(node: Node, first: PciFunction, second: PciFunction) -> PeerPath:
    """Return the path of peer-to-peer traffic between two functions of *node*."""
    return judge_peer_path(node, first, second)[0]


def judge_peer_path(
    node: Node, first: PciFunction, second: PciFunction
) -> tuple[PeerPath, PeerReason | None]:
    """Find the path of peer-to-peer traffic between two functions, and its cause.

    Each device is judged at its own port of the shared switch. The worse of the two reasons decides
    for both directions. The cause is None without a shared switch.
    """
    between = ports_between(node, first, second)
    if between is None:
        return PeerPath.NONE, None
    if not between:
        return PeerPath.UNKNOWN, PeerReason.UNREADABLE
    # The reason that overrides the others comes first.
    states = [
        _reason_at_port(node.function(port), device)
        for port, device in zip(between, (first, second), strict=True)
    ]
    for reason, where in _PATHS.items():
        if reason in states:
            return where, reason
    return PeerPath.SWITCH, PeerReason.FREE


def peer_path_by_reason(reason: PeerReason) -> PeerPath:
    """Return the path of two functions below one switch, from the cause that decides it."""
    return _PATHS.get(reason, PeerPath.SWITCH)


def ports_between(node: Node, first: PciFunction, second: PciFunction) -> tuple[str, ...] | None:
    """Return the two ports of the nearest shared switch that lead to *first* and *second*.

    Ports of switches further down send traffic for a neighbour elsewhere upwards, whether they
    redirect or not.

    :returns: the port of *first*, then of *second*; () if unknown, as for two functions of
        one device; None if they share no switch.
    """
    shared = [
        bridge
        for bridge, second_bridge in zip(first.path, second.path, strict=False)
        if bridge == second_bridge
    ]
    switch = next((bridge for bridge in reversed(shared) if _is_upstream(node, bridge)), None)
    if switch is None:
        return None
    below = first.path.index(switch) + 1
    sides = (first.path[below : below + 1], second.path[below : below + 1])
    if not all(sides) or sides[0] == sides[1]:
        return ()
    return sides[0] + sides[1]


def switch_paths_of(node: Node) -> dict[str, PeerPath]:
    """Return address of a switch -> the path of peer-to-peer traffic between its ports.

    Only switches with devices at several ports are included. A path is :attr:`PeerPath.ROOT` as
    soon as one pair is redirected.
    """
    below: dict[str, dict[str, PciFunction]] = {}
    for function in node.functions:
        if function.is_bridge:
            continue
        for above, port in itertools.pairwise(function.path):
            if _is_upstream(node, above):
                # One device represents all at its port.
                below.setdefault(above, {}).setdefault(port, function)
    paths = {}
    for switch, ports in below.items():
        if len(ports) < 2:
            continue
        states = {_reason_at_port(node.function(port), device) for port, device in ports.items()}
        paths[switch] = next(
            (where for reason, where in _PATHS.items() if reason in states), PeerPath.SWITCH
        )
    return paths


def _is_upstream(node: Node, address: str) -> bool:
    function = node.function(address)
    return function is not None and function.bridge is BridgeKind.UPSTREAM


#: In order of precedence: the first reason of either device decides for both.
_PATHS: Final = {
    PeerReason.REDIRECT: PeerPath.ROOT,
    PeerReason.NO_ATS: PeerPath.ROOT,
    PeerReason.UNREADABLE: PeerPath.UNKNOWN,
    PeerReason.ATS: PeerPath.SWITCH,
}


def _reason_at_port(port: PciFunction | None, device: PciFunction) -> PeerReason:
    """Return the way that *port* treats peer-to-peer requests of *device* below it."""
    if port is None or port.acs_control is None:
        return PeerReason.UNREADABLE
    if not port.acs_control & _REDIRECT:
        return PeerReason.FREE
    if not port.acs_control & _DIRECT:
        return PeerReason.REDIRECT
    if device.ats is None:
        return PeerReason.UNREADABLE
    return PeerReason.ATS if device.ats else PeerReason.NO_ATS
