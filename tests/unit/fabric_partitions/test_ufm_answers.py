# SPDX-License-Identifier: Apache-2.0
"""Answers of UFM that come late, not at all, or are none."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import attrs
import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP
from nova_hpc.fabric.partitions.backends.base import (
    MemberState,
    SubnetManagerError,
)
from nova_hpc_ufm import client as ufm_client
from nova_hpc_ufm.client import UfmAccess
from nova_hpc_ufm.partitions import read_partitions
from nova_hpc_ufm.subnet_manager import UfmSubnetManager
from tests.unit.fabric_partitions.ufm_server import (
    CONTRACT,
    PASSWORD,
    USER,
    RecordedUfm,
    serve_ufm,
)
from tests.unit.fabric_partitions.ufm_world import FULL, LIMITED, TWO, A, B, states, want


def test_follows_jobs_to_their_end(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    manager.enforce(want(1, TWO[0]))
    ufm.in_jobs = True
    both = ((0x101, A, FULL), (0x101, B, FULL))

    assert manager.enforce(want(2, *both))
    read = manager.read_back(want(2, *both))
    assert read.members[2].state is MemberState.DIFFERENT
    assert "job 1" in read.members[2].reason
    ufm.finish_jobs()

    assert set(states(manager, want(2, *both))) == {MemberState.AS_DESIRED}


def test_says_how_a_job_failed(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    manager.enforce(want(1, TWO[0]))
    ufm.in_jobs = True
    both = ((0x101, A, FULL), (0x101, B, FULL))
    manager.enforce(want(2, *both))
    ufm.jobs["1"]["Summary"] = "no such port\x1b[2J"

    ufm.finish_jobs("Completed With Errors")

    read = manager.read_back(want(2, *both))
    assert read.members[2].reason == (
        "UFM's job 1 ended as Completed With Errors: no such port\\u001b[2J"
    )
    ufm.in_jobs = False
    manager.enforce(want(3, *both))
    assert set(states(manager, want(3, *both))) == {MemberState.AS_DESIRED}


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_repeats_what_passes(manager: UfmSubnetManager, ufm: RecordedUfm, status: int) -> None:
    ufm.failures = [status, status]

    manager.enforce(want(1, *TWO))

    assert set(states(manager, want(1, *TWO))) == {MemberState.AS_DESIRED}


def test_a_server_in_trouble_is_an_error_and_no_change(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    manager.enforce(want(1, *TWO))
    ufm.failures = [500] * 50

    with pytest.raises(SubnetManagerError, match="with 500"):
        manager.enforce(want(2))

    ufm.failures = []
    assert set(ufm.partitions) == {"0x7fff", "0x101", "0x102"}


def test_an_answer_in_the_middle_that_is_lost_is_asked_for_again(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    changes = itertools.count(1)
    original = ufm.answer

    def answer(*request: object) -> object:
        if request[0] == "POST" and next(changes) == 3:
            ufm.failures = [503] * 4
        return original(*request)

    ufm.answer = answer  # type: ignore[method-assign,assignment]
    manager.enforce(want(1, *TWO))
    ufm.failures.clear()
    read = manager.read_back(want(1, *TWO))
    lacking = [one for one in read.members.values() if one.state is MemberState.DIFFERENT]
    assert lacking
    assert all("503" in one.reason for one in lacking)

    manager.enforce(want(2, *TWO))

    assert set(states(manager, want(2, *TWO))) == {MemberState.AS_DESIRED}


def test_gives_a_silent_server_up(
    manager: UfmSubnetManager, ufm: RecordedUfm, monkeypatch: pytest.MonkeyPatch
) -> None:
    ufm.delay = 0.3
    monkeypatch.setattr(
        manager._client, "_access", attrs.evolve(manager._client._access, timeouts=(1.0, 0.05))
    )

    with pytest.raises(SubnetManagerError, match=r"does not answer GET /resources/pkeys"):
        manager.read_back(want(1))


def test_names_the_options_of_a_wrong_password(conf: cfg.ConfigOpts) -> None:
    conf.set_override("ufm_password", "wrong", group=AGENT_GROUP.name)
    manager = UfmSubnetManager(conf[AGENT_GROUP.name])

    with pytest.raises(
        SubnetManagerError, match=r"refuses the user agent .401.*ufm_password"
    ) as at:
        manager.enforce(want(1))

    assert "wrong" not in str(at.value)


@pytest.mark.parametrize("option", ["ufm_url", "ufm_user", "ufm_password"])
def test_names_an_option_that_is_not_set(conf: cfg.ConfigOpts, option: str) -> None:
    conf.set_override(option, None, group=AGENT_GROUP.name)

    with pytest.raises(SubnetManagerError, match=rf"\[hpc_fabric_agent\]{option} is not set"):
        UfmSubnetManager(conf[AGENT_GROUP.name])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://ufm.example.org", "clear text"),
        ("ufm.example.org", "must be like https"),
        ("ftp://ufm", "must be like https"),
    ],
)
def test_refuses_an_address(url: str, why: str) -> None:
    with pytest.raises(SubnetManagerError, match=why):
        UfmAccess(url, USER, PASSWORD)


def test_does_not_print_the_password() -> None:
    assert PASSWORD not in repr(UfmAccess("https://ufm", USER, PASSWORD))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([], "no object"),
        ({}, "lacks the default one"),
        ({"site_name": "north"}, "lacks the default one"),
        ({"0x1": {"partition": "a", "guids": []}}, "lacks the default one"),
    ],
)
def test_takes_no_answer_that_is_no_list(answer: object, why: str) -> None:
    with pytest.raises(SubnetManagerError, match=why):
        read_partitions(answer)


MEMBER = {"guid": f"{A:016x}", "membership": "full"}
GOOD = {"partition": "good", "guids": [MEMBER]}


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (None, "its record is no object"),
        ("full", "its record is no object"),
        ({}, "it has no name"),
        ({"partition": "a"}, "UFM lists no members"),
        ({"partition": "a", "guids": {}}, "UFM lists no members"),
        ({"partition": "a", "guids": [{"membership": "full"}]}, "a member has no GUID"),
        ({"partition": "a", "guids": [{"guid": "x", "membership": "full"}]}, "has no GUID"),
        ({"partition": "a", "guids": ["0002c90000200001"]}, "a member has no GUID"),
    ],
)
def test_a_broken_record_is_one_unknown_partition(record: object, why: str) -> None:
    listing = read_partitions(
        {"0x7fff": {"partition": "m"}, "0x1": record, "0x2": GOOD, "site_name": "north"}
    )

    assert listing.is_unknown(1)
    assert why in listing.partitions[1].problem
    assert listing.members(2) == {A: FULL}
    assert not listing.is_unknown(2)
    assert len(listing.faults) == 1
    assert "0x0001 at UFM are unknown" in listing.faults[0]


def test_a_default_record_that_is_broken_is_unknown() -> None:
    listing = read_partitions({"0x7fff": {"partition": "m", "membership": "some"}, "0x2": GOOD})

    assert "default membership" in listing.default.problem
    assert listing.members(2) == {A: FULL}


def test_two_records_of_one_key_are_one_unknown_partition() -> None:
    listing = read_partitions({"0x7fff": {"partition": "m"}, "0x1": GOOD, "0x8001": GOOD})

    assert listing.partitions[1].problem == "UFM lists it twice"


def test_a_key_that_is_none_is_named() -> None:
    listing = read_partitions({"0x7fff": {"partition": "m"}, "default": GOOD, "0x2": GOOD})

    assert listing.partitions.keys() == {0x7FFF, 2}
    assert "a P_Key is no hexadecimal number: 'default'" in listing.faults[0]


@pytest.mark.parametrize(
    ("entries", "membership"),
    [
        ([MEMBER, MEMBER], FULL),
        ([MEMBER, {**MEMBER, "guid": "0x2c9:0000:2000:01"}], FULL),
        ([MEMBER, {**MEMBER, "membership": "limited"}], None),
        ([MEMBER, {**MEMBER, "membership": "limited"}, MEMBER], None),
        ([{**MEMBER, "membership": "both"}], None),
    ],
)
def test_a_guid_that_is_listed_twice(entries: list[object], membership: object) -> None:
    listing = read_partitions(
        {"0x7fff": {"partition": "m"}, "0x1": {"partition": "a", "guids": entries}}
    )

    assert dict(listing.members(1)) == {A: membership}
    assert bool(listing.faults) == (membership is None)


def test_an_empty_list_changes_nothing(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    manager.enforce(want(1, *TWO))
    there = dict(ufm.partitions)
    ufm.partitions.clear()
    ufm.seen.clear()

    with pytest.raises(SubnetManagerError, match="lacks the default one"):
        manager.enforce(want(2, *TWO))

    assert [method for method, _ in ufm.seen] == ["GET"]
    assert there


def test_reads_answers_of_a_later_release(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    ufm.later = True

    manager.enforce(want(1, *TWO))

    assert set(states(manager, want(1, *TWO))) == {MemberState.AS_DESIRED}


def test_reads_the_recorded_list() -> None:
    example = next(
        one["answer"] for one in CONTRACT["exchanges"] if one["name"] == "list partitions"
    )

    listing = read_partitions(example)

    assert listing.members(0x12) == {A: FULL, B: LIMITED}
    assert listing.default.default_membership is LIMITED


def test_verifies_certificates(tmp_path: Path, ufm: RecordedUfm) -> None:
    """A server with a certificate of its own is not trusted until it is named."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout",
         str(key), "-out", str(certificate), "-subj", "/CN=ufm", "-addext",
         "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    with serve_ufm(ufm, certificate, key) as url:
        stranger = ufm_client.UfmClient(UfmAccess(url, USER, PASSWORD, retries=0))
        with pytest.raises(SubnetManagerError, match=r"is not trusted.*ufm_ca_file"):
            stranger.get("/app/ufm_version")
        named = ufm_client.UfmClient(UfmAccess(url, USER, PASSWORD, ca_file=str(certificate)))
        assert named.get("/app/ufm_version") == {"ufm_release_version": "6.22.1-2"}
