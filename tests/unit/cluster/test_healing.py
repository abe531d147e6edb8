# SPDX-License-Identifier: Apache-2.0
"""The plan of a healer against brute force, and its shell against a cloud in memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_hpc_client.cluster.life_cycle import commands, healer, healing
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.healer import Healer, HealTools
from nova_hpc_client.cluster.life_cycle.healing import (
    HOUR,
    DrainFirst,
    Finish,
    HealMemory,
    HealTerms,
    Healthy,
    HoldBack,
    Release,
    Replace,
    Undrain,
)
from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, ClusterError, Pace
from nova_hpc_client.cluster.members import member_faults
from nova_hpc_client.cluster.members.group import ClusterGroup
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.server_faults import FaultWord
from nova_hpc_guest.host_list import HEAD
from tests.unit.cluster.model_cloud import Killed, ModelCloud

DATE = 1_800_000_000.0
TERMS = HealTerms("me", 10.0, force=True)
#: Words of faults that make a healer replace a member, written without the code under test.
REPLACED = {"host", "gone", "errors", "link", "port", "slow"}


def build(servers: dict[int, dict[str, Any]], wanted: int | None = None, **wish_of: Any) -> Cluster:
    """A cluster of members, by their numbers; HEAD for its head."""
    count = wanted or max(servers)
    head = {"head": "7", "head_image": "h"} if HEAD in servers else {}
    wish = ClusterWish("t", frozenset(range(1, count + 1)), "1", image="i", **head, **wish_of)
    made = {
        number: ClusterMember(
            **{
                "id": f"id{number}",
                "name": "t-head" if number == HEAD else f"t-{number}",
                "status": "ACTIVE",
                "launched": True,
                "wish": wish,
                **values,
            }
        )
        for number, values in servers.items()
    }
    members = tuple(server for number, server in made.items() if number != HEAD)
    heads = (made[HEAD],) if HEAD in made else ()
    return Cluster("g", ClusterGroup("g", "hpc:t"), members, heads)


def plan(
    cluster: Cluster, terms: HealTerms = TERMS, seen_for: float = 10.0, **memory: Any
) -> healing.HealMove:
    first = HealMemory().remember(cluster, 100.0 - seen_for)
    looked = attrs.evolve(first.remember(cluster, 100.0), **memory)
    return healing.plan_healing(cluster, looked, terms, 100.0, DATE)


LINK = {"faults": (FaultWord.LINK,)}
GONE = {"faults": (FaultWord.GONE,)}
ERROR = {"status": "ERROR"}
WELL: dict[str, Any] = {}


def test_faults_that_the_owner_has_not_chosen_are_left_alone() -> None:
    cluster = build({1: GONE, 2: {"faults": (FaultWord.PORT, FaultWord.LINK)}, 3: {}, 4: {}, 5: {}})
    terms = attrs.evolve(TERMS, words=frozenset({FaultWord.GONE, FaultWord.PORT}))
    kept = healing.keep_faults(cluster, terms)
    assert [member.faults for member in kept.members[:2]] == [(FaultWord.GONE,), (FaultWord.PORT,)]
    terms = attrs.evolve(TERMS, words=frozenset({FaultWord.LINK}))
    chosen = plan(healing.keep_faults(cluster, terms))
    assert isinstance(chosen, Replace)
    assert chosen.numbers == (2,)
    # A member that failed in Nova has no word, and is always replaced.
    failed = build({1: {"status": "ERROR"}, 2: LINK, 3: {}, 4: {}})
    terms = attrs.evolve(TERMS, words=frozenset({FaultWord.GONE}))
    chosen = plan(healing.keep_faults(failed, terms))
    assert isinstance(chosen, Replace)
    assert chosen.numbers == (1,)


def test_the_worst_first() -> None:
    cluster = build({1: LINK, 2: GONE, 3: ERROR, 4: WELL, 5: WELL, 6: WELL})
    moves = [plan(cluster, attrs.evolve(TERMS, at_once=count)) for count in (1, 2, 3, 9)]
    assert [move.numbers for move in moves if isinstance(move, Replace)] == [
        (3,),
        (3, 2),
        (3, 2, 1),
        (3, 2, 1),
    ]


def test_a_fault_that_comes_and_goes() -> None:
    ill, well = build({1: LINK, 2: WELL}), build({1: WELL, 2: WELL})
    memory = HealMemory()
    moves = []
    for moment, cluster in ((0, ill), (6, well), (12, ill), (18, ill), (22, ill)):
        memory = memory.remember(cluster, moment)
        moves.append(healing.plan_healing(cluster, memory, TERMS, moment, DATE))
    assert [type(move) for move in moves] == [HoldBack, Healthy, HoldBack, HoldBack, Replace]


def test_a_guest_that_its_device_has_stopped() -> None:
    """Before: the member of a GPU with a fatal error, whose guest QEMU pauses, was not healed."""
    halted = {"power": 3}
    move = plan(build({1: {**halted, "faults": (FaultWord.ERRORS,)}, 2: WELL}))
    assert isinstance(move, Replace)
    assert move.numbers == (1,)
    # Without a fault the guest waits for its user, and so does the healer.
    move = plan(build({1: {**halted, **WELL}, 2: LINK, 3: WELL}))
    assert isinstance(move, HoldBack)
    assert "reboot --hard" in move.reason


def test_members_whose_guests_have_ended() -> None:
    off = {"status": "SHUTOFF"}
    cluster = build({1: off, 2: off, 3: {**off, **LINK}, 4: WELL, 5: off, HEAD: off})
    for endings, expected in (
        ({"id1": 1, "id2": 0, "id3": 1}, (1,)),
        ({"id1": 3, "id5": 1, f"id{HEAD}": 1}, (1, 5)),
        ({"id1": 4, "id5": 1}, (5,)),
    ):
        move = plan(cluster, endings=endings)
        assert move == healing.StartAgain(expected)
    named = attrs.evolve(TERMS, named=frozenset({HEAD}))
    move = plan(cluster, named, endings={"id1": 1, f"id{HEAD}": 1})
    assert move == healing.StartAgain((HEAD,))
    assert plan(build({1: off, 2: WELL})) == Healthy()
    move = plan(build({1: off, 2: WELL}), endings={"id1": 4})
    assert isinstance(move, HoldBack)
    assert "t-1 is off: its guest has ended or not started 4 times within an hour" in move.reason
    assert "openstack hpc cluster replace" in move.reason
    # Before: a fault beside the end was neither replaced nor started.
    faulty = build({1: {**off, **GONE}, 2: WELL})
    move = plan(faulty, endings={"id1": 1})
    assert isinstance(move, Replace)
    assert move.numbers == (1,)
    assert isinstance(plan(faulty, endings={"id1": 0}), HoldBack)


def test_failed_members_beside_one_at_rest() -> None:
    """Before: one member that its owner had stopped kept all others from a replacement."""
    for status, expected in (("SHUTOFF", (2,)), ("SHELVED_OFFLOADED", None)):
        rest = {"status": status}
        move = plan(build({1: rest, 2: ERROR, 3: LINK, 4: WELL, 5: WELL}))
        assert (move.numbers if isinstance(move, Replace) else None) == expected
    cloud = made()
    before = ids_of(cloud)
    cloud.servers[before["train-1"]]["status"] = "SHUTOFF"
    cloud.servers[before["train-2"]]["status"] = "ERROR"
    assert healer_of(cloud)[0].heal(watch=False)
    after = ids_of(cloud)
    assert {name for name in after if after[name] != before[name]} == {"train-2"}
    assert cloud.servers[after["train-1"]]["status"] == "SHUTOFF"


def test_a_chosen_fault_that_goes_before_the_claim_replaces_nothing() -> None:
    """Before: the other fault, which the owner left alone, was a reason after the claim."""
    cloud = made()
    before = ids_of(cloud)
    mark(cloud, "train-2", FaultWord.GONE)
    mark(cloud, "train-2", FaultWord.LINK)
    work, _ = healer_of(cloud, words=frozenset({FaultWord.GONE}))

    def check(cluster: Cluster, numbers: Any, freed: Any) -> None:
        cloud.servers[before["train-2"]]["tags"].remove(FaultWord.GONE.tag)

    work.tools = attrs.evolve(work.tools, check=check)
    assert work.heal(watch=False)
    assert_whole(cloud, before, set())


def test_a_claim_on_a_cluster_that_takes_no_metadata() -> None:
    """Before: the healer looked again and again without a pause."""
    cloud = made()
    work, lines = healer_of(cloud)
    (cluster,) = cloud.clusters()
    assert cluster.wish is not None
    claimed = attrs.evolve(cluster.wish, turn="heal-9-me", generation=9)
    work._write(cluster, claimed)
    for server in cloud.servers.values():
        server["status"] = "SHELVED_OFFLOADED"
    calls = cloud.calls
    work.heal(watch=False)
    assert cloud.calls == calls
    assert "Nova changes no member of train now" in lines


def test_a_claim_that_is_too_long_and_actions_that_are_secret() -> None:
    cloud = made()
    mark(cloud, "train-2")
    (cluster,) = cloud.clusters()
    assert cluster.wish is not None
    long = attrs.evolve(cluster.wish, turn="heal-2-" + "m" * 4000)
    with pytest.raises(ClusterError, match="train cannot be healed"):
        healer._check_length(cluster, long)
    for server in cloud.servers.values():
        server["status"] = "SHUTOFF"
    work, lines = healer_of(cloud)

    def refuse(server: str) -> int:
        raise ClusterCloudError("Policy does not allow it")

    work.tools = attrs.evolve(work.tools, count_endings=refuse)
    work.heal(watch=False)
    assert "Policy does not allow it" in lines[0]


def test_a_claim_of_another_healer() -> None:
    claim = {"turn": "heal-2-other", "generation": 2}
    whole, half = build({1: LINK, 2: WELL}, **claim), build({1: WELL}, 2, **claim)
    assert plan(whole) == HoldBack("another healer is at work", passes=True)
    assert plan(half) == HoldBack("another healer is at work", passes=True)
    # Nothing has changed for a while: that healer is dead.
    assert isinstance(plan(whole, seen_for=40.0), Finish)
    left = plan(half, seen_for=40.0)
    assert isinstance(left, Finish)
    assert (left.wish.turn, left.wish.generation) == ("heal-3-me", 3)
    # This healer's own claim needs no wait, and ends on a whole cluster.
    own = {"turn": "heal-2-me", "generation": 2}
    assert isinstance(plan(build({1: WELL}, 2, **own)), Finish)
    whole = build({1: LINK, 2: WELL}, **own)
    assert plan(whole) == Release(attrs.evolve(whole.wish, turn="", generation=3))
    # A claim is gone, and this healer had deleted a member.
    assert isinstance(plan(build({1: WELL}, 2), owes=True), Finish)
    assert isinstance(plan(build({1: WELL}, 2)), HoldBack)


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (build({1: LINK, 2: {"status": "BUILD"}}), "t-2 is BUILD"),
        (build({1: LINK, 2: {"task": "rebooting"}}), "t-2 is ACTIVE (rebooting)"),
        (build({1: LINK}, 2), "t-2 is missing"),
        (build({1: LINK, 2: WELL}, turn="reboot-2"), "its reboot is not finished"),
    ],
)
def test_a_cluster_in_change_is_waited_for(cluster: Cluster, words: str) -> None:
    move = plan(cluster)
    assert move == HoldBack(words, passes=True)
    late = plan(cluster, seen_for=40.0)
    # Nova ends what it is at; nobody may end another command.
    at_work = "t-2 is" in words and "missing" not in words
    assert isinstance(late, HoldBack)
    assert late.passes is at_work
    assert at_work or "openstack hpc cluster" in late.reason


def test_members_that_rest() -> None:
    for status in ("SHUTOFF", "PAUSED", "SHELVED_OFFLOADED", "VERIFY_RESIZE"):
        for at in (1, 2):
            cluster = build(
                {1: LINK, 2: WELL, 3: WELL}
                | {at: {**(LINK if at == 1 else WELL), "status": status}}
            )
            move = plan(cluster)
            assert isinstance(move, HoldBack)
            assert f"t-{at} is {status}: openstack" in move.reason


def test_the_head_has_to_be_named() -> None:
    cluster = build({1: WELL, 2: WELL, HEAD: GONE})
    assert plan(cluster) == Healthy()
    named = plan(cluster, attrs.evolve(TERMS, named=frozenset({HEAD})))
    assert isinstance(named, Replace)
    assert named.numbers == (HEAD,)


def test_the_only_member_has_to_be_named() -> None:
    for faults in (LINK, ERROR):
        cluster = build({1: faults})
        move = plan(cluster)
        assert isinstance(move, HoldBack)
        assert move.reason.endswith("if it is named: openstack hpc cluster heal t t-1")
        named = plan(cluster, attrs.evolve(TERMS, named=frozenset({1})))
        assert isinstance(named, Replace)
        assert named.numbers == (1,)
    # Of two, both may have the switch's fault, whatever is named.
    both = plan(build({1: LINK, 2: LINK}), attrs.evolve(TERMS, named=frozenset({1, 2})))
    assert isinstance(both, HoldBack)
    # The member beside a head is not the head.
    head = plan(build({1: LINK, HEAD: GONE}), attrs.evolve(TERMS, named=frozenset({HEAD})))
    assert isinstance(head, Replace)
    assert head.numbers == (HEAD,)


def test_members_without_a_fault_take_jobs_again() -> None:
    terms = attrs.evolve(TERMS, undrains=True)
    cluster = build({1: WELL, 2: LINK, 3: WELL, 4: ERROR, 5: {"status": "SHUTOFF"}, HEAD: WELL})
    # A healer before may have drained any of them, and died.
    assert plan(cluster, terms) == Undrain((1, 3))
    left = {"stuck": frozenset({"id1"}), "unfit": frozenset({"id3"})}
    assert not isinstance(plan(cluster, terms, **left), Undrain)
    assert plan(cluster, terms, serving=frozenset({"id1"})) == Undrain((3,))
    named = attrs.evolve(terms, named=frozenset({2, 3, HEAD}))
    assert plan(cluster, named) == Undrain((3, HEAD))
    # A fault that has gone.
    ill, well = build({1: LINK, 2: WELL, 3: WELL}), build({1: WELL, 2: WELL, 3: WELL})
    serving = frozenset({"id1", "id2", "id3"})
    memory = HealMemory(serving=serving).remember(well, 0)
    assert memory.serving == serving
    memory = memory.remember(ill, 5).remember(well, 10)
    assert healing.plan_healing(well, memory, terms, 10, DATE) == Undrain((1,))
    # Another healer has drained the member that it replaces.
    claim = {"turn": "heal-2-other", "generation": 2}
    assert isinstance(plan(build({1: WELL, 2: WELL}, **claim), terms), HoldBack)


def test_a_busy_member_stays_without_force() -> None:
    cluster = build({1: LINK, 2: GONE, 3: WELL, 4: WELL, 5: WELL})
    terms = attrs.evolve(TERMS, force=False, drains=True)
    asked = {"busy": frozenset({"id2"}), "free": frozenset({"id1"})}
    assert plan(cluster, terms) == DrainFirst((2,))
    assert plan(cluster, terms, busy=frozenset({"id2"})) == DrainFirst((1,))
    moves = [plan(cluster, attrs.evolve(terms, force=force), **asked) for force in (False, True)]
    assert [move.numbers for move in moves if isinstance(move, Replace)] == [(1,), (2,)]
    both = plan(cluster, terms, busy=frozenset({"id1", "id2"}))
    assert both == HoldBack("not replaced: t-1, t-2")
    # Without the program nothing is known of jobs on members that run.
    silent = plan(build({1: LINK, 2: ERROR, 3: WELL, 4: WELL}), attrs.evolve(terms, drains=False))
    assert isinstance(silent, Replace)
    assert silent.numbers == (2,)


# -- against brute force -------------------------------------------------------------------------

servers = st.fixed_dictionaries(
    {
        "status": st.sampled_from(["ACTIVE"] * 6 + ["ERROR"]),
        # Most are well: of more than half of them nothing is left to decide.
        "faults": st.sampled_from([()] * 9 + [(word,) for word in FaultWord])
        | st.just((FaultWord.LINK, FaultWord.FIRMWARE)),
    }
)


def ill(server: dict[str, Any]) -> bool:
    return server["status"] == "ERROR" or bool(REPLACED & {w.value for w in server["faults"]})


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[int, dict[str, Any]], Cluster, HealMemory, HealTerms]:
    made = {number: draw(servers) for number in range(1, draw(st.integers(1, 6)) + 1)}
    if draw(st.booleans()):
        made[HEAD] = draw(servers)
    ages = draw(st.lists(st.integers(0, 2 * HOUR), max_size=6))
    cluster = build(made, healed=tuple(int(DATE) - age for age in sorted(ages, reverse=True)))
    ids = [f"id{number}" for number in made]
    some = st.frozensets(st.sampled_from(ids))
    seen = {server: draw(st.sampled_from([50.0, 60.0, 89.0, 90.0, 91.0])) for server in ids}
    memory = HealMemory(
        seen=seen, unchanged=0.0, free=draw(some), busy=draw(some), refused=draw(some)
    )
    terms = HealTerms(
        "me",
        10.0,
        most_per_hour=draw(st.integers(1, 6)),
        at_once=draw(st.integers(1, 4)),
        drains=draw(st.booleans()),
        force=draw(st.booleans()),
        named=draw(st.just(frozenset()) | st.frozensets(st.sampled_from(sorted(made)))),
    )
    return made, cluster, memory, terms


def allowed(
    made: dict[int, dict[str, Any]],
    cluster: Cluster,
    memory: HealMemory,
    terms: HealTerms,
    some: Sequence[int],
) -> bool:
    """Whether the rules allow to replace these members now. Written from the user's page."""
    assert cluster.wish is not None
    members = [made[number] for number in made if number != HEAD]
    if len(members) == 1 and 1 in some and 1 not in terms.named:
        return False
    if len(members) > 1 and 2 * sum(map(ill, members)) > len(members):
        return False
    past = sum(DATE - at < HOUR for at in cluster.wish.healed)
    if past + len(some) > terms.most_per_hour or len(some) > terms.at_once:
        return False
    for number in some:
        server = f"id{number}"
        if not ill(made[number]) or 100.0 - memory.seen[server] < 10.0:
            return False
        if server in memory.refused or (server in memory.busy and not terms.force):
            return False
        if number not in terms.named and (terms.named or number == HEAD):
            return False
    return True


