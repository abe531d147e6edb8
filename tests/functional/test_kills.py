# SPDX-License-Identifier: Apache-2.0
"""nova-compute is killed at a few steps; all of them: ``python -m tests.functional.kills``."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nova_hpc.from_nova import contract
from tests.functional.kills import verdict
from tests.functional.kills.hypervisor import Hypervisor
from tests.functional.kills.service import ServiceVms

ONE, OTHER = "0000:40:00.0", "0000:40:01.0"
DOMAIN = """<domain><name>{name}</name><uuid>{name}</uuid><devices>
<hostdev><source><address domain='0x0' bus='0x40' slot='0x0' function='0x0'/></source></hostdev>
</devices></domain>"""

#: A device is marked and its domain not started; cleaned and still marked; free again.
STEPS = ("libvirt: start the domain", "take_back > clean_devices: file ledger", "Placement: DELETE")

SERVICE_VM = """<domain><uuid>x</uuid><devices><hostdev><source>
<address domain="0x0" bus="0x40" slot="0x0" function="0x0"/></source></hostdev>
</devices></domain>"""


_KEPT = pytest.mark.skipif(
    (contract.running_nova_release() or 0) < 34,
    reason="Nova's fixtures keep databases in files from 34 on",
)


@pytest.mark.slow
@_KEPT
def test_killed_at_some_steps(tmp_path: Path) -> None:
    found = tmp_path / "rows.json"
    matches = [word for step in STEPS for word in ("--match", step)]
    matches += ["--phase", "spawn", "--phase", "destroy"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.functional.kills", "--json", str(found), *matches],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    body = json.loads(found.read_text())
    print(f"RESULT: {done.stdout.splitlines()[-1].removeprefix('RESULT: ')}")
    assert body["steps"] > 40
    assert [row["phase"] for row in body["rows"]] == ["spawn", "destroy", "destroy"]
    for row, step in zip(body["rows"], STEPS, strict=True):
        assert step in row["step"]
        assert row["verdict"] == "ok"
        assert row["devices"] == "4 of 4 free and clean"
    # What the first kill has left keeps its devices until its user deletes it.
    assert [row["status"] for row in body["rows"]] == ["ERROR", "gone", "gone"]
    assert [row["meanwhile"] for row in body["rows"]] == ["ERROR", "ACTIVE", "ACTIVE"]


#: What is done at a step, and what the API says of the server afterwards.
FAULTS = {
    "local-delete": "gone",
    "guest-dies": "gone",
    "guest-resets": "gone",
    "allocation": "gone",
}


@pytest.mark.slow
@_KEPT
def test_other_faults_while_a_device_is_being_reset(tmp_path: Path) -> None:
    found = tmp_path / "rows.json"
    words = [word for fault in FAULTS for word in ("--fault", fault)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.functional.kills", "--json", str(found)),
            *("--match", "destroy: a device is being reset", "--phase", "destroy", *words),
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(found.read_text())["rows"]
    assert {row["fault"]: row["status"] for row in rows} == FAULTS
    assert {row["devices"] for row in rows} == {"4 of 4 free and clean"}


#: In the stage between two servers: before its VM, while the VM has the device, at its end.
CLEAN = ("process: run a service VM", "a service VM has the devices", "_settle: file ledger")


@pytest.mark.slow
@_KEPT
def test_killed_in_the_stage_between_two_servers(tmp_path: Path) -> None:
    found = tmp_path / "rows.json"
    words = [word for step in CLEAN for word in ("--match", step)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.functional.kills", "--json", str(found)),
            *("--phase", "clean", "--fault", "kill", "--fault", "guest-dies", *words),
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(found.read_text())["rows"]
    assert [row["fault"] for row in rows].count("kill") == len(rows) / 2 >= len(CLEAN)
    assert {row["devices"] for row in rows} == {"4 of 4 free and clean"}
    # The VM of a service that was killed is gone with it, and what it had is cleaned anew.
    killed = [row for row in rows if "has the devices" in row["step"] and row["fault"] == "kill"]
    assert [row["meanwhile"] for row in killed] == ["ERROR"]


#: Around resets that the privileged helper makes: before one is asked for, while its program or
#: write is under way, and when the devices are clean.
VENDOR = ("reset a device", "a device is being reset", "clean_devices: file ledger")


@pytest.mark.slow
@_KEPT
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start the privileged helper")
def test_killed_while_a_vendors_reset_is_made_for_a_service_that_is_not_root(
    tmp_path: Path,
) -> None:
    found = tmp_path / "rows.json"
    phases = ["destroy with a vendor's reset", "clean with a vendor's reset"]
    words = [word for step in VENDOR for word in ("--match", step)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.functional.kills", "--json", str(found)),
            *(word for phase in phases for word in ("--phase", phase)),
            *words,
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(found.read_text())["rows"]
    assert {row["phase"] for row in rows} == set(phases)
    assert {step for step in VENDOR for row in rows if step in row["step"]} == set(VENDOR)
    assert {(row["devices"], row["verdict"]) for row in rows} == {("4 of 4 free and clean", "ok")}


SILENT = """
import sqlite3, sys
from pathlib import Path
# As the command does: native threads are asked for, then Nova's tests set them up, before any
# other module of Nova can import eventlet.
import tests.functional.kills.__main__
import tests.functional.conftest
from tests.functional.kills import run, world
runner = run.Runner(Path(sys.argv[1]))
runner.begin()
runner.life.kill()
for path in (runner.world / "db").glob("*-*.sqlite"):
    with sqlite3.connect(path) as database:
        ago = "datetime('now', '-120 seconds')"
        database.execute(f"update services set created_at = {ago}, last_seen_up = {ago}")
