# SPDX-License-Identifier: Apache-2.0
"""Allocation candidates are made from a template, which stays as it was."""

from __future__ import annotations

import collections
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.from_nova.candidates import (
    CandidateError,
    RequestedDevice,
    find_shared_providers,
    find_template,
    synthesise_candidate,
)

GPU, VF = "CUSTOM_GPU", "CUSTOM_VF"
UNITS = (
    RequestedDevice("a-0", GPU),
    RequestedDevice("a-1", GPU),
    RequestedDevice("b-0", VF),
    RequestedDevice("b-1", VF),
)


def template() -> dict:
    return {
        "allocations": {
            "root": {"resources": {"PCPU": 4, "MEMORY_MB": 1024}},
            "shared": {"resources": {"DISK_GB": 10}},
            "g1": {"resources": {GPU: 1}},
            "g2": {"resources": {GPU: 1}},
            "pf1": {"resources": {VF: 2}},
        },
        "mappings": {
            "": ["root", "shared"],
            "a-0": ["g1"],
            "a-1": ["g2"],
            "b-0": ["pf1"],
            "b-1": ["pf1"],
            "port": ["root"],
        },
    }


def test_devices_are_replaced_and_nothing_else() -> None:
    made = synthesise_candidate(
        template(), UNITS, {"a-0": "g3", "a-1": "g2", "b-0": "pf1", "b-1": "pf2"}
    )
    assert made == {
        "allocations": {
            "root": {"resources": {"PCPU": 4, "MEMORY_MB": 1024}},
            "shared": {"resources": {"DISK_GB": 10}},
            "g3": {"resources": {GPU: 1}},
            "g2": {"resources": {GPU: 1}},
            "pf1": {"resources": {VF: 1}},
            "pf2": {"resources": {VF: 1}},
        },
        "mappings": {
            "": ["root", "shared"],
            "a-0": ["g3"],
            "a-1": ["g2"],
            "b-0": ["pf1"],
            "b-1": ["pf2"],
            "port": ["root"],
        },
    }


def test_a_provider_of_something_else_keeps_it() -> None:
    """Bandwidth of a port may come from the very adapter of a function."""
    given_template = template()
    given_template["allocations"]["pf1"]["resources"]["NET_BW_EGR_KILOBIT_PER_SEC"] = 1000
    given_template["mappings"]["port"] = ["pf1"]
    made = synthesise_candidate(
        given_template, UNITS, {"a-0": "g1", "a-1": "g2", "b-0": "pf2", "b-1": "pf2"}
    )
    assert made["allocations"]["pf1"] == {"resources": {"NET_BW_EGR_KILOBIT_PER_SEC": 1000}}
    assert made["allocations"]["pf2"] == {"resources": {VF: 2}}
    assert made["mappings"]["port"] == ["pf1"]


@given(
    gpus=st.permutations(["g1", "g2", "g3", "g4"]),
    vfs=st.lists(st.sampled_from(["pf1", "pf2", "pf3"]), min_size=2, max_size=2),
)
def test_amounts_always_add_up(gpus: list[str], vfs: list[str]) -> None:
    before = template()
    kept = copy.deepcopy(before)
    providers = {"a-0": gpus[0], "a-1": gpus[1], "b-0": vfs[0], "b-1": vfs[1]}
    made = synthesise_candidate(before, UNITS, providers)
    assert before == kept
    wanted = collections.Counter((providers[u.group], u.resource_class) for u in UNITS)
    got = {
        (provider, name): amount
        for provider, allocation in made["allocations"].items()
        for name, amount in allocation["resources"].items()
        if name in (GPU, VF)
    }
    assert got == dict(wanted)
    assert all(allocation["resources"] for allocation in made["allocations"].values())
    # A second member of the same request starts from the template again.
    assert synthesise_candidate(before, UNITS, providers) == made


def test_a_template_that_contradicts_itself() -> None:
    broken = template()
    del broken["allocations"]["g1"]
    with pytest.raises(CandidateError, match="g1"):
        synthesise_candidate(broken, UNITS, {unit.group: "x" for unit in UNITS})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda candidate: candidate["mappings"].pop("a-1"),
        lambda candidate: candidate["mappings"].update({"a-1": []}),
        lambda candidate: candidate["mappings"].update({"a-1": ["g1", "g2"]}),
        lambda candidate: candidate.pop("mappings"),
        lambda candidate: candidate.pop("allocations"),
    ],
)
def test_the_first_usable_candidate_is_the_template(spoil) -> None:
    spoiled, good = template(), template()
    spoil(spoiled)
    assert find_template([spoiled, good], UNITS) is good
    assert find_template([spoiled], UNITS) is None
    assert find_template([], UNITS) is None


def test_a_provider_of_two_groups_is_shared():
    units = [
        RequestedDevice("gpu-0", "GPU"),
        RequestedDevice("vf-0", "VF"),
        RequestedDevice("vf-1", "VF"),
    ]
    mappings = {"": ["host"], "gpu-0": ["host"], "vf-0": ["pf1"], "vf-1": ["pf2"], "port": ["b"]}

    def crowded(**changed):
        return find_shared_providers({"mappings": mappings | changed}, units)

    assert crowded() == frozenset()
    assert crowded(**{"vf-1": ["pf1"]}) == {"pf1"}
    assert crowded(port=["pf2"]) == {"pf2"}
    # None of the flavor's devices is there.
    assert crowded(port=["b"], other=["b"]) == frozenset()
