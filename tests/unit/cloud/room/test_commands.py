# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc capacity --make-room`` and ``nova-hpc when``, as operators run them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from nova_hpc.fabric.model import FabricMap, FabricPlace
from nova_hpc_tools.cloud.capacity_command import ShowCapacity
from nova_hpc_tools.cloud.when_command import ShowWhen
from nova_hpc_tools.fabric.map_aggregates import aggregates_of
from nova_hpc_tools.main import NovaHpc
from nova_hpc_tools.snapshot import Server, Snapshot
from nova_hpc_tools.snapshot import document as snapshot_document
from tests.unit.cloud.room.random_clouds import flavor_of
from tests.unit.snapshot import clouds

NOW = datetime.datetime.now(datetime.UTC)
LATER = f"{NOW + datetime.timedelta(days=5):%Y-%m-%dT%H:%MZ}"
Run = Callable[..., tuple[int, str, str]]


def a_cloud(**words: dict[str, str]) -> Snapshot:
    """Two hosts of leaf l1 are half full, one of l2 is full; *words* are of the servers."""
    fabric = FabricMap(
        places=tuple(
            FabricPlace(host, leaf=leaf) for host, leaf in (("a", "l1"), ("b", "l1"), ("c", "l2"))
        )
    )
    four, two = flavor_of(4, "host"), flavor_of(2, "switch")
    movable = flavor_of(2, "switch", movable="yes")
    nodes = [
        clouds.node("a", [2, ["s", "s"]]),
        clouds.node("b", [["t", "t"], 2]),
        clouds.node("c", [["u", "u"], ["u", "u"]]),
    ]
    hosts = [
        attrs.evolve(
            node,
            aggregates={
                each.name: dict(each.metadata)
                for each in aggregates_of(fabric)
                if node.host in each.hosts
            },
        )
        for node in nodes
    ]
    servers = [
        Server("s", "s-name", "a", "a", two.name, two.extra_specs, project="atlas"),
        Server("t", "t-name", "b", "b", movable.name, movable.extra_specs, project="cms"),
        Server("u", "u-name", "c", "c", four.name, four.extra_specs),
    ]
    return attrs.evolve(
        clouds.cloud(*hosts, flavors=[four, two, movable]),
        taken=NOW.isoformat(timespec="seconds"),
        problems=(),
        servers=tuple(attrs.evolve(each, **words.get(each.uuid, {})) for each in servers),
    )


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(cloud: Snapshot, *words: str) -> tuple[int, str, str]:
        path = tmp_path / "cloud.json"
        path.write_text(snapshot_document.dump_cloud_snapshot(cloud))
        app = NovaHpc()
        for name, command in (("capacity", ShowCapacity), ("when", ShowWhen)):
            app.command_manager.add_command(name, command)
        status = app.run([words[0], "--snapshot", str(path), "--flavor", *words[1:]])
        return status, *capsys.readouterr()

    return call


FOUR = "gpu4-host-0"


def test_one_move_makes_room(run: Run) -> None:
    status, out, err = run(a_cloud(), "capacity", FOUR, "--make-room", "--level", "leaf")
    assert (status, err) == (1, "")
    # The owner of t has agreed, by the flavor.
    assert out.splitlines() == [
        f"1 move makes room for 1 x {FOUR} on one leaf, on b",
        "",
        "Server  From  To  Level   Move  Owner  Agreed",
        "t-name  b     a   switch  cold  cms    yes",
        "",
        "Nothing was changed. The moves are in order; a cold one stops its server for a while.",
    ]


def test_owners_outrank_their_flavor(run: Run) -> None:
    cloud = a_cloud(t={"movable": "no"}, s={"movable": "?"})
    _, out, _ = run(cloud, "capacity", FOUR, "--make-room")
    assert "atlas  ask" in out or "cms    ask" in out
    assert "\nThe owners' consent is missing for 1 of them.\n" in out
    cloud = a_cloud(t={"movable": "no"}, s={"movable": "yes"})
    _, out, _ = run(cloud, "capacity", FOUR, "--make-room")
    assert "s-name  a     b" in out
    assert "atlas  yes" in out


