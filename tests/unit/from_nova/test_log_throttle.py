# SPDX-License-Identifier: Apache-2.0
"""What was said is not said again for a while, however many hosts there are."""

from __future__ import annotations

import threading

from nova_hpc.from_nova.log_throttle import LogThrottle, format_held_back


class Clock:
    """Seconds that a test decides."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_cause_is_held_back_and_counted() -> None:
    clock = Clock()
    said = LogThrottle(clock)
    assert [said.due("a") for _ in range(3)] == [0, None, None]
    clock.now += 299
    assert said.due("a") is None
    assert said.due("b") == 0
    clock.now += 1
    assert said.due("a") == 3
    assert said.due("a") is None


def test_bounded_and_what_was_named_longest_ago_is_forgotten() -> None:
    clock = Clock()
    said = LogThrottle(clock, most=3)
    for cause in "abcd":
        clock.now += 1
        assert said.due(cause) == 0
    assert [said.due(cause) for cause in "bcd"] == [None] * 3
    assert said.due("a") == 0


def test_one_thread_of_many_is_first() -> None:
    said = LogThrottle(Clock())
    barrier = threading.Barrier(8)
    found: list[int | None] = []

    def say() -> None:
        barrier.wait()
        found.append(said.due("same"))

    threads = [threading.Thread(target=say) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found, key=repr) == [0] + [None] * 7


def test_words() -> None:
    assert format_held_back(0) == ""
    assert format_held_back(3) == " (and 3 times since the last such line)"
