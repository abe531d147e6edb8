# SPDX-License-Identifier: Apache-2.0
"""Direct ports with guaranteed bandwidth: which adapters have it, and that it is taken there.

Neutron asks Placement for the bandwidth of such a port, and reports what each adapter
has: a provider for each, below the compute node's own, which is named
``HOST:AGENT:INTERFACE``. Nova asks for it in a request group that has the port's id
(``RequestGroup.from_port_request``). When the server is built, it reads the interface from
the name of the provider that was allocated, and takes a function of that adapter alone
(``update_pci_request_with_placement_allocations`` of nova/compute/utils.py). Nova's filters
know of no such bond: the scheduler's candidate may name the bandwidth of one adapter
where only another has a free function, or where the GPUs are elsewhere.

So an adapter serves such a port as often as its provider has the bandwidth, and the
candidate takes it from the adapter that was chosen. For ports that want different
amounts of one adapter each amount is asked about by itself: whether they go together,
Placement says when the candidate is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
from nova import objects

from nova_hpc.from_nova import providers
from nova_hpc.from_nova.placement_answer import PlacementAnswer
from nova_hpc.from_nova.providers import MOST

#: The key of a pool that names the interface of its adapter.
INTERFACE: Final = "parent_ifname"


def _sort_amounts(resources: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(resources.items()))


@attrs.frozen
class Bandwidth:
    """The resources that one port asks Placement for of its adapter."""

    #: Resource class -> amount.
    resources: tuple[tuple[str, int], ...] = attrs.field(converter=_sort_amounts)
    #: Its physical network and kind.
    traits: frozenset[str] = frozenset()

    def times(self, count: int) -> dict[str, int]:
        """The amounts for so many ports."""
        return {name: amount * count for name, amount in self.resources}

    def __str__(self) -> str:
        """E.g. ``1000 NET_BW_EGR_KILOBIT_PER_SEC``."""
        return ", ".join(f"{amount} {name}" for name, amount in self.resources)


@attrs.frozen
class Offers:
    """Which adapters have the bandwidth of one port, of all hosts."""

    #: provider of the compute node, interface -> its provider, and for how many ports.
    by_interface: Mapping[tuple[str, str], tuple[str, int]]
    #: So many were asked for at most.
    asked: int

    def of(self, root: str | None, interface: object) -> tuple[str, int] | None:
        """Provider of an adapter and for how many ports it has bandwidth."""
        return self.by_interface.get((str(root), str(interface)))


def bandwidth_of_request(
    request: objects.InstancePCIRequest, groups: Iterable[objects.RequestGroup]
) -> Bandwidth | None:
    """The bandwidth that a port's device has to have in Placement; None: none.

    :param groups: of the server.
    """
    port = request.requester_id if "requester_id" in request else None
    for group in groups:
        if port and group.requester_id == port and group.resources:
            return Bandwidth(group.resources, frozenset(group.required_traits or ()))
    return None


def find_bandwidth_offers(
    wanted: Bandwidth, ports: int, answer: PlacementAnswer | None = None
) -> Offers | None:
    """Which adapters have the bandwidth, by Placement.

    :param ports: of that kind.
    :param answer: what Placement said is free. It says no names of providers, which tell
        the interface: those are asked for, once. None: all is asked.
    :returns: None where Placement could not be asked: then its claim has to tell.
    """
    by_interface: dict[tuple[str, str], tuple[str, int]] = {}
    most = max(1, min(ports, MOST))
    for count in range(1, most + 1):
        listed = providers.ask_providers(wanted.times(count), wanted.traits)
        if listed is None:
            return None
        if not listed:
            break
        for provider in listed:
            interface = _interface_of_provider(str(provider["name"]))
            if interface is None:
                continue
            uuid, root = str(provider["uuid"]), str(provider["root_provider_uuid"])
            times = (
                count if answer is None else min(most, _count_supported_ports(wanted, uuid, answer))
            )
            if times:
                by_interface[root, interface] = (uuid, times)
        if answer is not None:
            break
    return Offers(by_interface, most)


def _count_supported_ports(wanted: Bandwidth, provider: str, answer: PlacementAnswer) -> int:
    """For how many ports a provider has the bandwidth."""
    return min(
        (answer.free(provider, name) // amount for name, amount in wanted.resources if amount),
        default=0,
    )


def _interface_of_provider(name: str) -> str | None:
    """As Nova reads the name of a provider; None: it would refuse to."""
    parts = name.split(":")
    return parts[2] if len(parts) == 3 else None


def split_adapter_functions(
    count: int, serves: frozenset[str], amounts: Mapping[str, int]
) -> list[tuple[int, frozenset[str]]]:
    """The functions of one adapter, by the ports that each of them may have.

    :param count: of free functions.
    :param serves: what each of them can serve, bandwidth aside.
    :param amounts: port, of those with bandwidth among *serves* -> how many of it the
        adapter has bandwidth for.
    :returns: how many there are of each kind; of those that serve nothing, none.
    """
    portions: list[tuple[int, frozenset[str]]] = []
    before = 0
    for bound in sorted({min(count, amount) for amount in amounts.values()} | {count}):
        left = serves - {key for key, amount in amounts.items() if min(count, amount) <= before}
        if bound > before and left:
            portions.append((bound - before, left))
        before = bound
    return portions


def move_port_bandwidth(
    candidate: Mapping[str, Any], groups: Mapping[str, Bandwidth], chosen: Mapping[str, str]
) -> dict[str, Any]:
    """*candidate*, which is not changed, with the bandwidth of ports from other adapters.

    :param groups: request group of a port -> what it asks for.
    :param chosen: request group -> provider of the adapter that serves the port.
    """
    moving = {
        group: provider
        for group, provider in chosen.items()
        if candidate["mappings"].get(group) not in ([provider], None)
    }
    if not moving:
        return dict(candidate)
    allocations = {
        provider: {**allocation, "resources": dict(allocation["resources"])}
        for provider, allocation in candidate["allocations"].items()
    }
    mappings = {
        group: list(provider_uuids) for group, provider_uuids in candidate["mappings"].items()
    }
    for group in moving:
        (former,) = mappings[group]
        _add_bandwidth(allocations[former]["resources"], groups[group], -1)
        if not allocations[former]["resources"]:
            del allocations[former]
    for group, provider in moving.items():
        _add_bandwidth(
            allocations.setdefault(provider, {"resources": {}})["resources"], groups[group], 1
        )
        mappings[group] = [provider]
    return {**candidate, "allocations": allocations, "mappings": mappings}


def _add_bandwidth(resources: dict[str, int], wanted: Bandwidth, sign: int) -> None:
    for name, amount in wanted.resources:
        left = resources.get(name, 0) + sign * amount
        if left > 0:
            resources[name] = left
        else:
            resources.pop(name, None)