def test_only_servers_whose_owners_agreed_move(run: Run) -> None:
    words = ("capacity", FOUR, "--make-room", "--agreed", "--level", "leaf")
    _, out, _ = run(a_cloud(t={"movable": "no"}, s={"movable": "yes"}), *words)
    assert "s-name  a     b   switch  cold  atlas  yes" in out
    _, out, _ = run(a_cloud(), *words)
    assert "t-name  b     a   switch  cold  cms    yes" in out
    status, out, _ = run(a_cloud(t={"movable": "no"}), *words)
    assert (status, out) == (
        1,
        f"no moves make room for 1 x {FOUR} on one leaf: leaf l1 has room for 0 of 1 without all "
        "servers whose owners have agreed\n",
    )
    status, _, err = run(a_cloud(), "capacity", FOUR, "--agreed")
    assert (status, err) == (
        2, "nova-hpc capacity: --agreed needs --make-room: it restricts the moves\n",
    )  # fmt: skip


def test_programs_read_the_moves(run: Run) -> None:
    status, out, _ = run(a_cloud(), "capacity", FOUR, "--make-room", "-f", "json")
    found = json.loads(out)
    assert (status, found["schema"], found["fits"]) == (1, "nova-hpc/make-room", False)
    assert found["moves"] == [
        {
            "server": "t",
            "name": "t-name",
            "project": "cms",
            "from": "b",
            "to": "a",
            "way": "cold",
            "level": "switch",
            "level_before": None,
            "domain": None,
            "agreed": True,
            "done": False,
        }
    ]
    assert (found["proven"], found["hosts"]) == (True, {"b": 1})


def test_nothing_is_planned_without_need(run: Run) -> None:
    status, out, _ = run(a_cloud(), "capacity", "gpu2-switch-0", "--make-room")
    assert status == 0
    assert out == "1 x gpu2-switch-0: fits already, on a; no move is needed\n"


def test_the_nearest_miss_is_named(run: Run) -> None:
    status, out, _ = run(a_cloud(), "capacity", FOUR, "--make-room", "--members", "2")
    assert status == 1
    assert out == (
        f"no moves make room for 2 x {FOUR}: 4 gpu are free, and 2 x {FOUR} needs 8: moves free "
        "none, so servers have to end\n"
    )
    fixed = {uuid: {"immobile": "it is paused"} for uuid in "st"}
    _, out, _ = run(a_cloud(**fixed), "capacity", FOUR, "--make-room", "--level", "leaf")
    assert out == (
        f"no moves make room for 1 x {FOUR} on one leaf: leaf l2 would have room, but its "
        "servers have no place elsewhere\n"
    )


def test_a_known_end_is_a_time(run: Run) -> None:
    status, out, err = run(a_cloud(t={"until": LATER}), "when", FOUR, "--level", "leaf")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"1 x {FOUR} on one leaf: fits from {LATER} on, in 4 days, on b",
        "",
        f"Server that ends  ID  Host  {'Time':<{len(LATER)}}  Known from",
        f"t-name            t   b     {LATER}  hpc:until",
    ]
    _, out, _ = run(a_cloud(t={"until": LATER}), "when", FOUR, "-f", "json")
    found = json.loads(out)
    assert (found["schema"], found["fits"], found["time"]) == ("nova-hpc/when", False, LATER)
    assert [each["source"] for each in found["ends"]] == ["hpc:until"]
    assert found["make_room"] is None


