# SPDX-License-Identifier: Apache-2.0
"""What a look at a server finds, and the words that two looks yield.

No word is written down by hand: each is what the difference of two looks says.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import attrs

from nova_hpc_common.level import Distance, Level, Location, common_level, distance_between

#: Host, PCI address on it.
Device = tuple[str, str]


@attrs.frozen
class Seen:
    """One look at a server, from Nova, Placement, the domain and the truth."""

    vm_state: str
    task_state: str | None
    host: str | None
    #: Nova's records of the PCI devices.
    devices: frozenset[Device]
    #: Placement's allocation: provider's name, resource class -> amount.
    allocations: Mapping[tuple[str, str], int]
    #: What this project keeps with the server.
    records: Mapping[str, str]
    #: The domain that runs (else the one that is defined); None: there is none.
    domain: str | None
    running: bool
    #: Truth of the host: where each device sits, and what it is.
    places: Mapping[str, Location]
    kinds: Mapping[str, str]
    #: From the domain: host address -> place in the guest's tree; None: not in a tree.
    tree: Mapping[str, Location | None]
    #: From the domain: host address -> address in the guest.
    seats: Mapping[str, str]
    #: From the domain: the PCI controllers, and what else a guest's PCIe depends on, as XML.
    hardware: tuple[str, ...]

    @property
    def mine(self) -> frozenset[Device]:
        """The devices on the server's own host; a move holds some on another for a while."""
        return frozenset(each for each in self.devices if each[0] == self.host)

    def claimed(self) -> dict[str, int]:
        """Provider's address -> devices, as Nova has recorded them on the server's host."""
        found: dict[str, int] = {}
        for _, address in self.mine:
            # Virtual functions are counted at their adapter.
            provider = address if self.kinds[address] != "vf" else f"{address[:-1]}0"
            found[provider] = found.get(provider, 0) + 1
        return found

    def allocated(self) -> dict[str, int]:
        """The same, as Placement has it."""
        found = {}
        for (provider, _), amount in self.allocations.items():
            host, _, address = provider.partition("_")
            if host == self.host and address:
                found[address] = amount
        return found

    def level(self) -> Level | None:
        """The tightest level at which each GPU has an adapter of its own; None: none has."""
        if not self.mine:
            return None
        addresses = [address for _, address in self.mine]
        gpus = sorted(each for each in addresses if self.kinds[each] == "gpu")
        adapters = sorted(each for each in addresses if self.kinds[each] != "gpu")
        best = None
        for order in itertools.permutations(adapters, len(gpus)):
            found = max(
                (
                    common_level([self.places[gpu], self.places[adapter]])
                    for gpu, adapter in zip(gpus, order, strict=True)
                ),
                default=None,
            )
            if found is not None and (best is None or found < best):
                best = found
        return best

    def wrong_pairs(self) -> list[tuple[str, str, Distance, Distance | None]]:
        """Pairs of devices that are not as far apart in the guest as on the host."""
        wrong = []
        for one, other in itertools.combinations(sorted(self.tree), 2):
            here = distance_between(self.places[one], self.places[other])
            first, second = self.tree[one], self.tree[other]
            there = distance_between(first, second) if first and second else None
            if here is not there:
                wrong.append((one, other, here, there))
        return wrong

    def whole(self) -> bool:
        """Whether the domain has exactly the devices that Nova has recorded."""
        return set(self.seats) == {address for _, address in self.mine}


# -- words ---------------------------------------------------------------------


def devices(before: Seen | None, after: Seen) -> str:
    """Which devices the server has after an action."""
    if not after.mine:
        return "STILL HELD" if after.devices or after.allocations else "given back"
    if before is None or not before.mine:
        return "claimed"
    if after.mine == before.mine:
        return "the same"
    if before.mine < after.mine:
        return "the same and more"
    if after.mine < before.mine:
        return "the others stay"
    return "others" if after.host == before.host else "others, on another host"


def alignment(before: Seen | None, after: Seen, asked: Level) -> str:
    """Whether the server's devices are as near to each other as its flavor asks."""
    reached = after.level()
    if reached is None:
        return "no devices"
    if reached > asked:
        return f"LOST ({reached.word})"
    if before is not None and (before.mine <= after.mine or after.mine < before.mine):
        return f"kept ({reached.word})" if before.mine else f"made ({reached.word})"
    return f"made ({reached.word})"


def tree(before: Seen | None, after: Seen) -> str:
    """Whether the distance of each pair of devices is that on the host."""
    if not after.mine:
        return "no devices" if after.domain is None else "GUEST HELD"
    if after.domain is None:
        return "no guest"
    wrong = {device for one, other, *_ in after.wrong_pairs() for device in (one, other)}
    fresh = {address for _, address in after.mine - before.mine} if before is not None else set()
    if not after.whole():
        return "LOST"
    if wrong:
        late = fresh and all({one, other} & fresh for one, other, *_ in after.wrong_pairs())
        return "kept; the new device is not in it yet" if late else "LOST"
    if before is not None and before.wrong_pairs():
        return "made as on the host"
    if before is None or before.domain is None or not before.mine:
        return "made as on the host"
    stay = before.mine <= after.mine or after.mine <= before.mine
    return "kept" if stay else "made as on the host"


def addresses(before: Seen | None, after: Seen) -> str:
    """Whether the guest finds its devices and their bridges where they were."""
    if not after.mine:
        return "no devices"
    if after.domain is None:
        return "no guest"
    if not after.whole():
        return "LOST"
    if before is None or before.domain is None or not before.mine:
        return "given"
    if before.mine < after.mine and before.seats.items() <= after.seats.items():
        return "kept; one more"
    if before.mine == after.mine and before.seats != after.seats:
        return "others" if before.wrong_pairs() else "LOST"
    if after.mine < before.mine and after.seats.items() <= before.seats.items():
        return "kept"
    if sorted(before.seats.values()) != sorted(after.seats.values()):
        return "others"
    were, are = set(before.hardware), set(after.hardware)
    if were == are:
        return "kept"
    if were < are:
        return f"kept; more ports ({len(are - were)})"
    return f"kept; fewer ports ({len(were - are)})" if are < were else "kept; other bridges"
