# SPDX-License-Identifier: Apache-2.0
"""Whatever is killed, and when: files and guests fit, and nobody sees what others left."""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nova import objects

from nova_hpc.from_nova import sharing_group
from nova_hpc.from_nova.sharing_group import SharingGroup
from tests.functional import segments_process
from tests.functional.segments_process import GROUPS, SERVERS, Host, group_of
from virt_driver_patches.driver.segments import NodeSegments

KILLS = 30


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def test_thirty_kills(folder: Path) -> None:
    """Of nova-compute at a random step, and of guests while it is away."""
    host, chance = Host(folder), random.Random(38)
    shared, steps = 0, set()
    for number in range(KILLS):
        step = chance.randint(1, 150)
        status = segments_process.run_until_killed(host, number, step)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        steps.add(step)
        for guest in list(host.guests()):
            if chance.random() < 0.2:
                guest.path.unlink()
        host.keeper().put_in_order()
        shared += segments_process.check_host(host)
    assert len(steps) > KILLS / 2
    assert shared > KILLS, "too little was shared for this to say anything"


def test_two_that_start_at_one_moment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No domain names their memory yet, and updates come meanwhile; then both starts fail."""
    host, (first, second) = Host(folder), (SERVERS[0], SERVERS[len(GROUPS)])
    monkeypatch.setattr(
        sharing_group, "find_sharing_group", lambda instance: SharingGroup(group_of(instance.uuid))
    )
    objects.register_all()
    segments = NodeSegments(host.keeper())
    with segments.starting(segments_process.instance_of(first), anew=True):
        (file,) = host.shm.iterdir()
        # The library of its programs reads its name there.
        assert file.read_bytes()[(2 << 20) + 4096 :].startswith(first.encode())
        segments.keeper.put_in_order()
        with segments.starting(segments_process.instance_of(second), anew=True):
            segments.keeper.put_in_order()
            found = [segments.keeper.outcome_of(server) for server in (first, second)]
            choices = [outcome.choice for outcome in found if outcome and outcome.choice]
            assert [(str(choice.name), choice.part) for choice in choices] == [
                (file.name, 0),
                (file.name, 1),
            ]
        assert list(host.shm.iterdir()) == [file]
    assert not list(host.shm.iterdir())
