# SPDX-License-Identifier: Apache-2.0
"""Which partitions a server gets: the rules against brute force, and the real tables."""

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.nvlink import partitions as nvlink
from nova_hpc.tenancy.nvlink.partitions import (
    NoPartitionError,
    NvlinkFabricError,
    NvlinkPartition,
    PartitionTenancy,
)


def address(number):
    return f"0000:{0x40 + number:02x}:00.0"


def gpus(*numbers):
    return frozenset(map(address, numbers))


def table(sets, active=()):
    return [NvlinkPartition(key, gpus(*found), key in active) for key, found in sets.items()]


#: NVIDIA's user guide, chapter "GPU partitions".
H100 = {0: range(1, 9), 1: range(1, 5), 2: range(5, 9), 3: (1, 3), 4: (2, 4), 5: (5, 7), 6: (6, 8)}
H100 |= {6 + number: (number,) for number in range(1, 9)}


@pytest.mark.parametrize(
    ("claimed", "linked", "chosen"),
    [
        (range(1, 9), True, (0,)),
        (range(5, 9), True, (2,)),
        ((1, 3), True, (3,)),
        ((6,), True, (12,)),
        # Two groups of two in one server.
        ((1, 3, 6, 8), True, (3, 6)),
        # Without a promise what has no partition is divided.
        ((1, 2), False, (7, 8)),
        ((1, 2, 3), False, (3, 8)),
    ],
)
def test_the_table_of_an_hgx_h100(claimed, linked, chosen):
    found = nvlink.cover_gpus(table(H100), gpus(*claimed), linked)
    assert tuple(one.id for one in found) == chosen


@pytest.mark.parametrize("claimed", [(1, 2), (1, 2, 3), (1, 3, 5), range(1, 8)])
def test_a_set_that_is_none_is_refused_with_counts(claimed):
    with pytest.raises(NoPartitionError, match=r"0000:41:00\.0, 0000:4[23]:00\.0") as caught:
        nvlink.cover_gpus(table(H100), gpus(*claimed), True)
    assert f"exactly the {len(claimed)} GPUs" in caught.value.user
    assert "0000:" not in caught.value.user


def test_a_gpu_that_the_manager_does_not_have_is_refused():
    with pytest.raises(NoPartitionError):
        nvlink.cover_gpus(table(H100), gpus(1, 9), False)


def test_nobody_elses_gpus_are_in_the_way():
    partitions = table(H100, active={0})
    with pytest.raises(
        NvlinkFabricError, match=r"partition 0 is active and joins .* of another server"
    ):
        nvlink.plan_partitions(partitions, gpus(1, 3), gpus(5), linked=True, fresh=True)
    plan = nvlink.plan_partitions(partitions, gpus(1, 3), (), linked=True, fresh=True)
    assert (plan.deactivate, plan.activate) == ((0,), (3,))
    with pytest.raises(NvlinkFabricError, match="another server has them"):
        nvlink.plan_partitions(partitions, gpus(1, 3), gpus(3), linked=True, fresh=True)


def test_what_is_active_is_made_anew_for_another_server_only():
    partitions = table(H100, active={3})
    plan = nvlink.plan_partitions(partitions, gpus(1, 3), (), linked=True, fresh=True)
    assert (plan.deactivate, plan.activate) == ((3,), (3,))
    plan = nvlink.plan_partitions(partitions, gpus(1, 3), (), linked=True, fresh=False)
    assert (plan.deactivate, plan.activate) == ((), ())


def test_the_sets_of_the_node_beside_the_managers():
    missing, wrong = nvlink.compare_with_nvlink_sets(
        table({0: (1, 2, 3, 4), 1: (1, 3), 2: (1,)}), [gpus(1, 3), gpus(2, 4)]
    )
    assert missing == (gpus(1, 2, 3, 4),)
    assert wrong == (gpus(2, 4),)


def test_what_was_active_before_anybody_kept_a_record():
    tenancies = {3: PartitionTenancy("a", gpus(1, 3))}
    partitions = table(H100, active={3, 4, 5, 12})
    found = nvlink.adopt_active_partitions(partitions, tenancies, gpus(1, 2, 3, 4, 5))
    # GPU 7 of partition 5 and GPU 6 are nobody's.
    assert found == {3: tenancies[3], 4: PartitionTenancy(nvlink.SOMEBODY, gpus(2, 4))}
    assert nvlink.list_needed_partitions(found, gpus(4)) == (4,)


# --- any table -------------------------------------------------------------------

NUMBERS = range(6)
sets = st.frozensets(st.sampled_from(NUMBERS), min_size=1)


@st.composite
def fabrics(draw):
    """Partitions of which the active ones are disjoint, as a manager keeps them."""
    found, busy = [], set()
    for key, members in enumerate(draw(st.lists(sets, max_size=9))):
        active = not members & busy and draw(st.booleans())
        busy |= members if active else set()
        found.append(NvlinkPartition(key, gpus(*members), active))
    return found


def covers(partitions, wanted, linked):
    least = 2 if linked and len(wanted) > 1 else 1
    for size in range(1, len(wanted) + 1):
        for some in itertools.combinations(partitions, size):
            members = [gpu for one in some for gpu in one.gpus]
            if sorted(members) == sorted(wanted) and all(len(one.gpus) >= least for one in some):
                yield some


@given(fabrics(), sets, st.booleans())
def test_the_cover_is_exact_and_the_smallest(partitions, numbers, linked):
    wanted = gpus(*numbers)
    every = list(covers(partitions, wanted, linked))
    if not every:
        with pytest.raises(NoPartitionError):
            nvlink.cover_gpus(partitions, wanted, linked)
        return
    found = nvlink.cover_gpus(partitions, wanted, linked)
    assert len(found) == min(map(len, every))
    assert {one.id for one in found} in [{one.id for one in some} for some in every]
    assert found == nvlink.cover_gpus(partitions[::-1], wanted, linked)


@given(fabrics(), sets, sets, st.booleans(), st.booleans())
def test_a_plan_leaves_exactly_its_partitions_active(partitions, mine, theirs, linked, fresh):
    wanted, others = gpus(*mine), gpus(*(theirs - mine))
    try:
        plan = nvlink.plan_partitions(partitions, wanted, others, linked, fresh)
    except NoPartitionError:
        assert not list(covers(partitions, wanted, linked))
        return
    except NvlinkFabricError:
        crossing = [
            one for one in partitions if one.active and one.gpus & wanted and one.gpus & others
        ]
        assert crossing
        return
    # What the manager would do; it refuses what overlaps.
    active = {one.id: one for one in partitions if one.active}
    for key in plan.deactivate:
        assert not active.pop(key).gpus & others
    by_id = {one.id: one for one in partitions}
    for key in plan.activate:
        assert not any(by_id[key].gpus & one.gpus for one in active.values())
        active[key] = by_id[key]
    ours = [one for one in active.values() if one.gpus & wanted]
    assert {one.id for one in ours} == {one.id for one in plan.chosen}
    assert sorted(gpu for one in ours for gpu in one.gpus) == sorted(wanted)
    before = {one.id for one in partitions if one.active and one.gpus & others}
    assert before <= active.keys()
    if not fresh:
        again = [attrs.evolve(one, active=one.id in active) for one in partitions]
        plan = nvlink.plan_partitions(again, wanted, others, linked, fresh=False)
        assert (plan.deactivate, plan.activate) == ((), ())
