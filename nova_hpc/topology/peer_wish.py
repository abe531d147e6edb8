# SPDX-License-Identifier: Apache-2.0
"""The operator's setting for peer-to-peer, and the changes that a node needs for it. Pure.

Only three bits of a port's ACS control register are ever changed: the redirect of
requests and of completions, and direct translated peer-to-peer. No bit is changed if
devices that the kernel keeps apart could then reach each other past the IOMMU.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.topology import iommu, peer
from nova_hpc.topology.model import Node, PciFunction, address_key
from nova_hpc.topology.peer import PeerPair, PeerPath, PeerReason

#: Bits of the ACS capability and control registers (PCIe 7.7.11.2, 7.7.11.3).
BLOCKING: Final = 0x02
REDIRECT: Final = 0x04 | 0x08
DIRECT: Final = 0x40
#: All bits that are ever changed.
CHANGED: Final = REDIRECT | DIRECT

_MELLANOX: Final = "15b3"
_MOST_NAMED: Final = 4


class PeerWish(enum.Enum):
    """The values of ``[hpc]peer_to_peer``: the wanted path between GPUs and adapters below a
    switch.
    """

    #: Nothing is set.
    KEEP = "keep"
    #: Translated requests stay below the switch; all other requests are redirected.
    TRANSLATED = "translated"
    #: Nothing is redirected, unless the redirect keeps devices of different groups apart.
    DIRECT = "direct"


@attrs.frozen
class AcsChange:
    """A change of the ACS control register of one port."""

    port: str
    before: int
    after: int


@attrs.frozen
class Lack:
    """An obstacle at one port or device that keeps a pair from meeting ``[hpc]peer_to_peer``."""

    #: Address of the port or device.
    address: str
    #: The fault, for people.
    what: str
    #: The remedy; "" if there is none.
    cure: str = ""
    #: The registers could not be read, so the fault is possible and not certain.
    unread: bool = False

    @property
    def text(self) -> str:
        """The obstacle and its remedy, as a text for people."""
        return f"{self.what}: {self.cure}" if self.cure else self.what


@attrs.frozen
class PeerPlan:
    """The register changes for ``[hpc]peer_to_peer``, and the obstacles of pairs that cannot meet
    it.
    """

    changes: tuple[AcsChange, ...] = ()
    #: The obstacles for each pair that does not get the configured path.
    lacks: Mapping[PeerPair, tuple[Lack, ...]] = attrs.field(factory=dict, hash=False)

    @property
    def texts(self) -> tuple[str, ...]:
        """One sentence for each obstacle, sorted by address."""
        sentences = {(lack.address, lack.text) for lacks in self.lacks.values() for lack in lacks}
        return tuple(
            f"{address}: {text}"
            for address, text in sorted(
                sentences, key=lambda sentence: (address_key(sentence[0]), sentence[1])
            )
        )


def plan_peer_changes(node: Node, wish: PeerWish) -> PeerPlan:
    """Plan the changes of ACS registers for the setting *wish* of ``[hpc]peer_to_peer``.

    Both ports of each pair are checked. A port that must not be changed, or a device without
    ATS, is an obstacle for its pairs. Changes of other ports are planned all the same, because
    other pairs may use them.
    """
    if wish is PeerWish.KEEP:
        return PeerPlan()
    changes: dict[str, AcsChange] = {}
    lacks: dict[PeerPair, tuple[Lack, ...]] = {}
    refused: dict[str, Lack | None] = {}
    for pair in peer.find_peer_pairs(node):
        against: list[Lack] = []
        for port, device in _sides_of_pair(node, pair):
            if port not in refused:
                refused[port] = _refusal_for_port(node, port, wish)
            refusal = refused[port]
            change = _change_for_port(node.function(port), wish)
            if refusal is not None:
                against.append(refusal)
            elif change is not None:
                changes[port] = change
            if wish is PeerWish.TRANSLATED and _does_redirect(node.function(port)):
                against += _device_lacks(node, device)
        if not against and pair.why is PeerReason.UNREADABLE:
            against.append(
                Lack(pair.gpu, "the ports above it cannot be distinguished", unread=True)
            )
        if against:
            lacks[pair] = tuple(dict.fromkeys(against))
    return PeerPlan(tuple(changes[address] for address in sorted(changes, key=address_key)), lacks)


def _sides_of_pair(node: Node, pair: PeerPair) -> Iterator[tuple[str, PciFunction]]:
    """Yield the two ports of a pair of GPU and adapter, each with the function below it."""
    gpu, adapter = node.function(pair.gpu), node.function(pair.functions[0])
    if gpu is not None and adapter is not None:
        yield from zip(peer.ports_between(node, gpu, adapter) or (), (gpu, adapter), strict=False)


def _does_redirect(port: PciFunction | None) -> bool:
    return port is not None and bool((port.acs_control or 0) & REDIRECT)


def _change_for_port(port: PciFunction | None, wish: PeerWish) -> AcsChange | None:
    """Compute the new ACS register of a port that redirects; None if it stays as it is.

    TRANSLATED adds direct translated peer-to-peer, DIRECT removes the redirects.
    """
    if port is None or port.acs_control is None or not _does_redirect(port):
        return None
    before = port.acs_control
    after = before | DIRECT if wish is PeerWish.TRANSLATED else before & ~REDIRECT
    return None if after == before else AcsChange(port.address, before, after)


def _refusal_for_port(node: Node, address: str, wish: PeerWish) -> Lack | None:
    """Return the reason why a port cannot or must not be set; None if it can."""
    port = node.function(address)
    if port is None or port.acs_control is None:
        return Lack(address, "its registers cannot be read; only root can", unread=True)
    change = _change_for_port(port, wish)
    if change is None:
        return None
    if wish is PeerWish.TRANSLATED:
        if not (port.acs_capability or 0) & DIRECT:
            return Lack(address, "the switch has no direct translated peer-to-peer")
        if port.acs_control & BLOCKING:
            return Lack(
                address,
                "the kernel blocks translated requests there (an untrusted port, or pci=noats)",
            )
        return None
    lost = iommu.find_joined_devices(node, {address: change.after})
    if not lost:
        return None
    named = ", ".join(lost[:_MOST_NAMED]) + (" and others" if len(lost) > _MOST_NAMED else "")
    return Lack(
        address,
        f"without redirect {named} could reach each other past the IOMMU, which keeps them "
        "apart now in groups of their own; use translated",
    )


def _device_lacks(node: Node, device: PciFunction) -> Iterator[Lack]:
    """Yield the reason why a device without ATS prevents TRANSLATED, on its physical function."""
    if device.ats is None:
        yield Lack(device.address, "whether it has ATS cannot be read; only root can", unread=True)
    elif not device.ats:
        physical = device.physical_function or device.address
        owner = node.function(physical)
        if owner is not None and owner.vendor_id == _MELLANOX:
            yield Lack(
                physical,
                "its firmware does not offer ATS",
                f"mlxconfig -d {physical} set ATS_ENABLED=1, and a cold start of the node",
            )
        else:
            yield Lack(physical, "it has no ATS, or its firmware does not offer it")


def is_pair_as_wished(pair: PeerPair, wish: PeerWish) -> bool | None:
    """Whether a pair meets ``[hpc]peer_to_peer``; None if that is KEEP, or if the path is
    unknown.
    """
    return is_path_as_wished(pair.path, pair.why, wish)


def is_path_as_wished(path: PeerPath, reason: PeerReason, wish: PeerWish) -> bool | None:
    """Whether a path meets ``[hpc]peer_to_peer``; None if that is KEEP, or if the path is
    unknown.
    """
    if wish is PeerWish.KEEP or path is PeerPath.UNKNOWN:
        return None
    if wish is PeerWish.DIRECT:
        return reason is PeerReason.FREE
    return path is PeerPath.SWITCH
