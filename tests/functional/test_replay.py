# SPDX-License-Identifier: Apache-2.0
"""The day that is replayed against real schedulers: its requests, its counts, and a small one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.concurrency.computes import layout
from benchmarks.concurrency.model import Cloud
from benchmarks.replay import day
from benchmarks.replay.__main__ import holds
from nova_hpc_common.level import Level

CLOUD = Cloud(20, switches=4, gpus=2, functions=2)


def test_a_day_is_the_same_for_its_seed_and_its_servers_leave_later() -> None:
    first = day.day(500, CLOUD, 7)
    assert first == day.day(500, CLOUD, 7)
    assert first != day.day(500, CLOUD, 8)
    assert first.servers == 500
    names = [name for each in first.requests for name in each.servers]
    assert len(set(names)) == 500
    assert all(each.leaves > each.at for each in first.requests)
    assert [each.at for each in first.requests] == list(range(len(first.requests)))
    assert any(len(each.servers) > 1 for each in first.requests)
    # After the cloud was filled about as many leave as come.
    last = first.requests[-1].at
    gone = sum(len(each.servers) for each in first.requests if each.leaves <= last)
    assert 250 < gone < 500


@pytest.mark.parametrize("seed", range(20))
def test_room_and_what_is_stranded_by_trying_everything(seed: int) -> None:
    rng = random.Random(seed)
    places = list(layout(CLOUD).values())
    free = [
        (f"host{host}", place)
        for host in range(3)
        for place in rng.sample(places, rng.randint(0, 5))
    ]
    for level in (Level.SWITCH, Level.NUMA, Level.HOST):
        for gpus in (1, 2, 4, 8):
            fits = any(
                sum(
                    other == host
                    and (level is Level.HOST or each.domain(level) == place.domain(level))
                    for other, each in free
                )
                >= gpus
                for host, place in free
            )
            assert day.room(free, gpus, level) == fits
    alone = sum(
        sum(other == host and each.switches == place.switches for other, each in free) == 1
        for host, place in free
    )
    assert day.stranded(free) == alone


def test_the_simulation_places_all_of_a_day_that_is_not_full() -> None:
    found = day.day(300, CLOUD, 3, load=0.3)
    last = found.requests[-1].at
    used = sum(each.gpus * len(each.servers) for each in found.requests if each.leaves > last)
    for ours in (True, False):
        assert day.predicted(found, CLOUD, ours) == (found.servers, used)
    crowded = day.day(300, CLOUD, 3, load=3.0)
    for ours in (True, False):
        placed, used = day.predicted(crowded, CLOUD, ours)
        assert placed < crowded.servers
        assert CLOUD.devices // 2 < used <= CLOUD.devices


def test_a_day_that_is_cut_off_fails_where_the_whole_one_does() -> None:
    found = day.day(500, CLOUD, 7)
    cut = found.first(100)
    assert cut.requests == found.requests[:100]
    assert 100 < cut.servers < 500
    for each in (cut, cut.first(50)):
        assert each.hosts_fail == found.hosts_fail
        assert each.hosts_return == found.hosts_return
        assert each.scheduler_dies == found.scheduler_dies


@pytest.mark.slow
def test_twenty_hosts(tmp_path: Path) -> None:
    """Two schedulers, one of which is killed, a host that fails, and many servers."""
    names = {k: v for k, v in os.environ.items() if k != "OS_NOVA_DISABLE_EVENTLET_PATCHING"}
    rows = tmp_path / "rows.json"
    # Half of a host of eight GPUs, for which some ask.
    argv = ("--hosts", "20", "--switches", "2", "--servers", "48", "--seed", "2")
    few = ("--schedulers", "2", "--candidates", "100")
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "benchmarks.replay", *argv, *few),
            *("--variants", "ours-spread-shuffle", "--json", str(rows)),
        ],
        capture_output=True, text=True, env=names, cwd=Path(__file__).parents[2], check=False,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (row,) = json.loads(rows.read_text())
    found = day.Row(**row)
    print(f"RESULT: {found}")
    assert holds(found)
    assert found.servers == 48
    assert found.orphaned >= 1
    assert found.placed > 0
    # Schedulers hear of servers from computes.
    assert found.read < found.hosts
    assert found.refused > 0
    assert found.pairs > found.scattered == 0