@given(worlds())
def test_the_plan_against_brute_force(world: Any) -> None:
    made, cluster, memory, terms = world
    move = healing.plan_healing(cluster, memory, terms, 100.0, DATE)
    sets = [
        some
        for count in range(1, len(made) + 1)
        for some in itertools.combinations(sorted(made), count)
        if allowed(*world, some)
    ]
    most = max(map(len, sets), default=0)
    asked = memory.free | memory.busy
    if isinstance(move, Replace):
        assert tuple(sorted(move.numbers)) in sets
        without = not terms.drains and not terms.force
        assert not without or all(made[number]["status"] == "ERROR" for number in move.numbers)
        assert without or len(move.numbers) == most
        assert not terms.drains or {f"id{number}" for number in move.numbers} <= asked
        before = [at for at in cluster.wish.healed if DATE - at < HOUR]
        assert list(move.wish.healed) == before + [int(DATE)] * len(move.numbers)
        assert move.wish.order > cluster.wish.order
    elif isinstance(move, DrainFirst):
        assert terms.drains
        assert tuple(sorted(move.numbers)) in sets
        assert not {f"id{number}" for number in move.numbers} & asked
    elif isinstance(move, Healthy):
        scope = terms.named or {number for number in made if number != HEAD}
        assert not any(ill(made[number]) for number in scope if number in made)
    else:
        assert isinstance(move, HoldBack)
        failed = [some for some in sets if all(made[n]["status"] == "ERROR" for n in some)]
        assert not (sets if terms.drains or terms.force else most == 1 and failed)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    events = st.tuples(
        st.sampled_from(["fault", "fault", "well", "look", "look", "look", "new healer"]),
        st.integers(1, 5),
        st.sampled_from([1, 5, 12, 60, 700, 1900]),
    )
    return draw(st.lists(events, max_size=80))


