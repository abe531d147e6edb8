# SPDX-License-Identifier: Apache-2.0
"""What was said is remembered, within bounds."""

from __future__ import annotations

import threading

from nova_hpc.from_nova.cache import Once


def test_first_time_only() -> None:
    once = Once()
    assert [once.first("a"), once.first("a"), once.first("b")] == [True, False, True]


def test_bounded_and_the_oldest_is_forgotten() -> None:
    once = Once(most=3)
    for key in "abc":
        once.first(key)
    assert not once.first("a")  # and is now the newest
    assert once.first("d")
    assert once.first("b")
    assert not once.first("a")


def test_one_thread_of_many_is_first() -> None:
    once = Once()
    barrier = threading.Barrier(8)
    wins: list[bool] = []

    def say() -> None:
        barrier.wait()
        wins.append(once.first("same"))

    threads = [threading.Thread(target=say) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == [False] * 7 + [True]
