# SPDX-License-Identifier: Apache-2.0
"""The wish: what Nova's records keep of it, and what is refused before anything is made."""

from __future__ import annotations

import json
import uuid

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle import checks as life_cycle_checks
from nova_hpc_client.cluster.life_cycle import quota as quotas
from nova_hpc_client.cluster.life_cycle.quota import HeadNeed, Quota, QuotaNeed
from nova_hpc_client.cluster.wish import Secrets, WishError
from nova_hpc_common.wire import cluster_wish, numbers
from nova_hpc_common.wire.cluster_wish import ClusterWish, Nic
from nova_hpc_common.wire.mounts import Mount
from nova_hpc_common.wire.version import WireError

PLAIN = ClusterWish("train", frozenset({1, 2}), "42", image="img")
GROUP = "12345678-1234-4234-8234-123456789012"

ids = st.one_of(st.uuids(version=4).map(str), st.sampled_from(["42", "~x", "~~", "m1.small", "~"]))
words = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, categories=["L", "N"]))
WISHES = st.builds(
    ClusterWish,
    name=st.from_regex(cluster_wish.NAME, fullmatch=True),
    members=st.sets(st.integers(1, 400), min_size=1).map(frozenset),
    flavor=ids,
    image=st.one_of(st.just(""), ids),
    nics=st.lists(
        st.builds(Nic, st.uuids().map(str), st.sampled_from(["", "normal", "direct"])), max_size=5
    ).map(tuple),
    key=words,
    zone=words,
    security_groups=st.lists(words.filter(bool), max_size=2).map(tuple),
    user_data=st.sampled_from(["", "0123456789ab"]),
    mounts=st.sampled_from(
        [(), (Mount("nfs:/x", "/data"),), (Mount("[::2]:/", "/d"), Mount("n:/", "/e"))]
    ),
    boot_gib=st.integers(0, 4000),
    config_drive=st.booleans(),
    check=st.booleans(),
    single=st.booleans(),
    turn=st.sampled_from(["", "", "reboot-3", f"rebuild-12-{uuid.UUID(int=7)}", "heal-4-a77e01fc"]),
    healed=st.lists(st.integers(0, 1 << 40), max_size=30).map(tuple),
    adopted=st.booleans(),
    generation=st.integers(1, 99),
)
WISHES |= st.builds(
    lambda wish, head, image: attrs.evolve(wish, head=head, head_image=image), WISHES, ids, ids
)


@given(st.sets(st.integers(1, numbers.MOST), min_size=1))
def test_numbers_come_back(some: set[int]) -> None:
    assert numbers.parse_number_ranges(numbers.format_number_ranges(some)) == some


@pytest.mark.parametrize(
    "text",
    ["", "0", "3-1", "1-", "-1", "1,,2", "1-1000000", "x", "1-3-5", "\u0661", None, 7, "1" * 400],
)
def test_numbers_that_are_none(text: object) -> None:
    with pytest.raises(WireError):
        numbers.parse_number_ranges(text)


@given(WISHES, st.dictionaries(st.sampled_from(["mine", "hpc_cluster_9"]), st.text()))
def test_a_member_gives_the_wish_back(wish: ClusterWish, others: dict[str, str]) -> None:
    try:
        found = cluster_wish.to_metadata(wish, GROUP)
    except WireError:
        # Only numbers in no order make it so long.
        assert len(cluster_wish.write_cluster_wish(wish)) > 9 * 253
        return
    assert all(len(value) <= 255 and value.isascii() for value in found.values())
    assert cluster_wish.from_metadata({**others, **found}) == wish


@given(WISHES, st.uuids().map(lambda each: each.hex[:8]))
def test_the_name_of_the_group_gives_it_back_or_knows_it(wish: ClusterWish, attempt: str) -> None:
    wish = attrs.evolve(wish, generation=1, members=frozenset(range(1, len(wish.members) + 1)))
    name = cluster_wish.to_group_name(wish, attempt)
    assert len(name) <= 255
    assert name.isprintable()
    label = cluster_wish.from_group_name(name)
    assert label is not None
    assert (label.name, label.members, label.attempt) == (wish.name, wish.members, attempt)
    assert label.digest == wish.digest
    assert label.wish in (wish, None)
    assert label.head == bool(wish.head)
    if label.wish is None:
        assert len(name) < 255