@given(histories(), st.integers(1, 4))
def test_never_more_than_so_many_in_any_hour(
    history: list[tuple[str, int, int]], most: int
) -> None:
    """Two healers over hours; each may be another process at any moment."""
    words: dict[int, tuple[FaultWord, ...]] = dict.fromkeys(range(1, 6), ())
    ids = {number: f"a{number}" for number in words}
    wish: dict[str, Any] = {}
    memories = [HealMemory(), HealMemory()]
    now, replaced, births = DATE, [], itertools.count()
    # Of each healer: number and id of a server -> its first look in a row that saw a fault.
    looks: list[dict[tuple[int, str], float]] = [{}, {}]
    for event, number, seconds in history:
        now += seconds
        if event == "fault":
            words[number] = (FaultWord.ERRORS,)
        elif event == "well":
            words[number] = ()
        elif event == "new healer":
            memories[number % 2], looks[number % 2] = HealMemory(), {}
        else:
            seen = looks[number % 2]
            looks[number % 2] = {
                (at, ids[at]): seen.get((at, ids[at]), now) for at in words if words[at]
            }
            cluster = build({at: {"id": ids[at], "faults": words[at]} for at in words}, **wish)
            memory = memories[number % 2].remember(cluster, now)
            memories[number % 2] = memory
            terms = HealTerms(f"h{number % 2}", 10.0, most_per_hour=most, force=True)
            move = healing.plan_healing(cluster, memory, terms, now, now)
            if isinstance(move, Replace):
                (chosen,) = move.numbers
                # Never a healthy one, nor one that this healer has not seen ill for so long.
                assert now - looks[number % 2][chosen, ids[chosen]] >= 10.0
                assert 2 * sum(map(bool, words.values())) <= len(words)
                replaced.append(now)
                words[chosen], ids[chosen] = (), f"b{next(births)}"
                done = attrs.evolve(move.wish, turn="", generation=move.wish.generation + 1)
                wish = {"healed": done.healed, "generation": done.generation}
    for at in replaced:
        assert sum(at <= other < at + HOUR for other in replaced) <= most


