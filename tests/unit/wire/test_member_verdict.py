# SPDX-License-Identifier: Apache-2.0
"""The verdict in a server's metadata: written short, and read from whatever an owner writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_common.wire import member_verdict
from nova_hpc_common.wire.member_verdict import (
    MemberVerdict,
    read_member_verdict,
    verdict_of_metadata,
)
from nova_hpc_common.wire.version import LONGEST_METADATA, LaterError, WireError
from nova_hpc_guest.accept import causes
from nova_hpc_guest.accept.probes import CLUSTER, FULL, QUICK
from nova_hpc_guest.accept.result import STATUSES
from tests.unit.wire.examples import FOLDER, VERDICT

CAUSES = sorted(cause.name for cause in causes.CAUSES)


def golden(name: str) -> str:
    return (FOLDER / "member-verdict" / name).read_text(encoding="utf-8")


def test_it_is_read_as_it_is_written() -> None:
    assert read_member_verdict(golden("v1.txt")) == VERDICT
    assert VERDICT.rejects


@given(
    st.sampled_from(member_verdict.VERDICTS),
    st.sampled_from(member_verdict.TIERS),
    st.integers(0, 10**12 - 1),
    st.lists(st.sampled_from(CAUSES), unique=True),
)
def test_it_is_never_too_long(verdict: str, tier: str, taken: int, named: list[str]) -> None:
    text = MemberVerdict(verdict, tier, taken, tuple(named)).dumps()
    assert len(text) <= LONGEST_METADATA
    again = read_member_verdict(text)
    assert (again.verdict, again.tier, again.taken) == (verdict, tier, taken)
    assert again.causes == tuple(named[: len(again.causes)])
    # Nothing is left out that would have fitted.
    if len(again.causes) < len(named):
        left = named[len(again.causes)]
        assert len(text) + len(left) + bool(again.causes) > LONGEST_METADATA


def test_all_causes_at_once_are_too_long() -> None:
    text = MemberVerdict("promise-broken", "quick", 1764180000, tuple(CAUSES)).dumps()
    assert LONGEST_METADATA - 40 < len(text) <= LONGEST_METADATA
    assert read_member_verdict(text).causes == tuple(CAUSES[: text.count(",") + 1])


def test_its_words_are_those_of_the_guest() -> None:
    words = {verdict.replace(" ", "-") for verdict in STATUSES}
    assert words == set(member_verdict.VERDICTS)
    rejecting = {verdict.replace(" ", "-") for verdict, status in STATUSES.items() if status == 1}
    assert rejecting == set(member_verdict.REJECTING)
    assert {QUICK, FULL, CLUSTER} == set(member_verdict.TIERS)


def test_a_later_version_is_unknown_and_said_so() -> None:
    with pytest.raises(LaterError, match="update nova-hpc"):
        read_member_verdict(golden("v2.txt"))
    assert verdict_of_metadata({member_verdict.KEY: golden("v2.txt")}) is None


def test_a_field_more_is_no_new_version() -> None:
    assert read_member_verdict(golden("v1.txt") + ":more") == VERDICT


@pytest.mark.parametrize(
    "text",
    [
        *("", "v1", "v1:", "v1:slow", "v1:slow:quick:1", "1:slow:quick:1:", "v01:slow:quick:1:"),
        *("v1:Slow:quick:1:", "v1:slow:later:1:", "v1:slow:quick:-1:", "v1:slow:quick:1:a,,b"),
        *("v1:slow:quick:1:\x1b[2J", "v1:slow:quick:1:" + "a" * 300, "v1:slow:quick:\u0661:"),
        *("v1.0:slow:quick:1:", "V1:slow:quick:1:", "v1 :slow:quick:1:", "v1:slow:quick:1:a b"),
        *(None, 1, True, ["v1:slow:quick:1:"]),
    ],
)
def test_what_is_broken_is_unknown(text: object) -> None:
    with pytest.raises(WireError):
        read_member_verdict(text)
    assert verdict_of_metadata({member_verdict.KEY: text}) is None  # type: ignore[dict-item]


@given(st.text(max_size=60))
def test_any_text_is_a_verdict_or_unknown(text: str) -> None:
    verdict = verdict_of_metadata({member_verdict.KEY: text})
    assert verdict is None or verdict.verdict in member_verdict.VERDICTS


@pytest.mark.parametrize("verdict", member_verdict.VERDICTS)
def test_only_what_is_surely_wrong_rejects(verdict: str) -> None:
    rejects = MemberVerdict(verdict, "quick", 0).rejects
    assert rejects == (verdict in ("slow", "promise-broken"))
    assert verdict_of_metadata({}) is None