def test_what_fits_into_a_name() -> None:
    """A cluster with an image, a key and three networks is finished without its options."""
    one = lambda: str(uuid.uuid4())  # noqa: E731
    wish = ClusterWish(
        name="a-name-of-twenty-five-chars"[:25],
        members=frozenset(range(1, 1001)),
        flavor=one(),
        image=one(),
        nics=(Nic(one()), Nic(one(), "direct"), Nic(one())),
        key="somebody",
    )
    label = cluster_wish.from_group_name(cluster_wish.to_group_name(wish, "a77e01fc"))
    assert label is not None
    assert label.wish == wish


@pytest.mark.parametrize("times", [7, "7", [-1], [True], [1.5], ["7"], {"7": 7}])
def test_times_that_are_none(times: object) -> None:
    text = json.dumps({"v": 1, "name": "t", "m": "1", "f": "1", "q": times})
    with pytest.raises(WireError):
        cluster_wish.read_cluster_wish(text)
    # A cluster that was healed has the same options.
    assert attrs.evolve(PLAIN, healed=(7,), turn="heal-2-a").digest == PLAIN.digest


@pytest.mark.parametrize("name", ["mine", "hpc", "HPC:x {}", "xhpc:train {}"])
def test_other_groups_are_no_clusters(name: str) -> None:
    assert cluster_wish.from_group_name(name) is None


@pytest.mark.parametrize("name", ["hpc:", "hpc:train", "hpc:train {}", 'hpc:9 {"v":1,"m":"1"}'])
def test_a_broken_name_is_a_cluster_that_cannot_be_read(name: str) -> None:
    with pytest.raises(WireError):
        cluster_wish.from_group_name(name)


@pytest.mark.parametrize(
    ("wish", "secrets", "why"),
    [
        (attrs.evolve(PLAIN, name="a_b"), Secrets(), "cannot name a cluster"),
        (attrs.evolve(PLAIN, members=frozenset()), Secrets(), "at least one member"),
        (attrs.evolve(PLAIN, zone="nova:host1"), Secrets(), "say nova alone"),
        (attrs.evolve(PLAIN, zone="nova:host1:node"), Secrets(), "say nova alone"),
        (attrs.evolve(PLAIN, image=""), Secrets(), "what members boot from"),
        (attrs.evolve(PLAIN, image="", boot_gib=4), Secrets(), "--image that the volumes"),
        (attrs.evolve(PLAIN, boot_gib=4), Secrets(volumes=("a", "b")), "exclude each other"),
        (PLAIN, Secrets(volumes=("a",)), "1 volumes for 2 members"),
        (PLAIN, Secrets(volumes=("a", "a")), "named twice"),
        (PLAIN, Secrets(b"x" * 50000), "has 66668 bytes in base64, longer than Nova takes"),
        (
            attrs.evolve(PLAIN, hosts=True, members=frozenset(range(1, 2000))),
            Secrets(),
            "has too many members.*; --no-hosts leaves it out",
        ),
        (attrs.evolve(PLAIN, nics=(Nic("n", "quick"),)), Secrets(), "vnic-type=quick is unknown"),
        (attrs.evolve(PLAIN, security_groups=("s" * 60,) * 90), Secrets(), "name fewer things"),
    ],
)
def test_what_cannot_be(wish: ClusterWish, secrets: Secrets, why: str) -> None:
    with pytest.raises(WishError, match=why):
        wishes.check_cluster_wish(wish, secrets)


def test_the_request_for_several() -> None:
    wish = attrs.evolve(PLAIN, key="k", zone="z", security_groups=("s",), config_drive=True)
    body = wishes.server_body(wish, GROUP, (1, 2), Secrets(b"#!"), {})
    server = body["server"]
    assert body["os:scheduler_hints"] == {"group": GROUP, "hpc_members": "2"}
    assert (server["min_count"], server["max_count"], server["name"]) == (2, 2, "train")
    assert (server["key_name"], server["availability_zone"]) == ("k", "z")
    assert (server["networks"], server["user_data"]) == ("auto", "IyE=")
    assert server["security_groups"] == [{"name": "s"}]
    assert server["config_drive"] is True
    (tag,) = server["tags"]
    assert len(tag) <= 60
    assert not set(tag) & set(",/")


