# SPDX-License-Identifier: Apache-2.0
"""Who goes, who is beside whom, and how hosts are written down."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.cluster import hostfiles
from nova_hpc_client.cluster.hostfiles import HostError
from nova_hpc_client.cluster.members import leave, model, neighbours, picture
from nova_hpc_client.cluster.members.group import ClusterGroup
from nova_hpc_client.cluster.members.leave import MemberPlace
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember, read_member
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.member_verdict import MemberVerdict
from nova_hpc_common.wire.position import Position
from tests.unit.pictures.faults import list_faults


def member(number: int, leaf: str, host: str, **more: object) -> ClusterMember:
    values: dict[str, object] = {
        "id": f"id{number}",
        "name": f"t-{number}",
        "status": "ACTIVE",
        "host": host,
        "vcpus": 8,
        "ram_mb": 1000,
        "addresses": {"net": (f"fd00::{number}", f"10.0.0.{number}"), "ib": (f"10.1.0.{number}",)},
        "position": Position({"block": "b-1", "leaf": leaf} if leaf else {}),
    } | more
    return ClusterMember(**values)  # type: ignore[arg-type]


def cluster(*members: ClusterMember) -> Cluster:
    numbers = frozenset(int(each.name.partition("-")[2]) for each in members)
    wish = ClusterWish("t", numbers, "1", image="i")
    return Cluster(
        "g",
        ClusterGroup("g", "hpc:t"),
        tuple(
            ClusterMember(
                **{f: getattr(m, f) for f in ClusterMember.__slots__ if f[0] != "_"}
                | {"wish": wish}
            )
            for m in members
        ),
    )


TWO_LEAVES = cluster(
    member(1, "l-a", "h1"),
    member(2, "l-b", "h2"),
    member(3, "l-b", "h3"),
    member(4, "l-a", "h4"),
    member(5, "l-b", "h2"),
)


# -- the verdict in the metadata ----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rejected"),
    [
        ("v1:slow:quick:1764180000:pages-small", True),
        ("v1:promise-broken:full:1764180000:", True),
        ("v1:accepted:quick:1764180000:", False),
        # Neither of these says anything against it.
        ("v1:undecided:quick:1764180000:", False),
        ("v1:not-measurable:quick:1764180000:", False),
        ("v2:slow:quick:1764180000:", False),
        ("slow", False),
        ("v1:slow", False),
        ("\x1b[2J", False),
        ("", False),
    ],
)
def test_only_a_verdict_that_can_be_read_rejects(text: str, rejected: bool) -> None:
    server = {"id": "a", "name": "t-1", "status": "ACTIVE", "metadata": {"hpc_accept": text}}
    assert read_member(server).rejected is rejected


def test_rejected_ones_go_after_failed_ones_and_before_far_ones() -> None:
    slow = MemberVerdict("slow", "quick", 0)
    some = cluster(
        member(1, "l-a", "h1", verdict=slow),
        member(2, "l-a", "h2", status="ERROR"),
        member(3, "l-b", "h3"),
        member(4, "l-a", "h4"),
    )
    places = neighbours.member_places_of(some)
    assert leave.choose_leavers(places, 3) == {2}
    assert leave.choose_leavers(places, 2) == {1, 2}
    assert leave.choose_leavers(places, 1) == {1, 2, 4}


# -- who goes ---------------------------------------------------------------------------


def cost(places: dict[int, MemberPlace], stay: tuple[int, ...]) -> tuple[int, ...]:
    """Counted plainly: failed ones, rejected ones, domains of each level by their full path."""
    levels = len(next(iter(places.values())).path)
    domains = [len({places[each].path[: at + 1] for each in stay}) for at in range(levels)]
    failed, rejected = (
        sum(getattr(places[each], word) for each in stay) for word in ("failed", "rejected")
    )
    return (failed, rejected, *domains, sum(stay))


@given(
    st.lists(
        st.builds(
            MemberPlace,
            st.tuples(*[st.sampled_from(["", "a", "b", "c"])] * 3),
            st.sampled_from([False, False, True]),
            st.sampled_from([False, False, True]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.data(),
)
def test_those_stay_that_are_nearest(some: list[MemberPlace], data: st.DataObject) -> None:
    places = dict(enumerate(some, 1))
    keep = data.draw(st.integers(1, len(some)))
    goes = leave.choose_leavers(places, keep)
    assert len(goes) == len(some) - keep
    stay = tuple(sorted(set(places) - goes))
    best = min(cost(places, each) for each in itertools.combinations(places, keep))
    assert cost(places, stay) == best


def test_of_a_thousand_members_half_can_go() -> None:
    places = {n: MemberPlace((f"b{n % 4}", f"l{n % 40}", f"h{n % 500}")) for n in range(1, 1001)}
    goes = leave.choose_leavers(places, 500)
    stay = [places[each].path for each in places if each not in goes]
    assert (len(stay), len({path[0] for path in stay}), len({path[1] for path in stay})) == (
        *(500, 2, 20),
    )


def test_nobody_can_stay_that_is_not_there() -> None:
    for keep in (0, 2):
        with pytest.raises(ValueError, match=f"{keep} of 1 members cannot stay"):
            leave.choose_leavers({1: MemberPlace(("a",))}, keep)


# -- who is beside whom -------------------------------------------------------------------


def test_neighbours_follow_each_other() -> None:
    order = [seat.number for seat in neighbours.order_seats_by_nearness(TWO_LEAVES)]
    assert order == [2, 5, 3, 1, 4]
    assert neighbours.count_spanned_domains(TWO_LEAVES) == {"block": 1, "leaf": 2, "host": 4}


def test_the_tree() -> None:
    assert neighbours.format_cluster_tree(TWO_LEAVES) == (
        "t: 1 block, 2 leaves, 4 hosts\n"
        "└─ block b-1\n"
        "   ├─ leaf l-b\n"
        "   │  ├─ host h2\n"
        "   │  │  ├─ t-2\n"
        "   │  │  └─ t-5\n"
        "   │  └─ host h3\n"
        "   │     └─ t-3\n"
        "   └─ leaf l-a\n"
        "      ├─ host h1\n"
        "      │  └─ t-1\n"
        "      └─ host h4\n"
        "         └─ t-4\n"
    )


def shares(number: int, host: str, mib: object, **more: object) -> ClusterMember:
    """A member, as Nova's API tells of it."""
    server = {
        "id": f"id{number}",
        "name": f"t-{number}",
        "status": "ACTIVE",
        "hostId": host,
        "OS-SRV-USG:launched_at": "2026-01-01",
        "flavor": {"extra_specs": {} if mib is None else {"hpc:shared_memory": mib}},
    } | more
    return model.read_member(server)


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ([shares(1, "h1", "64"), shares(2, "h1", "64")], "host h1: may share memory, 64 MiB each"),
        # One that wishes none does not matter to the others.
        (
            [shares(1, "h1", "64"), shares(2, "h1", "64"), shares(3, "h1", None)],
            "host h1: may share memory, 64 MiB each",
        ),
        ([shares(1, "h1", "64"), shares(2, "h1", "128")], "host h1"),
        ([shares(1, "h1", "64"), shares(2, "h1", None)], "host h1"),
        ([shares(1, "h1", None), shares(2, "h1", None)], "host h1"),
        ([shares(1, "h1", "many"), shares(2, "h1", "many")], "host h1"),
        ([shares(1, "h1", "65"), shares(2, "h1", "65")], "host h1"),
        ([shares(1, "h1", "4098"), shares(2, "h1", "4098")], "host h1"),
        (
            [shares(1, "h1", "4096"), shares(2, "h1", "4096")],
            "host h1: may share memory, 4096 MiB each",
        ),
        # Nova does not show every user what a flavor says.
        ([shares(1, "h1", "64", flavor={}), shares(2, "h1", "64", flavor={})], "host h1"),
        # It has not run, so no host has given it memory.
        (
            [shares(1, "h1", "64"), shares(2, "h1", "64", **{"OS-SRV-USG:launched_at": None})],
            "host h1",
        ),
        ([shares(1, "h1", "64"), shares(2, "h2", "64")], "host h1"),
        ([shares(1, "", "64"), shares(2, "", "64")], "host (unknown)"),
    ],
)
def test_members_that_may_share_memory(members: list[ClusterMember], line: str) -> None:
    drawn = neighbours.format_cluster_tree(cluster(*members)).splitlines()[1]
    assert drawn.partition("─ ")[2] == line