def test_without_an_end_there_are_moves(run: Run) -> None:
    status, out, err = run(a_cloud(t={"until": "soon"}), "when", FOUR)
    assert status == 1
    assert "warning: server t-name (t): hpc:until is unknown: 'soon' is no time like" in err
    assert out.startswith(f"1 x {FOUR}: no end time is known\n1 move makes room for 1 x {FOUR}")
    cloud = a_cloud(u={"until": LATER})
    status, out, _ = run(cloud, "when", FOUR, "--members", "3")
    assert out.startswith(f"3 x {FOUR}: does not fit after the 1 known ends of servers\n")
    status, out, _ = run(cloud, "when", "gpu2-switch-0")
    assert (status, out) == (0, "1 x gpu2-switch-0: fits now, on a\n")


def test_an_answer_is_a_picture(run: Run) -> None:
    cloud = a_cloud(t={"until": LATER})
    for form in ("svg", "html"):
        status, out, err = run(cloud, "when", FOUR, "--level", "leaf", "-f", form)
        assert (status, err) == (0, "")
        for words in (f"When 1 x {FOUR} on one leaf fits", f"fits from {LATER} on, in 4 days"):
            assert words in out
        assert f"t-name · until {LATER}" in out
        # The other host of the leaf and the other leaf do not answer.
        assert "s-name" not in out
    status, out, _ = run(a_cloud(), "when", FOUR, "-f", "svg")
    assert (status, f"1 x {FOUR}: no end time is known" in out) == (1, True)


def test_mistakes_are_one_line(run: Run) -> None:
    for cloud, words, text in (
        (a_cloud(), ("when", "pear"), "there is no flavor 'pear'; there is: gpu2-switch-0"),
        (a_cloud(), ("capacity", FOUR, "--level", "leaf"), "--level needs --make-room"),
        (a_cloud(), ("when", FOUR, "--level", "spine"), ""),
        (a_cloud(), ("when", FOUR, "--level", "nvlink_domain"), "no host has a known NVLink"),
        (attrs.evolve(a_cloud(), taken="2026-01-01T00:00"), ("when", FOUR), "has no time zone"),
    ):
        status, out, err = run(cloud, *words)
        if text:
            assert (status, out, len(err.splitlines())) == (2, "", 1)
            assert text in err
        else:
            assert status == 1


def test_an_old_plan_is_marked(run: Run) -> None:
    old = attrs.evolve(a_cloud(), taken="2026-01-01T00:00+00:00")
    for words in (("when", FOUR), ("capacity", FOUR, "--make-room")):
        _, _, err = run(old, *words)
        assert "take the snapshot again" in err


def test_a_preemptible_server_has_to_leave(run: Run) -> None:
    cloud = a_cloud(u={"extra_specs": {"hpc:preemptible": "yes"}, "project": "cms"})
    words = ("capacity", FOUR, "--make-room", "--preempt", "--members", "1", "--level", "leaf")
    status, out, err = run(cloud, *words)
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        f"1 preemptible server has to leave for 1 x {FOUR} on one leaf, on c",
        "",
        "Server  Host  Project  Flavor",
        "u-name  c     cms      gpu4-host-0",
        "",
        "Nothing was changed.",
    ]
    status, out, err = run(cloud, *words, "-f", "json")
    found = json.loads(out)
    assert (found["schema"], found["fits"], found["notice"]) == ("nova-hpc/make-room", False, None)
    assert found["hosts"] == {"c": 1}
    assert found["preempted"] == [
        {
            **{"server": "u", "name": "u-name", "project": "cms", "host": "c"},
            **{"flavor": FOUR, "done": False},
        }
    ]
    status, out, _ = run(a_cloud(), *words)
    reason = "leaf l1 has room for 0 of 1 without all preemptible servers"
    assert (status, out) == (
        1,
        f"no preemption makes room for 1 x {FOUR} on one leaf: {reason}\n",
    )
    status, out, _ = run(a_cloud(), "capacity", "gpu2-switch-0", "--make-room", "--preempt")
    assert status == 0
    assert "fits already, on a; nothing is preempted" in out