# -- what the owner can read ------------------------------------------------------------------


def test_where_words_come_from() -> None:
    server: dict[str, Any] = {
        "id": "s",
        "status": "ACTIVE",
        "tags": ["mine", "hpc-fault=link", "hpc-fault=later-word", "hpc-fault=gone", 7],
        "metadata": {"hpc_accept": "v1:slow:quick:1764180000:"},
        "host_status": "UNKNOWN",
    }
    failed = {"id": "p", "device_id": "s", "status": "ERROR"}
    words = [word.value for word in member_faults.read_faults(server, [failed])]
    assert words == ["host", "gone", "link", "partition", "slow"]
    for change in ({"status": "BUILD"}, {"id": "other"}):
        assert FaultWord.PARTITION not in member_faults.read_faults(server | change, [failed])
    assert FaultWord.PARTITION not in member_faults.read_faults(
        server, [failed | {"status": "DOWN"}]
    )
    # Nova shows no status, or one that is no fault.
    for status in ("", "UP", "MAINTENANCE", None):
        quiet = server | {"host_status": status}
        assert FaultWord.HOST not in member_faults.read_faults(quiet, [])
    assert member_faults.read_faults({"id": "s"}) == ()


# -- the shell ------------------------------------------------------------------------------------

WISH = ClusterWish("train", frozenset({1, 2, 3}), "42", image="img")


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pace(self) -> Pace:
        return Pace(limit=1000.0, sleep=self.sleep, clock=lambda: self.now)


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)


