# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed at any moment leave nothing behind."""

import contextlib
import os
import random
import signal
import time

import pytest

from tests.shm.stand import LIMIT, MPICH

_STEP = 0.001


def _read_pid(stand, rank):
    path = stand.folder / f"pid.{rank}"
    end = time.monotonic() + LIMIT
    while not path.exists():
        assert time.monotonic() < end, f"rank {rank} does not start"
        time.sleep(_STEP)
    return int(path.read_text())


def _wait_for_stream(job):
    for _ in range(2):
        line = job.stdout.readline()
        assert line.startswith("pid "), line


def _kill_rank(stand, rank, wait, *, streaming):
    with stand.job(MPICH, 2, ["stream"]) as job:
        pid = _read_pid(stand, rank)
        if streaming:
            _wait_for_stream(job)
        time.sleep(wait)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        said, _ = job.communicate(timeout=LIMIT)
        assert job.returncode != 0, said


@pytest.mark.parametrize("streaming", [False, True], ids=["as it starts", "as it sends"])
def test_ten_kills_at_random_moments(stand, streaming):
    chance = random.Random(streaming)
    held = []
    for _ in range(10):
        _kill_rank(stand, chance.randrange(2), chance.uniform(0, 0.05), streaming=streaming)
        held.append(stand.held())
    # They were in the midst of it.
    assert not streaming or all(held)
    # The next start has all of it again.
    assert "correct" in stand.run(MPICH, 2, "one-way", "80000")
    assert stand.held() == 0


def _await_files_of_peers(stand):
    """Till programs of each server have mapped files of the other's."""
    end = time.monotonic() + LIMIT
    while not all(part["peers_mapped"] > 0 for part in stand.stat()):
        assert time.monotonic() < end, stand.stat()
        time.sleep(_STEP)


@pytest.mark.parametrize("seed", [1, 2])
def test_who_lives_never_sees_the_memory_of_another_file(guarded, seed):
    chance = random.Random(seed)

    def churn(number):
        words = ("churn", str(number), "1000000", str(chance.randrange(1 << 30)))
        return stack.enter_context(guarded.alone(number % 2, *words))

    with contextlib.ExitStack() as stack:
        running = [churn(number) for number in range(4)]
        _await_files_of_peers(guarded)
        for _ in range(15):
            time.sleep(chance.uniform(0, 0.05))
            number = chance.randrange(4)
            assert running[number].poll() is None, running[number].stdout.read()
            running[number].kill()
            running[number] = churn(number)
        for process in running:
            assert process.poll() is None, process.stdout.read()
    guarded.probe(0, "join")
    guarded.probe(1, "join")
    assert guarded.held() == 0
