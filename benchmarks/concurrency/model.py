# SPDX-License-Identifier: Apache-2.0
"""The model of a race, its outcomes, and their counts. The module does not import Nova."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

PLACED = "placed"
REFUSED = "refused"  # a clean NoValidHost
BROKEN = "broken"  # anything else


@attrs.frozen
class Cloud:
    """The hosts, all equal, each with pairs of switches."""

    hosts: int = 50
    switches: int = 4
    gpus: int = 2  # below each switch
    functions: int = 0  # of the one adapter below each switch

    @property
    def devices(self) -> int:
        return self.hosts * self.switches * self.gpus


@attrs.frozen
class Variant:
    """One way to set up the schedulers."""

    title: str
    ours: bool
    #: Options that differ from the other variants: (group, option) -> value.
    options: Mapping[tuple[str, str], object] = attrs.field(factory=dict)

    def specs(self, gpus: int) -> dict[str, str]:
        """Extra specs of the flavor."""
        found = {"pci_passthrough:alias": f"gpu:{gpus}"}
        return found | {"hpc:affinity": "switch"} if self.ours else found


_SHUFFLE = {("filter_scheduler", "shuffle_best_same_weighed_hosts"): True}
_SPREAD = ("hpc", "spread_equal_sets")

VARIANTS: Mapping[str, Variant] = {
    "stock": Variant("stock Nova", False),
    "stock-shuffle": Variant("stock Nova, equal hosts shuffled", False, _SHUFFLE),
    "ours": Variant("nova-hpc, no spreading", True, {_SPREAD: False}),
    "ours-spread": Variant("nova-hpc, device sets spread", True, {_SPREAD: True}),
    "ours-spread-shuffle": Variant(
        "nova-hpc, device sets spread, equal hosts shuffled", True, {_SPREAD: True} | _SHUFFLE
    ),
}


@attrs.frozen
class Create:
    """The outcome of one server at one scheduler."""

    server: str
    outcome: str
    text: str = ""
    started: float = 0.0
    ended: float = 0.0
    host: str = ""
    #: Providers of the devices, one entry a device.
    devices: tuple[str, ...] = ()
    #: Number of claims in Placement; all were lost except a last successful one.
    claims: int = 0
    #: Whether Placement still had devices that fit, after this one was refused.
    free_left: bool = False
    worker: int = 0


@attrs.frozen
class Tally:
    """One row of the table."""

    variant: str
    workers: int
    gpus: int
    creates: int
    placed: int
    given_twice: int
    refused: int
    broken: int
    spurious: int
    lost_claims: int
    node_refusals: int
    scattered: int
    repeated: int
    filled: int
    devices: int
    seconds: float

    @property
    def rate(self) -> float:
        """Answered creates per second."""
        return self.creates / self.seconds if self.seconds else 0.0


def seconds(creates: Iterable[Create]) -> float:
    """Seconds from the first start to the last end."""
    found = list(creates)
    if not found:
        return 0.0
    return max(each.ended for each in found) - min(each.started for each in found)


def lost_claims(creates: Iterable[Create]) -> int:
    """Number of claims that Placement refused because another scheduler was first."""
    return sum(each.claims - (each.outcome == PLACED) for each in creates)


def given_twice(creates: Iterable[Create]) -> int:
    """Number of devices in the answers for more than one server."""
    seen: set[str] = set()
    twice: set[str] = set()
    for each in creates:
        for device in each.devices:
            (twice if device in seen else seen).add(device)
    return len(twice)


def room(free: Iterable[tuple[str, str]], gpus: int, together: bool) -> bool:
    """Whether one more server of *gpus* devices fits.

    :param free: host and switch of every free device.
    :param together: whether the devices must be below one switch.
    """
    counts: dict[tuple[str, str], int] = {}
    for host, switch in free:
        key = (host, switch if together else "")
        counts[key] = counts.get(key, 0) + 1
    return any(count >= gpus for count in counts.values())