def made(wish: ClusterWish = WISH) -> ModelCloud:
    cloud = ModelCloud()
    commands.create_cluster(cloud, wish, Secrets(), Nearness(), "a77e", Clock().pace())
    cloud.log.clear()
    cloud.calls = 0
    return cloud


def ids_of(cloud: ModelCloud) -> dict[str, str]:
    return {server["name"]: id for id, server in cloud.servers.items()}


def mark(cloud: ModelCloud, name: str, word: FaultWord = FaultWord.LINK) -> None:
    cloud.servers[ids_of(cloud)[name]]["tags"].append(word.tag)


def healer_of(
    cloud: ModelCloud, name: str = "me", clock: Clock | None = None, **more: Any
) -> tuple[Healer, list[str]]:
    lines: list[str] = []
    clock = clock or Clock()
    terms = HealTerms(name, 10.0, **{"force": True, **more})
    tools = HealTools(
        drain=lambda member: False,
        undrain=lambda member: True,
        check=lambda cluster, numbers, freed: None,
        count_endings=lambda server: cloud.servers[server].get("endings", 0),
        settle=lambda cluster, numbers: None,
        tell=lines.append,
        date=lambda: DATE + clock.now,
    )
    (group,) = cloud.groups
    return Healer(cloud, group, terms, tools, Secrets(), clock.pace()), lines