def test_the_matrix() -> None:
    rows = neighbours.format_nearness_matrix(TWO_LEAVES).splitlines()
    assert [row.split() for row in rows[:6]] == [
        ["t-2", "t-5", "t-3", "t-1", "t-4"],
        ["t-2", "X", "HOST", "LEAF", "BLK", "BLK"],
        ["t-5", "HOST", "X", "LEAF", "BLK", "BLK"],
        ["t-3", "LEAF", "LEAF", "X", "BLK", "BLK"],
        ["t-1", "BLK", "BLK", "BLK", "X", "LEAF"],
        ["t-4", "BLK", "BLK", "BLK", "LEAF", "X"],
    ]


def test_without_positions_hosts_are_known() -> None:
    some = cluster(member(1, "", "h1"), member(2, "", "h2"), member(3, "", "h1"))
    assert neighbours.count_spanned_domains(some) == {"host": 2}
    assert neighbours.format_cluster_tree(some).splitlines()[0] == "t: 2 hosts"
    assert leave.choose_leavers(neighbours.member_places_of(some), 2) == {2}
    assert "nothing is known" in neighbours.format_cluster_tree(cluster(member(1, "", "")))


def test_the_picture_has_every_member_and_is_xml() -> None:
    some = cluster(
        *(member(n, f"l-{n % 7}", f"h{n % 50}") for n in range(1, 120)),
        member(200, "l-1", "<h&1>", status="ERROR"),
    )
    text = picture.draw_cluster_picture(some)
    assert list_faults(text) == []
    root = ElementTree.fromstring(text)
    shown = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {f"t-{n}" for n in range(1, 120)} <= set(shown)
    assert "host <h&1>" in shown


