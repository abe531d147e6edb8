# SPDX-License-Identifier: Apache-2.0
"""Full passes of the garbage collector wait for the end of a request, and come at last."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
from oslo_config import fixture as config_fixture

from nova_hpc.from_nova import full_collections
from nova_hpc.from_nova.full_collections import CONF, FullCollections


class Clock:
    """What the module takes for the time."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Node:
    """An object that holds on to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(full_collections, "time", made)
    with config_fixture.Config(CONF) as config:
        config.config(group="hpc", full_collection_interval=60)
        yield made


@contextlib.contextmanager
def counted_full_passes() -> Iterator[list[int]]:
    passes: list[int] = []

    def note(phase: str, told: dict[str, int]) -> None:
        if phase == "start" and told["generation"] == 2:
            passes.append(1)

    gc.callbacks.append(note)
    try:
        yield passes
    finally:
        gc.callbacks.remove(note)


#: In a process of its own: the more objects there are, the more new ones a full pass waits for.
SCRIPT = """
import gc
from nova_hpc.from_nova.full_collections import FullCollections
passes = []
gc.callbacks.append(lambda phase, told: passes.append(told["generation"]))
def count():
    passes.clear()
    kept = [[{}] for _ in range(600_000)]
    return passes.count(2)
plain = count()
with FullCollections().put_off():
    held = count()
print(plain > 0, held, count() > 0)
"""


def test_none_while_a_request_is_served() -> None:
    """Before and afterwards there are some: so the test proves that they were held back."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True 0 True\n", done.stderr[-2000:]


def test_garbage_goes_when_a_full_pass_is_due(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_collections, "_LATER", 0.01)
    collections = FullCollections()
    node = Node()
    gone = weakref.ref(node)
    gc.collect()
    del node
    with collections.put_off():
        clock.now += 59
    assert gone() is not None
    with collections.put_off():
        clock.now += 1
    deadline = time.monotonic() + 60
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone() is None
    assert gc.get_threshold()[2] < 1_000_000


def _make_due(collections: FullCollections, clock: Clock) -> None:
    """A request whose end plans a full pass."""
    clock.now += 60
    with collections.put_off():
        pass


def test_the_next_request_is_not_held_up(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before the pass: the pass is planned again when that one ends."""
    planned: list[Callable[[], None]] = []
    monkeypatch.setattr(full_collections.threading, "Timer", _timers_into(planned))
    collections = FullCollections()
    _make_due(collections, clock)
    (make_pass,) = planned
    with counted_full_passes() as passes:
        with collections.put_off():
            make_pass()
            assert passes == []
        assert len(planned) == 2
        planned[1]()
        assert passes == [1]
        with collections.put_off():
            pass
        assert len(planned) == 2, "the next one is due in a minute"


def test_a_full_pass_comes_though_requests_never_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Callable[[], None]] = []
    monkeypatch.setattr(full_collections.threading, "Timer", _timers_into(planned))
    collections = FullCollections()
    _make_due(collections, clock)
    with collections.put_off():
        planned[0]()
    clock.now += 60
    with counted_full_passes() as passes, collections.put_off():
        planned[1]()
        assert passes == [1]


def test_much_that_requests_left_does_not_wait(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second has gone by: it is the number of blocks that counts."""
    planned: list[Callable[[], None]] = []
    monkeypatch.setattr(full_collections.threading, "Timer", _timers_into(planned))
    blocks = [4_000_000]
    monkeypatch.setattr(full_collections.sys, "getallocatedblocks", lambda: blocks[0])
    collections = FullCollections()
    with collections.put_off():
        blocks[0] += 999_999
    assert planned == []
    with collections.put_off():
        blocks[0] += 1
    (make_pass,) = planned
    with counted_full_passes() as passes, collections.put_off():
        make_pass()
        assert passes == [], "the next request is not held up"
        blocks[0] += 999_999
    with counted_full_passes() as passes, collections.put_off():
        planned[1]()
        assert passes == [], "nor the one after it"
        blocks[0] += 1
    with counted_full_passes() as passes, collections.put_off():
        planned[2]()
        assert passes == [1], "but there is too much of it now"
    with collections.put_off():
        pass
    assert len(planned) == 3, "nothing has come since"


def test_a_small_process_has_room_for_some_blocks(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Callable[[], None]] = []
    monkeypatch.setattr(full_collections.threading, "Timer", _timers_into(planned))
    blocks = [500_000]
    monkeypatch.setattr(full_collections.sys, "getallocatedblocks", lambda: blocks[0])
    collections = FullCollections()
    with collections.put_off():
        blocks[0] += 249_999
    assert planned == []
    with collections.put_off():
        blocks[0] += 1
    assert len(planned) == 1


#: A process whose own collector is off: the only full pass is the one that comes early.
EARLY_SCRIPT = """
import gc, threading
from nova_hpc.from_nova.full_collections import FullCollections
gc.disable()
passed = threading.Event()
gc.callbacks.append(lambda phase, told: told["generation"] == 2 and passed.set())
class Node:
    def __init__(self):
        self.own = self
with FullCollections().put_off():
    kept = [Node() for _ in range(150_000)]
    del kept
print(passed.wait(60))
"""


def test_what_a_real_request_left_is_counted() -> None:
    """A node is two blocks, so there are more than 250,000."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EARLY_SCRIPT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr[-2000:]


def test_one_timer_at_a_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Callable[[], None]] = []
    monkeypatch.setattr(full_collections.threading, "Timer", _timers_into(planned))
    collections = FullCollections()
    for _ in range(3):
        _make_due(collections, clock)
    assert len(planned) == 1


def _timers_into(planned: list[Callable[[], None]]) -> type[threading.Timer]:
    """Timers that only say what they would do."""

    class NotedTimer(threading.Timer):
        def start(self) -> None:
            planned.append(self.function)

    return NotedTimer


def test_a_request_after_a_quiet_time_is_spared_as_well(clock: Clock) -> None:
    collections = FullCollections()
    clock.now += 3600
    with collections.put_off():
        assert gc.get_threshold()[2] == 1_000_000


def test_requests_that_overlap_without_an_end_hold_nothing_back(clock: Clock) -> None:
    collections = FullCollections()
    before = gc.get_threshold()
    with contextlib.ExitStack() as open_:
        for _ in range(3):
            open_.enter_context(collections.put_off())
            assert gc.get_threshold()[2] == 1_000_000
            clock.now += 20
        open_.enter_context(collections.put_off())
        assert gc.get_threshold() == before
    assert gc.get_threshold() == before


def test_zero_leaves_python_alone(clock: Clock) -> None:
    CONF.set_override("full_collection_interval", 0, group="hpc")
    before = gc.get_threshold()
    with counted_full_passes() as passes, FullCollections().put_off():
        assert gc.get_threshold() == before
    assert passes == []


def test_what_a_request_raises_goes_on(clock: Clock) -> None:
    collections = FullCollections()
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="request"), collections.put_off():
        raise ValueError("request")
    assert gc.get_threshold() == before


def test_threads(clock: Clock) -> None:
    collections = FullCollections()
    before = gc.get_threshold()

    def serve() -> None:
        for _ in range(300):
            with collections.put_off():
                pass

    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.get_threshold() == before