def assert_whole(cloud: ModelCloud, before: dict[str, str], changed: set[str]) -> None:
    after = ids_of(cloud)
    assert len(cloud.servers) == len(after)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == changed
    (cluster,) = cloud.clusters()
    assert cluster.state.value == "ACTIVE", cluster.reason
    assert cluster.wish is not None
    assert cluster.wish.turn == ""


def test_a_member_whose_guest_has_ended_is_started_again_as_the_same_server() -> None:
    cloud = made()
    before = ids_of(cloud)
    ended, stopped = (cloud.servers[before[name]] for name in ("train-2", "train-3"))
    for server in (ended, stopped):
        server.update({"status": "SHUTOFF"})
    ended["endings"] = 1
    work, lines = healer_of(cloud)
    assert work.heal(watch=False)
    assert ids_of(cloud) == before
    assert (ended["status"], stopped["status"]) == ("ACTIVE", "SHUTOFF")
    assert lines[0] == "train-2 is started again: its guest had ended"
    # A server that its owner has locked stays off, and the healer reports that.
    ended.update({"status": "SHUTOFF", "locked": True})
    work, lines = healer_of(cloud)
    assert not work.heal(watch=False)
    assert lines[1] == "train-2 is not started: is locked"


def test_a_healer_dies_at_any_step_and_another_one_goes_on() -> None:
    calls = 0
    cloud = made()
    mark(cloud, "train-2")
    assert healer_of(cloud)[0].heal(watch=False)
    total = cloud.calls
    assert total >= 8
    for fault in ("kill", "kill-after"):
        for at in range(1, total + 1):
            cloud = made()
            before = ids_of(cloud)
            mark(cloud, "train-2")
            cloud.faults = {at: fault}
            with pytest.raises(Killed):
                healer_of(cloud)[0].heal(watch=False)
            cloud.revive()
            assert healer_of(cloud, "next")[0].heal(watch=False)
            assert_whole(cloud, before, {"train-2"})
            calls += 1
    assert calls == 2 * total


