# SPDX-License-Identifier: Apache-2.0
"""Where the servers of a host can go."""

from __future__ import annotations

import itertools
import re
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_hpc.fabric.model import FabricMap, FabricPlace
from nova_hpc_common.level import Location
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud import server_moves
from nova_hpc_tools.cloud.drain import DrainedServer, DrainPlan, Move, plan_drain, plan_evacuation
from nova_hpc_tools.cloud.drain_api import DrainServer
from nova_hpc_tools.cloud.server_moves import DrainStopError, MovePatience
from nova_hpc_tools.fabric.map_aggregates import aggregates_of
from nova_hpc_tools.snapshot import (
    Flavor,
    FlavorWant,
    FunctionUse,
    Server,
    Snapshot,
    SnapshotDevice,
    SnapshotNode,
)

SPECS = {"hpc:affinity": "host", "hw:pci_numa_affinity_policy": "preferred"}
LEAF = {**SPECS, "hpc:fabric": "leaf"}
NEAR = {**LEAF, "hpc:fabric_policy": "preferred"}


def flavor(devices: int, specs: dict[str, str] = SPECS) -> Flavor:
    name = f"f{devices}{len(specs)}"
    return Flavor(
        name=name,
        id=name,
        extra_specs=specs,
        wants=(FlavorWant("gpu", devices),),
        numa_policy="preferred",
    )


def node(
    name: str, free: int, leaf: str | None = None, used: dict[str, int] | None = None
) -> SnapshotNode:
    owners = [server for server, count in (used or {}).items() for _ in range(count)]
    devices = [
        SnapshotDevice(
            provider=f"{name}-{number}",
            address=f"0000:{number + 16:02x}:00.0",
            free=0 if number < len(owners) else 1,
            location=Location(numa=0, root="pci0000:00"),
            aliases=frozenset({"gpu"}),
            role="gpu",
            used=(FunctionUse(f"0000:{number + 16:02x}:00.0", owners[number]),)
            if number < len(owners)
            else (),
        )
        for number in range(free + len(owners))
    ]
    aggregates = {}
    if leaf is not None:
        (made,) = aggregates_of(FabricMap([FabricPlace(name, leaf=leaf)], name="ib"))
        aggregates = {made.name: dict(made.metadata)}
    return SnapshotNode(host=name, node=name, aggregates=aggregates, devices=tuple(devices))


def cloud(
    nodes: list[SnapshotNode], servers: dict[str, Flavor]
) -> tuple[Snapshot, list[DrainedServer]]:
    """Servers, by their names, are on the first node."""
    flavors = {each.name: each for each in servers.values()}
    taken = Snapshot(
        taken="now",
        nova="34",
        hosts=tuple(nodes),
        flavors=tuple(flavors.values()),
        aliases=(snapshot.SnapshotAlias("gpu", "CUSTOM_GPU"),),
        servers=tuple(
            Server(name, name, nodes[0].host, nodes[0].host, each.name, each.extra_specs)
            for name, each in servers.items()
        ),
    )
    movers = [
        DrainedServer(name, name, each.name, each.extra_specs) for name, each in servers.items()
    ]
    return taken, movers


def targets(found: DrainPlan) -> dict[str, str | None]:
    assert found.refusals == {}
    return {move.server: move.target for move in found.moves}


def test_each_goes_where_it_fits() -> None:
    nodes = [node("a", 0, used={"s": 2, "t": 1}), node("b", 1), node("c", 2)]
    found = plan_drain(*with_host(cloud(nodes, {"s": flavor(2), "t": flavor(1)})))
    assert targets(found) == {"s": "c", "t": "b"}
    assert [move.server for move in found.moves] == ["s", "t"]
    assert {move.level for move in found.moves} <= {"host", "root", "switch", "numa", "socket"}


def with_host(made: tuple[Snapshot, list[DrainedServer]]) -> Any:
    taken, movers = made
    return taken, "a", movers


def test_a_choice_is_taken_back() -> None:
    """The first would fit on both; the second has to stay in its leaf."""
    nodes = [
        node("a", 0, "l1", {"m": 2, "z": 2}),
        node("b", 2, "l1"),
        node("c", 2, "l2"),
    ]
    for names in (("m", "z"), ("z", "m")):
        servers = {names[0]: flavor(2), names[1]: flavor(2, LEAF)}
        assert targets(plan_drain(*with_host(cloud(nodes, servers)))) == {
            names[0]: "c",
            names[1]: "b",
        }


def test_who_has_no_place_is_named() -> None:
    nodes = [node("a", 0, "l1", {"m": 2, "z": 1}), node("b", 1, "l1"), node("c", 4, "l2")]
    found = plan_drain(*with_host(cloud(nodes, {"m": flavor(2, LEAF), "z": flavor(1)})))
    (text,) = found.refusals.values()
    assert text.startswith("m (m): no host in leaf l1 has room for it: ")
    assert found.moves == ()
    # Preferred: the next best will do.
    near = plan_drain(*with_host(cloud(nodes, {"m": flavor(2, NEAR), "z": flavor(1)})))
    assert targets(near)["m"] == "c"
    # Room for each, and not for both.
    nodes = [node("a", 0, used={"m": 2, "z": 2}), node("b", 3)]
    (text,) = plan_drain(
        *with_host(cloud(nodes, {"m": flavor(2), "z": flavor(2)}))
    ).refusals.values()
    assert text == "z (z): no host has room for it beside the 1 that go before it"


