# SPDX-License-Identifier: Apache-2.0
"""``--gate``: what the last whole run said, for whoever starts work on the machine."""

from __future__ import annotations

import pytest

from tests.unit.guest.accept_world import AcceptWorld


def gate(world: AcceptWorld, *arguments: str) -> tuple[int, str]:
    status, out, _ = world.run("--gate", *arguments, only=None)
    return status, out.strip()


def test_the_gate_has_the_status_of_the_last_whole_run(world) -> None:
    assert gate(world) == (
        2,
        "no /run/nova-hpc/acceptance.json: run nova-hpc-guest accept as root first",
    )
    assert world.run("--only", "mem_stream", only=None)[0] == 0
    assert gate(world)[0] == 2, "a part of the probes opens no gate"
    status, out, _ = world.run(only=None)
    assert status == 0, out
    assert gate(world) == (0, "accepted")
    assert gate(world, "--tier", "full")[0] == 2
    world.cpu(1000.0, together=1000.0)
    assert world.run(only=None)[0] == 1
    assert gate(world)[0] == 1
    assert gate(world)[1].startswith("slow: ")


def test_the_gate_is_bound_to_the_start_of_the_machine(world) -> None:
    assert world.run(only=None)[0] == 0
    world.write("proc/sys/kernel/random/boot_id", "99999999-2222-3333-4444-555555555555\n")
    assert gate(world)[0] == 2
    assert "another start" in gate(world)[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rubbish", "not JSON"),
        ('{"schema": "nova-hpc/acceptance", "version": 2}', "has version 2"),
        ('{"schema": "nova-hpc/acceptance", "version": 1}', "verdict None"),
        (
            '{"schema": "nova-hpc/acceptance", "version": 1, "verdict": "slow", "status": 0}',
            "status",
        ),
    ],
)
def test_a_gate_that_was_tampered_with(world: AcceptWorld, text: str, words: str) -> None:
    world.write("run/nova-hpc/acceptance.json", text)
    assert gate(world)[0] == 2
    assert words in gate(world)[1]


def test_others_may_not_open_the_gate(world: AcceptWorld) -> None:
    world.run(only=None)
    (world.root / "run/nova-hpc/acceptance.json").chmod(0o666)
    assert gate(world)[0] == 2
    assert "others may write it" in gate(world)[1]


def test_who_may_not_write_is_told(world: AcceptWorld, monkeypatch) -> None:
    (world.root / "run").write_text("no directory")
    status, out, _ = world.run(only=None)
    assert status == 0
    assert "note not kept for --gate: /run/nova-hpc/acceptance.json: cannot be written" in out
