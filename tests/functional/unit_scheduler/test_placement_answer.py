# SPDX-License-Identifier: Apache-2.0
"""What Placement's answer says is free, held against a plain count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.from_nova.placement_answer import AnsweredAmounts, PlacementAnswer
from nova_hpc.from_nova.providers import DeviceKind

GPU = DeviceKind("CUSTOM_GPU", frozenset({"CUSTOM_FAST"}))

PROVIDERS = [f"rp{number}" for number in range(6)]
ROOTS = ["rp0", "rp1"]


def provider(root: str, capacity: int, used: int, *traits: str) -> dict[str, object]:
    return {
        "resources": {"CUSTOM_GPU": {"capacity": capacity, "used": used}},
        "traits": list(traits),
        "root_provider_uuid": root,
        "parent_provider_uuid": None,
    }


def test_what_is_not_in_the_answer_has_nothing() -> None:
    answer = PlacementAnswer({"a": provider("a", 1, 0)})
    assert (answer.free("a", "CUSTOM_GPU"), answer.free("a", "VCPU")) == (1, 0)
    assert (answer.free("b", "CUSTOM_GPU"), answer.capacity("b", "CUSTOM_GPU")) == (0, 0)
    assert answer.tree("b") == ()
    assert not AnsweredAmounts(answer, GPU).has(None)


def test_a_device_without_the_trait_is_of_another_kind() -> None:
    answer = PlacementAnswer({"a": provider("r", 4, 1), "b": provider("r", 4, 1, "CUSTOM_FAST")})
    amounts = AnsweredAmounts(answer, GPU)
    assert (amounts.has("a"), amounts.has("b")) == (False, True)
    assert (amounts.of("a", 4), amounts.of("b", 4), amounts.of("b", 2)) == (0, 3, 2)


def test_one_host_is_renewed_with_its_own_claims() -> None:
    """What was said before, and what was subtracted from it, is gone."""
    answer = PlacementAnswer({"a": provider("r", 4, 0), "b": provider("s", 4, 0)})
    claim = {"a": {"resources": {"CUSTOM_GPU": 1}}, "b": {"resources": {"CUSTOM_GPU": 1}}}
    answer.take(claim)
    answer.renew("r", {"a": provider("r", 4, 3)})
    assert (answer.free("a", "CUSTOM_GPU"), answer.free("b", "CUSTOM_GPU")) == (1, 3)
    answer.take(claim)
    answer.renew("r", {})
    assert (answer.free("a", "CUSTOM_GPU"), answer.free("b", "CUSTOM_GPU")) == (0, 2)
    assert (answer.tree("r"), answer.tree("s")) == ((), ["b"])


@given(
    st.dictionaries(
        st.sampled_from(PROVIDERS),
        st.tuples(st.sampled_from(ROOTS), st.integers(0, 4), st.integers(0, 4)),
    ),
    st.lists(st.tuples(st.sampled_from(PROVIDERS), st.integers(1, 2))),
)
def test_amounts_are_what_a_count_says(
    listed: dict[str, tuple[str, int, int]], claims: list[tuple[str, int]]
) -> None:
    answer = PlacementAnswer({key: provider(*each) for key, each in listed.items()})
    for name, amount in claims:
        answer.take({name: {"resources": {"CUSTOM_GPU": amount}}})
    for name in PROVIDERS:
        _, capacity, used = listed.get(name, ("", 0, 0))
        taken = sum(amount for each, amount in claims if each == name)
        assert answer.free(name, "CUSTOM_GPU") == (capacity - used - taken if name in listed else 0)
    for root in ROOTS:
        assert set(answer.tree(root)) == {key for key, each in listed.items() if each[0] == root}