def test_server_groups_bind() -> None:
    nodes = [node("a", 0, used={"m": 1}), node("b", 1), node("c", 1)]
    taken, (mover,) = cloud(nodes, {"m": flavor(1)})
    apart = attrs.evolve(mover, apart=frozenset({"b"}))
    assert targets(plan_drain(taken, "a", [apart])) == {"m": "c"}
    tied = attrs.evolve(mover, tied="it stays")
    assert plan_drain(taken, "a", [tied]).refusals == {"m": "m (m): it stays"}


def test_what_cannot_be_planned_is_said() -> None:
    nodes = [node("a", 0, None, {"m": 1}), node("b", 1)]
    taken, (mover,) = cloud(nodes, {"m": flavor(1, LEAF)})
    (text,) = plan_drain(taken, "a", [mover]).refusals.values()
    assert "Nova has no leaf of a" in text
    changed = attrs.evolve(mover, extra_specs=SPECS)
    (text,) = plan_drain(taken, "a", [changed]).refusals.values()
    assert "was changed since it was created" in text
    # Without devices there is nothing to plan: Nova chooses.
    bare = DrainedServer("n", "n", "any", {"hpc:fabric": "leaf", "hpc:fabric_policy": "preferred"})
    assert plan_drain(taken, "a", [bare]).moves == (Move("n", "n", None),)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["l1", "l2"])), max_size=3),
    st.data(),
)
def test_a_plan_is_found_where_there_is_one(sizes, rooms, data) -> None:
    """Against all ways to give the servers to hosts."""
    bound = [data.draw(st.booleans()) for _ in sizes]
    names = [f"s{number}" for number in range(len(sizes))]
    nodes = [node("a", 0, "l1", dict(zip(names, sizes, strict=True)))]
    nodes += [node(f"h{n}", free, leaf) for n, (free, leaf) in enumerate(rooms)]
    servers = {
        name: flavor(size, LEAF if leaf else SPECS)
        for name, size, leaf in zip(names, sizes, bound, strict=True)
    }
    found = plan_drain(*with_host(cloud(nodes, servers)))
    possible = any(
        all(
            sum(size for size, at in zip(sizes, way, strict=True) if at == n) <= free
            for n, (free, _) in enumerate(rooms)
        )
        and all(not leaf or rooms[at][1] == "l1" for leaf, at in zip(bound, way, strict=True))
        for way in itertools.product(range(len(rooms)), repeat=len(sizes))
    )
    assert (found.refusals == {}) == possible
    if possible:
        for n, (free, leaf) in enumerate(rooms):
            mine = [each for each, target in targets(found).items() if target == f"h{n}"]
            assert sum(sizes[names.index(each)] for each in mine) <= free
            assert leaf == "l1" or not any(bound[names.index(each)] for each in mine)
    # Of a dead host, the most that can go go: no further one could.
    partly = plan_evacuation(*with_host(cloud(nodes, servers)))
    gone = {move.server for move in partly.moves}
    assert sorted([*gone, *partly.refusals]) == names
    assert (gone == set(names)) == possible
    for name in sorted(partly.refusals):
        more = [at for at, each in enumerate(names) if each in gone or each == name]
        assert not any(
            all(
                sum(sizes[one] for one, at in zip(more, way, strict=True) if at == n) <= free
                for n, (free, _) in enumerate(rooms)
            )
            and all(
                not bound[one] or rooms[at][1] == "l1" for one, at in zip(more, way, strict=True)
            )
            for way in itertools.product(range(len(rooms)), repeat=len(more))
        )
    for n, (free, leaf) in enumerate(rooms):
        there = [names.index(move.server) for move in partly.moves if move.target == f"h{n}"]
        assert sum(sizes[one] for one in there) <= free
        assert leaf == "l1" or not any(bound[one] for one in there)


def test_of_a_dead_host_the_others_go() -> None:
    nodes = [node("a", 0, used={"big": 4, "x": 1, "y": 1, "t": 1}), node("b", 2)]
    servers = {"big": flavor(4), "x": flavor(1), "y": flavor(1), "t": flavor(1)}
    taken, movers = cloud(nodes, servers)
    movers = [attrs.evolve(each, tied="it stays" if each.name == "t" else "") for each in movers]
    found = plan_evacuation(taken, "a", movers)
    assert {move.server: move.target for move in found.moves} == {"x": "b", "y": "b"}
    assert found.refusals.keys() == {"big", "t"}
    assert found.refusals["t"] == "t (t): it stays"
    assert found.refusals["big"].startswith("big (big): no host has room for it: ")


# -- one server leaves ------------------------------------------------------------------


