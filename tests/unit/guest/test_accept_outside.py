# SPDX-License-Identifier: Apache-2.0
"""What others ask of a machine that they measure: first facts, settings, answers, and an end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest import command
from nova_hpc_guest.accept.causes import CAUSES
from nova_hpc_guest.accept.evidence import LinkFaults
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.first_sample import FirstSample, read_first_sample, write_first_sample
from nova_hpc_guest.accept.options import SERVED, SETTINGS
from nova_hpc_guest.accept.refusal import Refusal
from nova_hpc_guest.accept.sample import AcceptanceError, Reading, Sample, read_sample
from nova_hpc_guest.compare import GuestFinding
from tests.unit.guest.accept_world import AcceptWorld, list_processes

SAMPLE = Sample(GuestFacts(model="Some CPU"), {"clock": Reading(40.0)})
DOCUMENT = b'{"schema":"nova-hpc/guest","version":1,"topology":"flat","cells":[],"devices":[]}'


@pytest.fixture
def world(tmp_path: Path) -> AcceptWorld:
    return AcceptWorld(tmp_path)


def test_first_facts_are_read_as_they_are_written() -> None:
    first = FirstSample(
        SAMPLE,
        0.25,
        None,
        "none was given",
        (GuestFinding("link", 1, "8 lanes of 16", True),),
        LinkFaults(("narrow one",), ("slow one",)),
        Refusal("busy", "2.0 of 2 CPUs"),
    )
    text = write_first_sample(first, None)
    assert read_first_sample(text) == first
    # Whoever reads samples reads it as well.
    assert read_sample(text) == SAMPLE
    promised = read_first_sample(write_first_sample(first, DOCUMENT)).promise
    assert promised is not None
    assert promised.topology == "flat"


@pytest.mark.parametrize("document", [b"{}", b"not JSON", b"\xff", DOCUMENT.replace(b"1,", b"9,")])
def test_a_promise_that_cannot_be_read_is_unknown(document: bytes) -> None:
    first = FirstSample(SAMPLE, findings=(GuestFinding("device", None, "not JSON", True),))
    again = read_first_sample(write_first_sample(first, document))
    assert again.promise is None
    assert again.findings == first.findings


@given(st.data())
def test_first_facts_of_another_machine_may_be_anything(data: st.DataObject) -> None:
    document = json.loads(write_first_sample(FirstSample(SAMPLE), DOCUMENT))
    key = data.draw(st.sampled_from([*document["first"], "new"]))
    values: Any = st.sampled_from(
        [None, True, -1, 1.5, 10**400, "", "\x1b[2J", [], [1], {}, {"kind": 1}, "x" * 9000]
    )
    document["first"][key] = data.draw(values)
    try:
        first = read_first_sample(json.dumps(document))
    except AcceptanceError:
        return
    assert all(finding.text.isprintable() for finding in first.findings)
    assert first.refused is None or first.refused.text.isprintable()


def test_findings_of_another_machine_are_printable() -> None:
    finding = GuestFinding("dev\x1b[2Jice", None, "line\nof \u202e another " + "x" * 900, True)
    document = write_first_sample(FirstSample(SAMPLE, findings=(finding,)), None)
    (read,) = read_first_sample(document).findings
    assert (read.kind, read.wrong) == ("dev?[2Jice", True)
    assert read.text.startswith("line?of ? another xxx")
    assert len(read.text) <= 200


def test_a_plain_sample_has_no_first_facts(world: AcceptWorld) -> None:
    status, out, _ = world.run("--sample", only="cpu_one")
    assert status == 0
    with pytest.raises(AcceptanceError, match="first of the sample"):
        read_first_sample(out)


def test_first_facts_of_a_machine(world: AcceptWorld) -> None:
    status, out, err = world.run("--sample", "--first", only="cpu_one")
    assert (status, err) == (0, "")
    first = read_first_sample(out)
    assert (first.scale, first.refused, first.promise) == (1.0, None, None)
    assert "was given no" in first.unpromised
    assert list(first.sample.readings) == ["cpu_one"]


def test_one_thing_is_changed(world: AcceptWorld) -> None:
    world.rate("memory-large", 'echo "6144.00 MiB transferred (18000.00 MiB/sec)"\n')
    values = {}
    for words in ((), ("--setting", "pages=large")):
        _, out, _ = world.run("--sample", *words, only="mem_stream")
        values[words] = read_sample(out).readings["mem_stream"].value
    assert values[()] * 2 == values["--setting", "pages=large"]


def test_what_cannot_be_changed_is_no_sample(world: AcceptWorld) -> None:
    status, out, _ = world.run("--sample", "--setting", "topology=install", only="cpu_one")
    assert (status, out) == (2, "refused: --setting topology=install cannot be made here\n")


def test_every_experiment_can_be_asked_for() -> None:
    wanted = {cause.setting for cause in CAUSES if cause.setting}
    assert wanted - set(SETTINGS) == {"cpus=half"}
    assert {"cpus=even", "cpus=first"} <= set(SETTINGS)
    assert not any(setting.startswith("ceiling") for setting in SETTINGS)
    assert set(SERVED) == {"net_bw", "link_bw", "ib_bw", "ib_lat"}


@pytest.mark.parametrize("words", [("--first",), ("--setting", "pages=large"), ("--within",)])
def test_these_go_with_a_sample(words: tuple[str, ...], capsys: Any) -> None:
    with pytest.raises(SystemExit):
        command.main(["accept", *words])
    assert "go with --sample" in capsys.readouterr().err


def test_only_some_cpus_are_all_of_them(world: AcceptWorld) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        whole = read_sample(world.run("--sample", only="cpu_all")[1]).facts
        part = read_sample(world.run("--sample", "--within", only="cpu_all")[1]).facts
    finally:
        os.sched_setaffinity(0, allowed)
    assert whole.online == (0, 1)
    assert part.online == part.allowed == (max(allowed),)


# -- answers, and the end --------------------------------------------------------------


def start_held(world: AcceptWorld, *words: str) -> subprocess.Popen[bytes]:
    arguments = ["accept", "--root", str(world.root), "--busy", *words, "--hold"]
    return subprocess.Popen(
        [sys.executable, "-m", "nova_hpc_guest.command", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**world.environment, "PYTHONPATH": str(Path(command.__file__).parents[1])},
    )


def wait_until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_it_ends_with_its_input_and_leaves_nothing(world: AcceptWorld) -> None:
    sleep = f"sleep 300.{os.getpid()}"
    world.tool(
        "sysbench", f'#!/bin/sh\ncase "$*" in *--version*) exit ;; esac\nexec /bin/{sleep}\n'
    )
    child = start_held(world, "--sample", "--only", "cpu_one", "--scale", "1")
    wait_until(lambda: list_processes(sleep))
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(timeout=60) == 2
    assert child.stderr is not None
    assert b"ended by SIGTERM" in child.stderr.read()
    assert not list_processes(sleep)


def test_it_answers_another_machines_probe(world: AcceptWorld) -> None:
    world.tool(
        "iperf3",
        f"#!{sys.executable}\n"
        "import socket, sys, time\n"
        "if '--version' in sys.argv: print('iperf 3.12'); sys.exit()\n"
        "assert '-B' not in sys.argv, 'it is for others'\n"
        "server = socket.create_server(('', int(sys.argv[sys.argv.index('-p') + 1])))\n"
        f"open({str(world.folder / 'served')!r}, 'w').close()\n"
        "time.sleep(300)\n",
    )
    child = start_held(world, "--serve", "net_bw")
    assert child.stdout is not None
    assert child.stdout.readline() == b"serving\n"
    assert (world.folder / "served").exists()
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(timeout=60) == 2
    assert not list_processes(f"{world.tools}/iperf3")


def test_what_does_not_listen_does_not_answer(world: AcceptWorld) -> None:
    status, out, _ = world.run("--serve", "net_bw", only=None)
    assert (status, out) == (
        2,
        "refused: net_bw cannot be answered: no tool iperf3 (Debian's package iperf3)\n",
    )
    world.tool("iperf3", "#!/bin/sh\nexit 1\n")
    status, out, _ = world.run("--serve", "net_bw", only=None)
    assert (status, out) == (2, "refused: iperf3 does not listen on port 5201\n")
