# SPDX-License-Identifier: Apache-2.0
import threading

import pytest
from oslo_config import cfg

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import cache

CONF = cfg.CONF


@pytest.fixture
def size():
    hpc_conf.register_all_options(CONF)
    yield lambda most: CONF.set_override("cache_size", most, group="hpc")
    CONF.clear_override("cache_size", group="hpc")


def test_a_result_is_made_once(size):
    store = cache.Cache()
    assert store.get("a", lambda: 1) == 1
    assert store.get("a", lambda: pytest.fail("it was made again")) == 1
    assert (store.hits, store.misses, len(store)) == (1, 1, 1)


def test_what_was_not_used_for_longest_is_forgotten(size):
    size(2)
    store = cache.Cache()
    for key in ("a", "b", "a", "c"):
        store.get(key, lambda key=key: key.upper())
    assert len(store) == 2
    assert store.get("a", lambda: "again") == "A"
    assert store.get("b", lambda: "again") == "again"


def test_no_cache_at_all(size):
    size(0)
    store = cache.Cache()
    assert [store.get("a", lambda n=n: n) for n in range(3)] == [0, 1, 2]
    assert len(store) == 0


def test_a_failure_is_no_result(size):
    store = cache.Cache()
    with pytest.raises(ZeroDivisionError):
        store.get("a", lambda: 1 // 0)
    assert store.get("a", lambda: 1) == 1


def test_threads_agree(size):
    """Whoever makes a value first, all get the same."""
    size(8)
    store = cache.Cache()
    start = threading.Barrier(8)
    found = [set() for _ in range(8)]

    def work():
        start.wait()
        for turn in range(400):
            found[turn % 8].add(store.get(turn % 8, object))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [len(values) for values in found] == [1] * 8
    assert store.hits + store.misses == 8 * 400


def test_numbers_are_never_given_twice():
    numbers = [cache.next_unique_number() for _ in range(100)]
    assert len(set(numbers)) == 100