# -- files ---------------------------------------------------------------------------------


def test_host_files() -> None:
    found = hostfiles.list_cluster_hosts(TWO_LEAVES, "net")
    assert hostfiles.format_openmpi_hosts(found, "t") == (
        "10.0.0.2 slots=8\n10.0.0.5 slots=8\n10.0.0.3 slots=8\n10.0.0.1 slots=8\n10.0.0.4 slots=8\n"
    )
    assert hostfiles.format_slurm_nodes(found, "t").splitlines() == [
        *(
            f"NodeName=t-{n} NodeAddr=10.0.0.{n} CPUs=8 RealMemory=950 State=UNKNOWN"
            for n in (2, 5, 3, 1, 4)
        ),
        "NodeSet=t Nodes=t-2,t-5,t-3,t-1,t-4",
    ]
    names = hostfiles.list_cluster_hosts(TWO_LEAVES, names=True)
    assert hostfiles.format_pdsh_hosts(names, "t") == "t-2\nt-5\nt-3\nt-1\nt-4\n"
    data = yaml.safe_load(
        hostfiles.format_ansible_inventory(hostfiles.list_cluster_hosts(TWO_LEAVES, "ib"), "my-t")
    )
    hosts = data["all"]["children"]["my_t"]["hosts"]
    assert hosts["t-3"] == {
        "hpc_rank": 2,
        "hpc_vcpus": 8,
        "ansible_host": "10.1.0.3",
        "hpc_block": "b-1",
        "hpc_leaf": "l-b",
    }
    assert hostfiles.host_columns_of(found[0])[:4] == ("t-2", "10.0.0.2", 8, 1000)
    assert len(hostfiles.host_columns_of(found[0])) == len(hostfiles.COLUMNS)


def test_a_network_that_is_not_there() -> None:
    with pytest.raises(HostError, match="t-2 is not in network 'x'; it is in: ib, net"):
        hostfiles.list_cluster_hosts(TWO_LEAVES, "x")
