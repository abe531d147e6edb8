# SPDX-License-Identifier: Apache-2.0
"""Why Placement has no candidate: what is named is needed for it, and nothing else is named."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement import user_reasons, withheld
from nova_hpc.placement.model import DeviceMiss, Unmet, Want
from nova_hpc.placement.shortage import HostWish, Shortage, WishSign, WishSource

HOSTS = "abcd"
GPU = (Want("0", "gpu", 2),)


@st.composite
def shortages(draw: st.DrawFn) -> Shortage:
    """A request and which of four hosts meet each wish of it."""
    free = draw(st.dictionaries(st.sampled_from(HOSTS), st.integers(1, 3)))
    equipped = frozenset(host for host, amount in free.items() if amount >= 2)
    wishes = [
        HostWish(
            WishSign.DEVICES, "gpu", equipped, amount=2, resource_class="CUSTOM_GPU", free=free
        ),
        HostWish(WishSign.AMOUNT, "VCPU", draw(st.frozensets(st.sampled_from(HOSTS))), amount=4),
    ]
    for sign in draw(st.lists(st.sampled_from(list(WishSign)[2:-1]), max_size=4)):
        hosts = draw(st.frozensets(st.sampled_from(HOSTS)))
        inverted = sign in (WishSign.BANNED, WishSign.CLOSED)
        wishes.append(HostWish(sign, f"CUSTOM_{len(wishes)}", hosts, inverted))
    return Shortage(tuple(wishes))


def some(wishes: tuple[HostWish, ...]) -> bool:
    """Whether one of the hosts, or one that nobody has heard of, meets all of these."""
    return any(all(wish.met(host) for wish in wishes) for host in (*HOSTS, "unheard of"))


@given(shortages())
def test_a_cause_is_true_and_nothing_of_it_can_be_left_out(found: Shortage) -> None:
    assert bool(found.causes) is not some(found.wishes)
    for cause in found.causes:
        assert not some(cause)
        for wish in cause:
            assert some(tuple(each for each in cause if each is not wish))
    named = [id(wish) for cause in found.causes for wish in cause]
    assert len(named) == len(set(named))
    said = user_reasons.explain_unplaced(found, GPU)
    assert len(said) > 20
    if len(found.causes) == 1:
        (cause,) = found.causes
        assert ("gpu" in said.partition("; ")[0]) is any(w.sign is WishSign.DEVICES for w in cause)
        assert ("CPUs" in said.partition("; ")[0]) is any(w.name == "VCPU" for w in cause)


@given(shortages())
def test_what_may_help_could(found: Shortage) -> None:
    """With that wish changed, a host is left that meets all others."""
    (devices,) = found.devices
    if len(found.causes) == 1 and "fewer devices" in user_reasons.explain_unplaced(found, GPU):
        others = tuple(wish for wish in found.wishes if wish is not devices)
        assert any(all(wish.met(host) for wish in others) for host in devices.free)


def test_the_sentences() -> None:
    """Of each sign alone, with devices on one host."""
    gpu = HostWish(WishSign.DEVICES, "gpu", frozenset("a"), amount=2, free={"a": 2, "b": 1})
    none: frozenset[str] = frozenset()
    expected = {
        HostWish(
            WishSign.TRAIT, "T", none, source=WishSource.FLAVOR
        ): "No host has trait T, which the flavor requires; a flavor without that trait may help",
        HostWish(
            WishSign.TRAIT, "T", none
        ): "No host has trait T, which Nova requires for this flavor and image; contact the "
        "cloud's operator",
        HostWish(
            WishSign.CLOSED, "T", frozenset("ab"), inverted=True
        ): "No host with 2 gpu free is in service; contact the cloud's operator",
        HostWish(
            WishSign.ZONE, "z", frozenset("b")
        ): "No host of availability zone z has 2 gpu free; fewer devices or another zone may help",
        HostWish(
            WishSign.ZONE, "z", frozenset("c")
        ): "No host of availability zone z has 2 gpu free; another zone may help",
        HostWish(
            WishSign.RULE, "x", none
        ): "No host may be used by this project and flavor; contact the cloud's operator",
        HostWish(
            WishSign.AMOUNT, "PCPU", frozenset("b"), amount=8
        ): "No host has 2 gpu and 8 dedicated "
        "CPUs free together; fewer devices or fewer CPUs may help",
    }
    for wish, sentence in expected.items():
        assert user_reasons.explain_unplaced(Shortage((gpu, wish)), GPU) == sentence


@pytest.mark.parametrize("isolated", [False, True])
def test_where_each_host_has_each_of_it(isolated: bool) -> None:
    gpu = HostWish(WishSign.DEVICES, "gpu", frozenset("a"), amount=2, free={"a": 2})
    said = user_reasons.explain_unplaced(Shortage((gpu,), isolated), GPU)
    assert ("group_policy none" in said) is isolated
    assert "has each of these" in Shortage((gpu,), isolated).why("a")


def test_what_is_withheld_is_counted() -> None:
    gpu = HostWish(
        WishSign.DEVICES, "gpu", frozenset(), amount=8, resource_class="G", free={"a": 7}
    )
    said = Shortage((gpu,)).why("a", {"0000:40:00.0": "in quarantine: hot"})
    assert said == (
        "no host has 8 gpu (G); the nearest is a with 7 of 8 gpu, 1 is withheld by the node: "
        "0000:40:00.0 (in quarantine: hot)"
    )


def test_what_is_withheld_is_counted_for_each_alias() -> None:
    none: frozenset[str] = frozenset()
    gpu = HostWish(WishSign.DEVICES, "gpu", none, amount=8, aliases=("gpu",), free={"a": 7})
    nic = attrs.evolve(gpu, name="nic/port", aliases=("nic", "port"), amount=4, free={"a": 2})
    found = Shortage((gpu, nic))
    held = {"0000:40:00.0": "in quarantine: hot", "0000:50:00.0": "away", "0000:51:00.0": "away"}
    assert found.short_of("a", {"gpu": 1}) == "7 of 8 gpu, one is withheld; 2 of 4 nic/port"
    said = found.why("a", held, {"gpu": 1, "nic": 2, "port": 2})
    assert "; the nearest is a with 7 of 8 gpu, one is withheld; 2 of 4 nic/port, 2 are" in said
    assert "withheld; withheld by the node: 0000:40:00.0 (in quarantine: hot), " in said
    # Nobody knows which they are: they are in no alias's count.
    assert "with 7 of 8 gpu, 2 of 4 nic/port, 3 are withheld by the node" in found.why("a", held)


def test_a_miss_counts_what_is_withheld() -> None:
    short = DeviceMiss(
        "7 gpu free (needs 8); 0000:41:00.0 can not be given",
        "7 gpu free (needs 8)",
        Unmet.DEVICES,
        (("gpu", 7, 8),),
    )
    said = withheld.count_withheld_in_miss(short, {"gpu": 1, "nic": 1})
    assert said.user == "7 of 8 gpu, one is withheld"
    assert said.operator == "7 of 8 gpu, one is withheld; 0000:41:00.0 can not be given"
    assert (
        withheld.count_withheld_in_miss(short, {"nic": 1})
        == withheld.count_withheld_in_miss(short, {})
        == short
    )
    apart = DeviceMiss("NUMA node 1: 2 gpu", "2 gpu free, but apart", Unmet.TOGETHER)
    assert withheld.count_withheld_in_miss(apart, {"nic": 2, "gpu": 1}).user == (
        "2 gpu free, but apart; one gpu is withheld, 2 nic are withheld"
    )
    out = DeviceMiss("its nova-compute is old", "a node is not set up")
    assert withheld.count_withheld_in_miss(out, {"gpu": 1}) == out


def test_no_answer_names_no_cause() -> None:
    said = user_reasons.explain_unplaced(None, GPU)
    assert said == (
        "No host has 2 gpu free together with everything else that is requested; contact the "
        "cloud's operator"
    )


def test_the_hosts_that_were_asked() -> None:
    """Each sign has its words, and they do not hide each other."""
    said = {
        user_reasons.AskedHosts(*each).subject()
        for each in itertools.product((False, True), repeat=3)
    }
    assert len(said) == 8
    assert user_reasons.AskedHosts(cut=True).subject() == "None of the hosts looked at"
    assert (
        user_reasons.AskedHosts(left_out=True).subject()
        == "No host but its own or one already tried"
    )