@attrs.define
class Script:
    """A server whose states come one after the other."""

    states: list[tuple[str, str, str]]
    calls: list[str] = attrs.Factory(list)

    def server(self, uuid: str) -> DrainServer | None:
        status, task, host = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return None if status == "GONE" else DrainServer(uuid, "s", status, task, host, "f", {})

    def migrate(self, uuid: str, target: str | None) -> None:
        self.calls.append(f"migrate {target}")

    def confirm(self, uuid: str) -> None:
        self.calls.append("confirm")

    def evacuate(self, uuid: str, target: str | None) -> None:
        self.calls.append(f"evacuate {target}")

    def why(self, uuid: str, action: str = "migrate") -> str:
        return f"no valid host for {action}"


MOVING = [("ACTIVE", "", "a"), ("RESIZE", "resize_prep", "a"), ("RESIZE", "resize_finish", "b")]
MOVED = ("VERIFY_RESIZE", "", "b")


@pytest.mark.parametrize(
    ("states", "calls", "end"),
    [
        ([*MOVING, MOVED, MOVED, ("ACTIVE", "", "b")], ["migrate b", "confirm"], "b"),
        ([MOVED, MOVED, ("SHUTOFF", "", "b")], ["confirm"], "b"),
        ([*MOVING, ("GONE", "", "")], ["migrate b"], ""),
        ([("GONE", "", "")], [], ""),
        ([*MOVING, ("ACTIVE", "", "a")], ["migrate b"], "as before: Nova did not move it: no val"),
        ([*MOVING, ("ERROR", "", "a")], ["migrate b"], "is in ERROR on a: no valid host"),
        ([("PAUSED", "", "a")], [], "is PAUSED now and cannot be moved"),
        (MOVING, ["migrate b"], "has not left after 9 seconds: it is RESIZE (resize_finish) on b"),
    ],
)
def test_how_a_move_ends(states: list[tuple[str, str, str]], calls: list[str], end: str) -> None:
    seconds = itertools.count()
    patience = MovePatience(9, lambda _: None, lambda: next(seconds))
    script = Script(list(states))
    move = Move("s", "s", "b")
    if end in ("", "b"):
        assert server_moves.move_server_off(script, "a", move, patience) == end
    else:
        with pytest.raises(DrainStopError, match=re.escape(end)):
            server_moves.move_server_off(script, "a", move, patience)
    assert script.calls == calls


REBUILDS = [
    ("ACTIVE", "", "a"),
    ("REBUILD", "rebuilding", "a"),
    ("REBUILD", "rebuild_spawning", "b"),
]


@pytest.mark.parametrize(
    ("states", "calls", "end"),
    [
        ([*REBUILDS, ("ACTIVE", "", "b")], ["evacuate b"], "b"),
        ([*REBUILDS, ("SHUTOFF", "", "b")], ["evacuate b"], "b"),
        ([("ERROR", "", "a"), *REBUILDS[1:], ("ACTIVE", "", "b")], ["evacuate b"], "b"),
        # A run that was cut short: it has a task already, or is there.
        ([*REBUILDS[1:], ("ACTIVE", "", "b")], [], "b"),
        ([("ACTIVE", "", "b")], [], "b"),
        ([*REBUILDS, ("GONE", "", "")], ["evacuate b"], ""),
        ([("GONE", "", "")], [], ""),
        (
            [*REBUILDS, ("ERROR", "", "a")],
            ["evacuate b"],
            "is ERROR on a: Nova did not evacuate it: no valid host for evacuate",
        ),
        ([*REBUILDS, ("ERROR", "", "b")], ["evacuate b"], "is ERROR on b: Nova did not evacuate"),
        (REBUILDS, ["evacuate b"], "not evacuated after 9 seconds: it is REBUILD (rebuild_spawn"),
    ],
)
def test_how_an_evacuation_ends(
    states: list[tuple[str, str, str]], calls: list[str], end: str
) -> None:
    seconds = itertools.count()
    patience = MovePatience(9, lambda _: None, lambda: next(seconds))
    script = Script(list(states))
    move = Move("s", "s", "b")
    if end in ("", "b"):
        assert server_moves.evacuate_server(script, "a", move, patience) == end
    else:
        with pytest.raises(DrainStopError, match=re.escape(end)):
            server_moves.evacuate_server(script, "a", move, patience)
    assert script.calls == calls


def test_only_servers_that_nova_evacuates_are_tried() -> None:
    def server(status: str, task: str = "") -> DrainServer:
        return DrainServer(f"{status}{task}", "s", status, task, "a", "f", {})

    servers = [server(status) for status in ("ACTIVE", "SHUTOFF", "ERROR", "PAUSED")]
    servers.append(server("ACTIVE", "rebooting"))
    dead = server_moves.find_unmovable_servers(servers, dead=True)
    assert dead.keys() == {"PAUSED", "ACTIVErebooting"}
    assert dead["PAUSED"].endswith("Nova evacuates servers that are ACTIVE, SHUTOFF or ERROR")
    assert dead["ACTIVErebooting"].endswith("openstack server set --state error ACTIVErebooting")
    alive = server_moves.find_unmovable_servers(servers)
    assert alive.keys() == {"ERROR", *dead}
    assert alive["ACTIVErebooting"].endswith("(rebooting): wait for it")
