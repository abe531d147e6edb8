# SPDX-License-Identifier: Apache-2.0
"""Direct ports with guaranteed bandwidth: adapters that have it, and its allocation there.

Neutron requests the bandwidth of such a port from Placement, and reports the bandwidth of
each adapter: a provider for each, below the compute node's own, with the name
``HOST:AGENT:INTERFACE``. Nova requests it in a request group that has the port's id
(``RequestGroup.from_port_request``). When Nova builds the server, it reads the interface from
the name of the allocated provider, and takes a function of only that adapter
(``update_pci_request_with_placement_allocations`` of nova/compute/utils.py). Nova's filters
do not see this connection: the scheduler's candidate may name the bandwidth of one adapter
although only another has a free function, or although the GPUs are elsewhere.

So an adapter serves such a port as often as its provider has the bandwidth, and the
candidate takes it from the chosen adapter. If ports request different amounts of one
adapter, each amount is checked by itself. Placement checks their sum when the candidate is
claimed.
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
    """The resources that one port requests from Placement for its adapter."""

    #: Resource class -> amount.
    resources: tuple[tuple[str, int], ...] = attrs.field(converter=_sort_amounts)
    #: Traits of its physical network and kind.
    traits: frozenset[str] = frozenset()

    def times(self, count: int) -> dict[str, int]:
        """Return resource class -> amount that *count* ports request together."""
        return {name: amount * count for name, amount in self.resources}

    def __str__(self) -> str:
        """E.g. ``1000 NET_BW_EGR_KILOBIT_PER_SEC``."""
        return ", ".join(f"{amount} {name}" for name, amount in self.resources)


@attrs.frozen
class Offers:
    """The adapters of all hosts whose free bandwidth suffices for a port, from Placement."""

    #: provider of the compute node, interface -> its provider, and the number of ports.
    by_interface: Mapping[tuple[str, str], tuple[str, int]]
    #: The largest number of ports that was queried.
    asked: int

    def of(self, root: str | None, interface: object) -> tuple[str, int] | None:
        """Find the offer of a network interface on a host.

        :param root: UUID of the host's root provider.
        :returns: the UUID of the adapter's provider, and the number of ports that its free
            bandwidth can serve; None if it offers none.
        """
        return self.by_interface.get((str(root), str(interface)))


def bandwidth_of_request(
    request: objects.InstancePCIRequest, groups: Iterable[objects.RequestGroup]
) -> Bandwidth | None:
    """Find the bandwidth that a port's device must have in Placement; None if it needs none.

    :param groups: request groups of the server.
    """
    port = request.requester_id if "requester_id" in request else None
    for group in groups:
        if port and group.requester_id == port and group.resources:
            return Bandwidth(group.resources, frozenset(group.required_traits or ()))
    return None


def find_bandwidth_offers(
    wanted: Bandwidth, ports: int, answer: PlacementAnswer | None = None
) -> Offers | None:
    """Find the adapters with enough free bandwidth for a port, by Placement.

    :param ports: number of ports of that kind.
    :param answer: Placement's free amounts. It lacks the names of providers, which contain
        the interface, so these are queried once. If None, everything is queried.
    :returns: None if Placement could not be queried; the claim then decides.
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
    """Return the number of ports that the free bandwidth of a provider can serve."""
    return min(
        (answer.free(provider, name) // amount for name, amount in wanted.resources if amount),
        default=0,
    )


def _interface_of_provider(name: str) -> str | None:
    """Return the network interface in a provider's name; None if Nova would refuse the name."""
    parts = name.split(":")
    return parts[2] if len(parts) == 3 else None


def split_adapter_functions(
    count: int, serves: frozenset[str], amounts: Mapping[str, int]
) -> list[tuple[int, frozenset[str]]]:
    """Divide the free functions of an adapter by the ports that each of them may serve.

    :param count: of free functions.
    :param serves: the wants and ports that each of them can serve, apart from bandwidth.
    :param amounts: port with bandwidth among *serves* -> the number of such ports
        for which the adapter has bandwidth.
    :returns: the number of functions of each kind; functions that serve nothing are left out.
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
    """Return a copy of *candidate* that takes the bandwidth of ports from other adapters.

    :param candidate: Placement's allocation candidate.
    :param groups: request group of a port -> its bandwidth.
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