def test_answers_that_are_lost() -> None:
    for at in range(1, 12):
        for fault in ("lose", "lose-after"):
            cloud = made()
            before = ids_of(cloud)
            mark(cloud, "train-3")
            cloud.faults = {at: fault}
            assert healer_of(cloud)[0].heal(watch=False)
            assert_whole(cloud, before, {"train-3"})


@pytest.mark.parametrize("at_once", [1, 2])
def test_members_that_have_failed_together(at_once: int) -> None:
    """One after the other: each replacement leaves the others, and ends its claim."""
    wish = attrs.evolve(WISH, members=frozenset(range(1, 7)), hosts=True, head="9", head_image="i")
    cloud = made(wish)
    before = ids_of(cloud)
    failed = {"train-2", "train-4", "train-head"}
    for name in failed:
        cloud.servers[before[name]] |= {"status": "ERROR", "fault": {"message": "it broke"}}
    work, lines = healer_of(cloud, at_once=at_once)
    assert work.heal(watch=False), lines
    after = ids_of(cloud)
    # The head was not named.
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"train-2", "train-4"}
    (cluster,) = cloud.clusters()
    assert cluster.wish is not None
    assert cluster.wish.turn == ""
    assert healer_of(cloud, named=frozenset({HEAD}))[0].heal(watch=False)
    assert_whole(cloud, before, failed)


@pytest.mark.parametrize("head", ["", "9"])
def test_the_only_member_is_another_server(head: str) -> None:
    wish = attrs.evolve(WISH, members=frozenset({1}), head=head, head_image=head and "img")
    for words in ({}, {"named": frozenset({1})}):
        cloud = made(wish)
        before = ids_of(cloud)
        mark(cloud, "train-1")
        work, lines = healer_of(cloud, **words)
        assert work.heal(watch=False) is bool(words), lines
        assert_whole(cloud, before, {"train-1"} if words else set())
    # Its last server is gone, and with it the claim: the group's name has the rest.
    total = cloud.calls
    for fault in ("kill", "kill-after"):
        for at in range(1, total + 1):
            cloud = made(wish)
            before = ids_of(cloud)
            mark(cloud, "train-1")
            cloud.faults = {at: fault}
            with pytest.raises(Killed):
                healer_of(cloud, named=frozenset({1}))[0].heal(watch=False)
            cloud.revive()
            work, lines = healer_of(cloud, "next", named=frozenset({1}))
            if not work.heal(watch=False):
                assert (
                    "train-1 is missing: openstack hpc cluster create --resume train, or"
                    in (lines[-1])
                )
                (cluster,) = cloud.clusters()
                commands.resume_cluster(cloud, cluster, None, Secrets(), Clock().pace())
            assert_whole(cloud, before, {"train-1"})


def test_the_newest_record_does_not_go_with_a_server() -> None:
    """Nova changes no metadata of a failed member, so that the claim is the head's alone."""
    wish = attrs.evolve(WISH, members=frozenset({1}), head="9", head_image="img")
    cloud = made(wish)
    before = ids_of(cloud)
    cloud.servers[before["train-1"]] |= {"status": "ERROR", "fault": {"message": "it broke"}}
    mark(cloud, "train-head")
    work, lines = healer_of(cloud, named=frozenset({HEAD}))
    assert not work.heal(watch=False)
    assert "replace train train-1; nothing has changed" in "".join(lines)
    assert ids_of(cloud) == before
    assert healer_of(cloud, named=frozenset({1}))[0].heal(watch=False)
    assert healer_of(cloud, named=frozenset({HEAD}))[0].heal(watch=False)
    assert_whole(cloud, before, {"train-1", "train-head"})


