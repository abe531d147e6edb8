# SPDX-License-Identifier: Apache-2.0
"""Which functions of an adapter can serve ports with bandwidth, and where it is taken."""

from __future__ import annotations

import itertools
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.from_nova import bandwidth, providers
from nova_hpc.from_nova.bandwidth import Bandwidth

GIGABIT = Bandwidth({"NET_BW_EGR_KILOBIT_PER_SEC": 1000, "NET_BW_IGR_KILOBIT_PER_SEC": 1000})
KEYS = ("port 0", "port 1", "port 2")


def _can(parts: list[tuple[int, frozenset[str]]], ports: tuple[str, ...]) -> bool:
    """Whether each of *ports* gets a function of its own, by trying all."""
    functions = [serves for count, serves in parts for _ in range(count)]
    return any(
        all(port in functions[each] for port, each in zip(ports, chosen, strict=True))
        for chosen in itertools.permutations(range(len(functions)), len(ports))
    )


@given(
    st.integers(1, 4),
    st.dictionaries(st.sampled_from(KEYS), st.integers(0, 6), min_size=1),
    st.lists(st.sampled_from(KEYS), max_size=3),
)
def test_every_port_alone_is_bounded_and_none_more(count, amounts, wanted) -> None:
    """Of one kind with bandwidth, together with those without, as many as there is room for."""
    serves = frozenset(KEYS)
    found = bandwidth.split_adapter_functions(count, serves, amounts)
    assert sum(number for number, _ in found) <= count
    bounded = [port for port in wanted if port in amounts]
    if len(set(bounded)) < 2:
        possible = len(wanted) <= count and all(
            wanted.count(port) <= amounts[port] for port in bounded
        )
        assert _can(found, tuple(wanted)) == possible


def test_the_candidate_takes_the_bandwidth_from_the_chosen_adapter() -> None:
    candidate = {
        "allocations": {
            "host": {"resources": {"VCPU": 1}},
            "nic 0": {"resources": GIGABIT.times(2)},
        },
        "mappings": {"": ["host"], "one": ["nic 0"], "two": ["nic 0"]},
    }
    asked = {"one": GIGABIT, "two": GIGABIT}
    found = bandwidth.move_port_bandwidth(candidate, asked, {"one": "nic 0", "two": "nic 1"})
    assert found["allocations"] == {
        "host": {"resources": {"VCPU": 1}},
        "nic 0": {"resources": GIGABIT.times(1)},
        "nic 1": {"resources": GIGABIT.times(1)},
    }
    assert found["mappings"] == {"": ["host"], "one": ["nic 0"], "two": ["nic 1"]}
    both = bandwidth.move_port_bandwidth(candidate, asked, {"one": "nic 1", "two": "nic 1"})
    assert set(both["allocations"]) == {"host", "nic 1"}
    assert candidate["allocations"]["nic 0"]["resources"] == GIGABIT.times(2)


def test_providers_are_known_by_host_and_interface() -> None:
    def ask(resources, traits):
        amount = resources["NET_BW_EGR_KILOBIT_PER_SEC"] // 1000
        rows = [("nic 0", "alpha:agent:ens1", 1), ("nic 1", "alpha:agent:ens2", 3)]
        return [
            {"uuid": uuid, "name": name, "root_provider_uuid": "alpha's"}
            for uuid, name, most in [*rows, ("nic 2", "somebody else's", 3)]
            if amount <= most
        ]

    with mock.patch.object(providers, "ask_providers", ask):
        found = bandwidth.find_bandwidth_offers(GIGABIT, 2)
        assert found is not None
        assert found.of("alpha's", "ens1") == ("nic 0", 1)
        assert found.of("alpha's", "ens2") == ("nic 1", 2)
        assert found.of("beta's", "ens1") is None
    with mock.patch.object(providers, "ask_providers", return_value=None):
        assert bandwidth.find_bandwidth_offers(GIGABIT, 2) is None
