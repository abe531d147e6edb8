# SPDX-License-Identifier: Apache-2.0
"""The question for hosts: what it leaves out, and the candidates that are completed."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nova import objects
from nova.scheduler import utils

from nova_hpc.from_nova.candidates import CandidateError, RequestedDevice
from nova_hpc.from_nova.host_question import HostQuestion

GPU, NIC = "CUSTOM_GPU", "CUSTOM_NIC"
FAST = "CUSTOM_FAST"
TREE = "5f4e3c6c-9d1f-4f3e-8a31-1f1b8d2c7a10"


def group(name: str | None, resources: dict[str, int], *traits: str, **more: Any) -> Any:
    return objects.RequestGroup(
        requester_id=name, resources=resources, required_traits=set(traits), **more
    )


def device(name: str, resource_class: str = GPU, *traits: str, **more: Any) -> Any:
    return group(name, {resource_class: 1}, *traits, use_same_provider=True, **more)


def asked(*groups: Any, policy: str = "none", subtree: list[list[str]] | None = None) -> Any:
    own = [group(None, {"VCPU": 2}, use_same_provider=False), *groups]
    level = objects.RequestLevelParams(
        root_required=set(), root_forbidden=set(), same_subtree=subtree or []
    )
    made = utils.ResourceRequest.from_request_groups(own[1:], level, policy)
    made._rg_by_id = {each.requester_id: each for each in own}
    return made


DEVICES = (RequestedDevice("a", GPU), RequestedDevice("b", GPU))


def test_devices_are_left_out_and_the_rest_is_asked_as_it_is() -> None:
    port = group("port", {"NET_BW_EGR_KILOBIT_PER_SEC": 7}, use_same_provider=True)
    resources = asked(device("a"), device("b"), port)
    before = resources.to_querystring()
    question = HostQuestion.of(resources, DEVICES)
    assert question is not None
    shorter = question.shorten(resources)
    assert shorter.to_querystring() == asked(port).to_querystring()
    assert resources.to_querystring() == before


@pytest.mark.parametrize(
    "resources",
    [
        pytest.param(asked(device("a")), id="a group that is not there"),
        pytest.param(asked(device("a"), device("b", GPU, FAST)), id="two kinds of one class"),
        pytest.param(asked(device("a"), device("b", in_tree=TREE)), id="a tree of its own"),
        pytest.param(asked(device("a"), device("b", aggregates=[["x"]])), id="an aggregate"),
        pytest.param(
            asked(device("a"), device("b", forbidden_traits={FAST})), id="a forbidden trait"
        ),
        pytest.param(
            asked(device("a"), group("b", {GPU: 2}, use_same_provider=True)), id="two in one group"
        ),
        pytest.param(
            asked(device("a"), device("b"), group("x", {GPU: 1}, use_same_provider=True)),
            id="somebody else wants the class",
        ),
        pytest.param(
            asked(device("a"), device("b"), subtree=[["a", "b"]]), id="a subtree of devices"
        ),
    ],
)
def test_what_only_placement_can_say_is_asked_as_nova_asks_it(resources: Any) -> None:
    assert HostQuestion.of(resources, DEVICES) is None


def test_without_an_amount_of_the_host_there_is_nothing_to_ask_for() -> None:
    resources = asked(device("a"), device("b"))
    del resources._rg_by_id[None]
    assert HostQuestion.of(resources, DEVICES) is None
    assert HostQuestion.of(asked(), ()) is None


def summary(root: str, resources: dict[str, tuple[int, int]], *traits: str) -> dict[str, Any]:
    return {
        "root_provider_uuid": root,
        "traits": list(traits),
        "resources": {
            name: {"capacity": capacity, "used": used}
            for name, (capacity, used) in resources.items()
        },
    }


QUESTION = HostQuestion({GPU: ("a", "b")}, {GPU: frozenset({FAST})}, False)
HOST = summary("h", {"VCPU": (8, 0)})


def candidate(provider: str = "h", **more: list[str]) -> dict[str, Any]:
    return {
        "allocations": {provider: {"resources": {"VCPU": 2}}},
        "mappings": {"": [provider], **more},
    }


def test_the_example_of_the_module() -> None:
    """Of three GPUs one is in use; a host with one free GPU leaves the answer."""
    summaries = {
        "h": HOST,
        "g1": summary("h", {GPU: (1, 1)}, FAST),
        "g2": summary("h", {GPU: (1, 0)}, FAST),
        "g3": summary("h", {GPU: (1, 0)}, FAST),
        "other": summary("other", {"VCPU": (8, 0)}),
        "o1": summary("other", {GPU: (1, 0)}, FAST),
        "o2": summary("other", {GPU: (1, 0)}),
    }
    completed, left = QUESTION.complete([candidate(), candidate("other")], summaries)
    one = {"resources": {GPU: 1}}
    assert completed == [
        {
            "allocations": {"h": {"resources": {"VCPU": 2}}, "g2": one, "g3": one},
            "mappings": {"": ["h"], "a": ["g2"], "b": ["g3"]},
        }
    ]
    assert list(left) == ["h", "g1", "g2", "g3"]


def test_a_copy_shares_nothing_that_is_changed() -> None:
    """Nova copies a host's candidates; a claim that is tried again changes one in its place."""
    summaries = {"h": HOST, "g": summary("h", {GPU: (4, 0)}, FAST)}
    (first,), _ = QUESTION.complete([candidate()], summaries)
    before = json.dumps(first, sort_keys=True)
    again = copy.deepcopy([first])[0]
    assert json.dumps(again, sort_keys=True) == before
    again["allocations"]["g"]["resources"][GPU] = 9
    again["allocations"]["x"] = {}
    again["mappings"]["a"].append("x")
    assert json.dumps(first, sort_keys=True) == before


