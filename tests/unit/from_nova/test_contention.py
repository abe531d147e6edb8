# SPDX-License-Identifier: Apache-2.0
"""Among how many hosts a scheduler chooses that loses claims, and one that does not."""

from __future__ import annotations

import random
import threading
import types
from collections.abc import Iterator

import pytest
from oslo_config import cfg

from nova_hpc.from_nova import contention
from nova_hpc.from_nova.contention import Contention


@pytest.fixture
def most() -> Iterator[int]:
    cfg.CONF.set_override("contended_hosts", 16, group="hpc")
    yield 16
    cfg.CONF.clear_override("contended_hosts", group="hpc")


def test_nobody_is_disturbed(most: int) -> None:
    mine = Contention()
    for _ in range(100):
        mine.won()
    assert mine.hosts == 1


def test_lost_claims_widen_the_choice_and_others_narrow_it(most: int) -> None:
    mine = Contention()
    widths = []
    for _ in range(4):
        mine.lost()
        widths.append(mine.hosts)
    assert widths == [4, 16, 16, 16]
    for _ in range(100):
        mine.won()
    assert mine.hosts == 1


def test_it_can_be_switched_off(most: int) -> None:
    cfg.CONF.set_override("contended_hosts", 1, group="hpc")
    mine = Contention()
    mine.lost()
    assert mine.hosts == 1


def test_it_settles_where_few_claims_are_lost(most: int) -> None:
    """Four schedulers, each of whose choices meets one of the others' among the hosts."""
    mine, rng = Contention(), random.Random(3)
    lost = 0
    for _ in range(20_000):
        if rng.random() < 0.3 / mine.hosts:
            lost += 1
            mine.lost()
        else:
            mine.won()
    assert 0.015 < lost / 20_000 < 0.05


def test_no_loss_is_lost_between_threads(most: int) -> None:
    cfg.CONF.set_override("contended_hosts", 1024, group="hpc")
    mine = Contention()
    crew = [threading.Thread(target=mine.lost) for _ in range(4)]
    for each in crew:
        each.start()
    for each in crew:
        each.join()
    assert mine.hosts == 256


def test_all_servers_of_a_request_have_one_seed() -> None:
    class Spec(types.SimpleNamespace):
        def __contains__(self, name: str) -> bool:
            return hasattr(self, name)

    spec = Spec(instance_uuid="one")
    assert contention.order_seed_of(spec) == "one"
    spec.instance_uuid = "two"
    assert contention.order_seed_of(spec) == "one"
    assert contention.order_seed_of(Spec()) == ""