def test_the_request_for_one_with_its_port_and_volume() -> None:
    wish = attrs.evolve(PLAIN, image="", nics=(Nic("n1"), Nic("n2", "direct")))
    secrets = Secrets(volumes=("v1", "v2"))
    wish = attrs.evolve(wish, **secrets.digests)
    server = wishes.server_body(wish, GROUP, (2,), secrets, {1: "p"})["server"]
    assert server["name"] == "train-2"
    assert "min_count" not in server
    assert server["networks"] == [{"uuid": "n1"}, {"port": "p"}]
    (disk,) = server["block_device_mapping_v2"]
    assert (disk["uuid"], disk["delete_on_termination"]) == ("v2", False)
    assert wishes.is_single(wish)
    made = attrs.evolve(PLAIN, boot_gib=9)
    (disk,) = wishes.server_body(made, GROUP, (1, 2), Secrets(), {})["server"][
        "block_device_mapping_v2"
    ]
    assert (disk["source_type"], disk["volume_size"], disk["delete_on_termination"]) == (
        *("image", 9, True),
    )
    assert not wishes.is_single(made)


def test_secrets_are_asked_for_again() -> None:
    secrets = Secrets(b"#!/bin/sh")
    wish = attrs.evolve(PLAIN, **secrets.digests)
    wishes.check_wish_secrets(wish, secrets)
    with pytest.raises(WishError, match="give --user-data again"):
        wishes.check_wish_secrets(wish, Secrets())
    with pytest.raises(WishError, match="--user-data is not what"):
        wishes.check_wish_secrets(wish, Secrets(b"other"))
    with pytest.raises(WishError, match="--volume is not what"):
        wishes.check_wish_secrets(wish, Secrets(b"#!/bin/sh", ("v",)))


# -- quotas ------------------------------------------------------------------------------

NEED = QuotaNeed(members=4, in_group=6, group=True, vcpus=8, ram_mb=100, ports=2)
WITH_HEAD = attrs.evolve(NEED, head=HeadNeed(2, 50, 1))


def test_enough_room() -> None:
    enough = {name: Quota(value + 5, 5) for name, value in NEED.by_name().items()}
    assert quotas.find_short_quotas(NEED, enough) == []
    assert quotas.find_short_quotas(NEED, dict.fromkeys(enough, Quota(-1, 10**6))) == []
    assert quotas.find_short_quotas(NEED, {}) == []
    # A command that gives back as much as it takes needs no more, but not less either.
    exact = {name: Quota(value, value) for name, value in NEED.by_name().items()}
    assert quotas.find_short_quotas(NEED, exact, NEED) == []
    over = {name: Quota(value, value + 1) for name, value in NEED.by_name().items()}
    short = {quota.name for quota in quotas.find_short_quotas(NEED, over, NEED)}
    # A group's members are no sum.
    assert short == NEED.by_name().keys() - {"server_group_members"}


def test_the_head_counts_but_in_the_server_group() -> None:
    more = {name: WITH_HEAD.by_name()[name] - needed for name, needed in NEED.by_name().items()}
    assert {name: count for name, count in more.items() if count} == {
        **{"instances": 1, "cores": 2, "ram": 50, "ports": 1}
    }


@pytest.mark.parametrize("name", list(NEED.by_name()))
def test_one_too_few(name: str) -> None:
    used = 0 if name == "server_group_members" else 3
    limit = NEED.by_name()[name] + used - 1
    (found,) = quotas.find_short_quotas(NEED, {name: Quota(limit, 3)})
    assert (found.name, found.least) == (name, limit + 1)
    text = quotas.format_short_quotas([found], "project")
    assert f"openstack quota set --{name.replace('_', '-')} {limit + 1} project" in text


def test_limits_of_nova() -> None:
    found = quotas.quotas_from_limits(
        {"maxTotalCores": 20, "totalCoresUsed": 3, "maxServerGroupMembers": 10, "maxPersonality": 5}
    )
    assert found == {"cores": Quota(20, 3), "server_group_members": Quota(10, 0)}


# -- consoles ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("console", "found"),
    [
        ("", None),
        ("FAKE CONSOLE OUTPUT\nlogin:", None),
        ("As promised: nothing", None),
        ("[1.2] As promised: 4 devices, 2 NUMA nodes, topology mirror.", True),
        ("WRONG link: gpu 1: x8\nAs promised: 4 devices, 2 NUMA nodes, topology flat.", True),
        ("As promised: 4 devices\nWRONG link: gpu 1: x8\n", "gpu 1: x8"),
    ],
)
def test_what_a_guest_says(console: str, found: object) -> None:
    assert life_cycle_checks.read_console_verdict(console) == found


def test_a_host_list_has_room_for_512_members() -> None:
    wish = attrs.evolve(PLAIN, hosts=True, members=frozenset(range(1, 513)))
    wishes.check_cluster_wish(wish, Secrets())