runner.life = run.Life(runner.world)
print(runner.life.ask("create", runner.flavors["all"]))
runner.life.kill()
"""


@pytest.mark.slow
@_KEPT
def test_services_that_said_nothing_for_minutes_are_up(tmp_path: Path) -> None:
    """Of many short lives none may come to say that it lives."""
    done = subprocess.run(
        [sys.executable, "-c", SILENT, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert "'ACTIVE'" in done.stdout, done.stdout + done.stderr


# -- what a kill is judged by can fail ---------------------------------------------

FIRST = {
    "tracked": {ONE: "available", OTHER: "available"},
    "inventory": {ONE: 1, OTHER: 1},
    "withheld": {},
    "quarantine": {},
    "allocations": {},
    "problems": [],
    "files": {"ledger": True},
    "marked": {},
    "unreported": [],
    "domains": {},
    "dirty": {},
    "uncleaned": {},
    "violations": [],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tracked", {ONE: "available"}),
        ("tracked", {ONE: "available", OTHER: "claimed"}),
        ("inventory", {ONE: 1}),
        ("inventory", {ONE: 1, OTHER: 2}),
        ("withheld", {ONE: "x"}),
        ("quarantine", {ONE: "x"}),
        ("allocations", {"alpha": ["s"]}),
        ("problems", ["cut in half"]),
        ("files", {"ledger": False}),
        ("marked", {ONE: "s"}),
        ("unreported", [ONE]),
        ("domains", {"s": {"running": False, "devices": [ONE]}}),
        ("dirty", {ONE: "s"}),
        ("uncleaned", {"0000:50:00.0": "s"}),
        ("violations", ["two domains"]),
    ],
)
def test_what_is_not_as_before_is_told(key: str, value: object) -> None:
    assert verdict.clean(FIRST, FIRST) == []
    assert len(verdict.clean(FIRST, {**FIRST, key: value})) == 1


def test_a_server_that_does_not_get_everything_is_told() -> None:
    domain = {"running": True, "devices": [ONE, OTHER]}
    now = {**FIRST, "domains": {"s": domain}, "marked": {ONE: "s", OTHER: "s"}}
    assert verdict.taken(FIRST, now, "s") == []
    for key, value in (
        ("marked", {ONE: "s"}),
        ("marked", {ONE: "s", OTHER: "t"}),
        ("domains", {"s": {**domain, "running": False}}),
        ("domains", {"s": {**domain, "devices": [ONE]}}),
        ("domains", {"s": domain, "t": {**domain, "devices": [ONE]}}),
    ):
        assert len(verdict.taken(FIRST, {**now, key: value}, "s")) == 1
    assert verdict.state(FIRST, FIRST) == "2 of 2 free and clean"
    assert verdict.state(FIRST, now) == "0 of 2 free and clean"


def test_a_device_that_a_domain_has_and_that_is_offered_is_told() -> None:
    domain = {"running": False, "devices": [ONE]}
    now = {**FIRST, "domains": {"s": domain}}
    assert verdict.held(now) == [f"{ONE} is offered, and the domain of s has it"]
    assert verdict.held({**now, "tracked": {OTHER: "available"}}) == []


def test_a_device_that_can_be_given_before_its_stage_is_told() -> None:
    now = {**FIRST, "uncleaned": {ONE: "s"}}
    assert verdict.violations(now) == [
        f"{ONE} can be given by Placement, and s's data are in its memory"
    ]
    assert verdict.violations({**now, "inventory": {OTHER: 1}}) == []
    assert verdict.violations({**now, "allocations": {f"alpha_{ONE}": ["s"]}}) == []
    assert verdict.state(FIRST, now) == "1 of 2 free and clean"


def test_the_hypervisor_notes_the_memory_of_another(tmp_path: Path) -> None:
    kept = Hypervisor(tmp_path / "domains.json", tmp_path)
    kept.service = service = ServiceVms(tmp_path / "service", [ONE])
    service.prepare()
    for each in (ONE, OTHER):
        (tmp_path / each).mkdir()
        (tmp_path / each / "reset").write_text("1")
    for name in ("a", "b"):
        kept.defined(name, name, DOMAIN.format(name=name))
    kept.started("a")
    assert kept.uncleaned() == {}
    kept.stopped("a")
    (tmp_path / ONE / "reset").write_text("1")
    assert (kept.dirty(), kept.uncleaned()) == ({}, {ONE: "a"})
    # It may start again itself; a reset is not enough for another.
    kept.started("a")
    assert kept.read()["violations"] == []
    kept.stopped("a")
    (tmp_path / ONE / "reset").write_text("1")
    kept.started("b")
    assert kept.read()["violations"] == [f"{ONE} was given with another's memory"]
    # A service VM has it: nobody may start with it, and it gets nothing that a guest has.
    (service.folder / "x.domain").write_text(f"0\n{SERVICE_VM}")
    assert service.devices() == {ONE: "x"}
    assert service.started("b", [ONE]) == [f"{ONE} is in a guest and in a service VM"]
    service.end()
    assert service.devices() == {}
    libvirt = service._libvirt.open(f"fake://{service.folder}")
    libvirt.createXML(SERVICE_VM, 3)
    assert service.seen() == [f"{ONE} is in a service VM while a guest has it"]


def test_the_hypervisor_notes_what_is_reset_in_use(tmp_path: Path) -> None:
    (tmp_path / ONE).mkdir()
    reset = tmp_path / ONE / "reset"
    reset.write_text("")
    kept = Hypervisor(tmp_path / "domains", tmp_path)
    kept.defined("a", "a", DOMAIN.format(name="a"))
    kept.started("a")
    kept.look()
    assert kept.read()["violations"] == []
    body = json.dumps(kept.read())
    for act in (kept.look, lambda: kept.used("a"), lambda: kept.stopped("a")):
        kept.path.write_text(body)
        reset.write_text("1\n")
        act()
        assert kept.read()["violations"] == [f"{ONE} was reset while a domain had it"]
    # Of a domain that has ended nobody minds.
    kept.path.write_text(body)
    reset.write_text("")
    kept.stopped("a")
    reset.write_text("1\n")
    kept.look()
    assert kept.read()["violations"] == []


def test_the_hypervisor_notes_what_must_not_be(tmp_path: Path) -> None:
    (tmp_path / ONE).mkdir()
    reset = tmp_path / ONE / "reset"
    reset.write_text("")
    kept = Hypervisor(tmp_path / "domains", tmp_path)
    for name in ("a", "b"):
        kept.defined(name, name, DOMAIN.format(name=name))
    kept.started("a")
    assert kept.dirty() == {}
    body = copy.deepcopy(kept.read())
    kept.started("b")
    assert kept.read()["violations"] == [
        f"{ONE} is in two domains",
        f"{ONE} was given with another's traces",
    ]
    # One after the other is well, if it was reset in between.
    kept.path.write_text(json.dumps(body))
    kept.stopped("a")
    assert kept.dirty() == {ONE: "a"}
    reset.write_text("1\n")
    assert kept.dirty() == {}
    kept.started("b")
    assert kept.read()["violations"] == []
    kept.undefined("a")
    assert set(kept.read()["domains"]) == {"b"}
