# SPDX-License-Identifier: Apache-2.0
"""What a refused user is advised: it makes a flavor that is taken, and where it can, a server."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

import pytest

from nova_hpc.placement import flavor, user_reasons
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import (
    DevicePool,
    FreeHost,
    HostNode,
    Request,
    Unmet,
    Want,
    WantedCell,
)
from nova_hpc_common.level import Location

NUMA = flavor.NUMA_POLICY
LEVELS, POLICIES = flavor.WORDS[flavor.AFFINITY], (None, "preferred")
NOVA = ("legacy", "required", "preferred", "socket", None)


def host(numa: int | None = None, socket: int | None = None) -> FreeHost:
    """Two NUMA nodes on two sockets; GPUs in pairs below two switches, wherever they are."""
    pools = tuple(
        DevicePool(
            id=f"gpu{number}",
            name=f"0000:{number:02x}:00.0",
            location=Location(numa, socket, f"pci{number // 2}", (f"switch{number // 2}",)),
            free=1,
            serves=frozenset({"gpu"}),
            role="gpu",
        )
        for number in range(4)
    )
    nodes = tuple(
        HostNode(number, socket=number, dedicated_cpus=16, pages={2048: 9000})
        for number in range(2)
    )
    return FreeHost("node7", pools, nodes)


def request(specs: Mapping[str, str], cells: int, count: int = 2) -> Request:
    guest = tuple(WantedCell(number, 4, 1 << 20, 2048) for number in range(cells))
    return flavor.build_request(specs, [Want("gpu", "gpu", count)], guest)


def flavors() -> Iterator[tuple[dict[str, str], int]]:
    """Every flavor that is taken, by the keys that contradict each other."""
    for level, policy, nova, mode, cells in itertools.product(
        LEVELS, POLICIES, NOVA, (None, "mirror"), range(3)
    ):
        pairs = (flavor.AFFINITY, level), (flavor.AFFINITY_POLICY, policy), (NUMA, nova)
        specs = {key: value for key, value in pairs if value is not None}
        specs |= {flavor.GUEST_TOPOLOGY: mode} if mode else {}
        try:
            request(specs, cells)
        except flavor.FlavorError:
            continue
        yield specs, cells


def advised(sentence: str) -> list[dict[str, str]]:
    """Each advice of a sentence that changes the flavor: key -> value."""
    text = sentence.partition("; ")[2].removesuffix(" may help")
    found = []
    for one in text.split(" or "):
        words = one.replace(" with ", " and ").split(" and ")
        pairs = [re.fullmatch(r"(h\w+:\w+) (\w+)", word) for word in words]
        if all(pairs):
            found.append({each[1]: each[2] for each in pairs})
    return found


def test_every_advice_makes_a_flavor_that_is_taken() -> None:
    """Whatever wish is not met; before, half of them were refused as well."""
    seen = 0
    for (specs, cells), unmet in itertools.product(list(flavors()), Unmet):
        asked = request(specs, cells)
        for change in advised(user_reasons.refusal_sentence(asked, unmet)):
            seen += 1
            request({**specs, **change}, cells)
    assert seen > 500


@pytest.mark.parametrize("cells", [1, 2])
def test_devices_of_which_nobody_knows_the_numa_node(cells: int) -> None:
    """No pinned server that wishes a place can have them; each advice gives it a server."""
    refused = 0
    for specs, number in flavors():
        if number != cells:
            continue
        asked = request(specs, cells)
        answer = choose_device_sets(asked, host())
        if answer.sets:
            assert "preferred" in specs.values()
            continue
        refused += 1
        assert answer.miss is not None
        assert answer.miss.unmet is Unmet.KNOWN
        assert "4 gpu free, but only of 0 gpu is it known on which NUMA node" in answer.miss.user
        assert "nova-hpc doctor" in answer.miss.operator
        said = user_reasons.refusal_sentence(asked, user_reasons.nearest_unmet_wish([answer.miss]))
        assert said.startswith("No host with 2 gpu free reports on which NUMA node they are; ")
        changes = advised(said)
        assert changes
        for change in changes:
            assert choose_device_sets(request({**specs, **change}, cells), host()).sets, (
                specs,
                change,
            )
        mirror = specs.get(flavor.GUEST_TOPOLOGY) == "mirror"
        assert all((flavor.GUEST_TOPOLOGY in each) is mirror for each in changes)
    assert refused > 8


def test_a_host_whose_devices_are_too_few_is_not_the_nearest() -> None:
    asked = request({flavor.AFFINITY: "switch", NUMA: "required"}, 1)
    few = choose_device_sets(asked, FreeHost("a", host().pools[:1], host().nodes)).miss
    unknown = choose_device_sets(asked, host()).miss
    known = choose_device_sets(asked, FreeHost("b", host(0, 0).pools[1:3], host().nodes)).miss
    assert few is not None
    assert unknown is not None
    assert known is not None
    assert user_reasons.nearest_unmet_wish([few, unknown]) is Unmet.KNOWN
    assert user_reasons.nearest_unmet_wish([few, unknown, known]) is Unmet.TOGETHER


def test_where_the_numa_node_does_not_matter_nothing_is_said_of_it() -> None:
    """A guest that is not pinned can be below one switch wherever that is."""
    specs = {flavor.AFFINITY: "switch"}
    assert choose_device_sets(request(specs, 0), host()).sets
    miss = choose_device_sets(request(specs, 0, 4), host()).miss
    assert miss is not None
    assert miss.unmet is Unmet.TOGETHER
    assert choose_device_sets(
        request({flavor.AFFINITY: "switch", NUMA: "required"}, 1), host(1, 1)
    ).sets