def test_a_drained_member_takes_jobs_again_whoever_dies() -> None:
    """Healers die at each step, with the member drained; the next one undrains it."""

    def drained_healer(cloud: ModelCloud, drained: set[str], name: str) -> Healer:
        work, _ = healer_of(cloud, name, force=False, drains=True, undrains=True)

        def drain(member: ClusterMember) -> bool:
            drained.add(member.name)
            return True

        def undrain(member: ClusterMember) -> bool:
            assert not healing.is_faulty(member)
            drained.discard(member.name)
            return True

        work.tools = attrs.evolve(work.tools, drain=drain, undrain=undrain)
        return work

    cloud = made()
    mark(cloud, "train-2")
    assert drained_healer(cloud, set(), "first").heal(watch=False)
    total = cloud.calls
    for fault in ("kill", "kill-after"):
        for at in range(1, total + 1):
            cloud, drained = made(), set[str]()
            before = ids_of(cloud)
            mark(cloud, "train-2")
            cloud.faults = {at: fault}
            with pytest.raises(Killed):
                drained_healer(cloud, drained, "first").heal(watch=False)
            assert drained == {"train-2"}
            cloud.revive()
            assert drained_healer(cloud, drained, "next").heal(watch=False)
            assert drained == set()
            assert_whole(cloud, before, {"train-2"})


def test_a_member_that_is_not_accepted_stays_drained() -> None:
    cloud = made()
    before = ids_of(cloud)
    mark(cloud, "train-2")
    work, lines = healer_of(cloud, undrains=True)
    returned: list[str] = []

    def settle(cluster: Cluster, numbers: Any) -> None:
        raise ClusterError("it does not answer")

    def undrain(member: ClusterMember) -> bool:
        returned.append(member.name)
        return member.name != "train-3"

    work.tools = attrs.evolve(work.tools, settle=settle, undrain=undrain)
    assert not work.heal(watch=False)
    assert sorted(set(returned)) == ["train-1", "train-3"], lines
    assert_whole(cloud, before, {"train-2"})


def run_two(cloud: ModelCloud, turns: Sequence[bool], interval: float = 10.0) -> list[list[str]]:
    """Run two healers side by side; at each look or pause the next one of *turns* goes on."""
    clock = Clock()
    lock, order = threading.Condition(), list(turns)
    state: dict[str, Any] = {"now": 0, "left": {0, 1}}

    def switch(me: int) -> None:
        with lock:
            wanted = int(order.pop(0)) if order else 1 - me
            state["now"] = wanted if wanted in state["left"] else me
            lock.notify_all()
            lock.wait_for(lambda: state["now"] == me or (1 - me) not in state["left"], 30)

    lines: list[list[str]] = [[], []]

    def run(me: int) -> None:
        work, said = healer_of(cloud, f"h{me}", clock)
        work.terms = attrs.evolve(work.terms, interval=interval)
        lines[me] = said

        def sleep(seconds: float) -> None:
            clock.now += seconds / 2
            switch(me)

        look = cloud.look

        class Turned:
            """The same cloud, whose reads are points at which the other healer may go on."""

            def look(self, group: str) -> Cluster:
                found = look(group)
                switch(me)
                return found

            def __getattr__(self, name: str) -> Any:
                return getattr(cloud, name)

        work.pace = attrs.evolve(work.pace, sleep=sleep)
        work.cloud = Turned()  # type: ignore[assignment]
        try:
            with lock:
                lock.wait_for(lambda: state["now"] == me or (1 - me) not in state["left"], 30)
            lines[me].append(f"well: {work.heal(watch=False)}")
        except ClusterError as error:
            lines[me].append(f"error: {error}")
        finally:
            with lock:
                state["left"].discard(me)
                state["now"] = 1 - me
                lock.notify_all()

    threads = [threading.Thread(target=run, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return lines


@settings(max_examples=30)
@given(st.lists(st.booleans(), max_size=60))
def test_two_healers_at_once(turns: list[bool]) -> None:
    """However their looks interleave, the member is replaced once and no server is too many."""
    cloud = made()
    before = ids_of(cloud)
    mark(cloud, "train-2")
    lines = run_two(cloud, turns)
    assert_whole(cloud, before, {"train-2"})
    assert cloud.log.count("servers") == 1, lines
    (cluster,) = cloud.clusters()
    assert cluster.wish is not None
    assert len(cluster.wish.healed) == 1, lines


@settings(max_examples=60)
@given(st.lists(st.booleans(), max_size=60), st.sampled_from([0.0, 0.1, 1.0]))
def test_two_healers_that_take_each_other_for_dead(turns: list[bool], interval: float) -> None:
    """Their requests last longer than their patience: nothing is left half, nor too many."""
    cloud = made()
    before = ids_of(cloud)
    mark(cloud, "train-2")
    lines = run_two(cloud, turns, interval)
    if any("well: True" in text for text in (lines[0][-1], lines[1][-1])):
        assert_whole(cloud, before, {"train-2"})
    else:
        # Each had ended before the other one was done: a third one does not wait for them.
        assert healer_of(cloud, "third")[0].heal(watch=False), lines
        assert_whole(cloud, before, {"train-2"})