def test_storage_that_hosts_share_stays_in_the_answer() -> None:
    pool = summary("pool", {"DISK_GB": (99, 0)}, "MISC_SHARES_VIA_AGGREGATE")
    summaries = {"h": HOST, "g": summary("h", {GPU: (4, 0)}, FAST), "pool": pool}
    shared = candidate()
    shared["allocations"]["pool"] = {"resources": {"DISK_GB": 1}}
    completed, left = QUESTION.complete([shared], summaries)
    assert set(completed[0]["allocations"]) == {"h", "g", "pool"}
    assert completed[0]["allocations"]["g"] == {"resources": {GPU: 2}}
    assert set(left) == {"h", "g", "pool"}


@pytest.mark.parametrize(
    ("candidates", "summaries"),
    [
        pytest.param([candidate()], {}, id="no summary"),
        pytest.param([{"allocations": {}, "mappings": {}}], {"h": HOST}, id="no allocation"),
        pytest.param([{"allocations": None}], {"h": HOST}, id="no mappings"),
        pytest.param(
            [candidate()], {"h": {**HOST, "resources": {GPU: {"capacity": "x"}}}}, id="no number"
        ),
        pytest.param(
            [candidate()],
            {"h": HOST, "s": summary("s", {GPU: (9, 0)}, FAST, "MISC_SHARES_VIA_AGGREGATE")},
            id="a shared device",
        ),
    ],
)
def test_an_answer_of_another_form_is_no_answer(candidates: Any, summaries: Any) -> None:
    with pytest.raises(CandidateError):
        QUESTION.complete(copy.deepcopy(candidates), summaries)


PROVIDERS = st.lists(
    st.tuples(
        st.sampled_from(["h", "i"]),
        st.sampled_from([GPU, NIC]),
        st.integers(0, 3),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=7,
)


@given(PROVIDERS, st.integers(0, 3), st.integers(0, 3), st.booleans(), st.booleans())
def test_a_host_stays_where_each_group_can_have_a_device(
    providers: list[tuple[str, str, int, int, bool]],
    gpus: int,
    nics: int,
    isolated: bool,
    crowded: bool,
) -> None:
    """Held against all ways to give the groups providers."""
    groups = {
        name: [f"{name} {number}" for number in range(count)]
        for name, count in ((GPU, gpus), (NIC, nics))
        if count
    }
    question = HostQuestion(groups, {GPU: frozenset({FAST}), NIC: frozenset()}, isolated)
    summaries = {"h": HOST, "i": summary("i", {"VCPU": (8, 0)})}
    for number, (root, name, capacity, used, fast) in enumerate(providers):
        summaries[f"p{number}"] = summary(root, {name: (capacity, used)}, *([FAST] if fast else []))
    # A port has the first provider, whatever it is of.
    port = {"port": ["p0"]} if crowded and providers and providers[0][0] == "h" else {}
    completed, left = question.complete([candidate(**port), candidate("i")], summaries)

    def can(root: str) -> bool:
        wanted = [name for name, names in groups.items() for _ in names]
        own = [each for each, word in summaries.items() if word["root_provider_uuid"] == root]
        for chosen in itertools.product(own, repeat=len(wanted)):
            if isolated and (
                len(set(chosen)) < len(chosen)
                or (root == "h" and {*chosen} & {*port.get("port", ())})
            ):
                continue
            if all(
                chosen.count(provider) <= amounts.get("capacity", 0) - amounts.get("used", 0)
                and (name != GPU or FAST in summaries[provider]["traits"])
                for provider, name in zip(chosen, wanted, strict=True)
                for amounts in [summaries[provider]["resources"].get(name, {})]
            ):
                return True
        return False

    hosts = [next(iter(each["allocations"])) for each in completed]
    assert hosts == [root for root in ("h", "i") if can(root)]
    assert {word["root_provider_uuid"] for word in left.values()} == set(hosts)
    for each in completed:
        given_units = {
            (provider, name): amount
            for provider, part in each["allocations"].items()
            for name, amount in part["resources"].items()
            if name != "VCPU"
        }
        for (provider, name), amount in given_units.items():
            amounts = summaries[provider]["resources"][name]
            assert amount <= amounts["capacity"] - amounts["used"]
        assert sum(given_units.values()) == gpus + nics
        for name, names in groups.items():
            assert all(
                (each["mappings"][one][0], name) in given_units and len(each["mappings"][one]) == 1
                for one in names
            )
