# SPDX-License-Identifier: Apache-2.0
"""Room for members during a whole lease, against brute force that visits each hour."""

import datetime

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_blazar.lease_room import (
    ALWAYS_BEGUN,
    NEVER_ENDS,
    Booking,
    LeasableInventory,
    LeasableProvider,
    ResourceKind,
    count_members,
)

GPU = ResourceKind("CUSTOM_GPU", split=True)
FAST = ResourceKind("CUSTOM_GPU", frozenset({"CUSTOM_FAST"}), split=True)
VF = ResourceKind("CUSTOM_VF", split=True)
PCPU = ResourceKind("PCPU")
NOON = datetime.datetime(2026, 12, 1, 12)


def at(hour):
    return NOON + datetime.timedelta(hours=hour)


def device(name, kind=GPU, total=1):
    return LeasableProvider(
        name, {kind.resource_class: LeasableInventory(total, total)}, kind.traits
    )


def host(gpus=8, vfs=8, cpus=32):
    return [
        LeasableProvider("host", {"PCPU": LeasableInventory(cpus, cpus)}),
        *(device(f"gpu{number}") for number in range(gpus)),
        device("pf", VF, vfs),
    ]


def booking(begin, end, **uses):
    kinds = {"gpu": GPU, "vf": VF, "cpu": PCPU, "fast": FAST}
    return Booking(at(begin), at(end), {kinds[name]: amount for name, amount in uses.items()})


requests = st.fixed_dictionaries(
    {GPU: st.integers(0, 5), VF: st.integers(0, 5), PCPU: st.integers(1, 9)}
)
bookings = st.lists(
    st.builds(
        lambda begin, hours, gpu, vf, cpu: booking(begin, begin + hours, gpu=gpu, vf=vf, cpu=cpu),
        *(st.integers(0, 20), st.integers(1, 12), st.integers(0, 3), st.integers(0, 3)),
        st.integers(0, 9),
    ),
    max_size=6,
)


@given(bookings, requests, st.integers(0, 20), st.integers(1, 12))
def test_count_is_that_of_brute_force(others, request, begin, hours):
    most = {GPU: 8, VF: 8, PCPU: 32}
    expected = min(
        max(0, most[kind] - sum(o.uses[kind] for o in others if o.begin <= at(hour) < o.end))
        // amount
        for hour in range(begin, begin + hours)
        for kind, amount in request.items()
        if amount
    )

    assert count_members(host(), others, request, at(begin), at(begin + hours)) == expected


def test_leases_that_do_not_meet_share_a_device():
    others = [booking(0, 2, gpu=4), booking(4, 6, gpu=4)]

    assert count_members(host(), others, {GPU: 4}, at(1), at(5)) == 1
    assert count_members(host(), others, {GPU: 4}, at(2), at(4)) == 2


def test_leases_one_after_the_other_hold_a_device_once():
    others = [booking(0, 2, gpu=4), booking(2, 4, gpu=4)]

    assert count_members(host(), others, {GPU: 4}, at(0), at(4)) == 1


def test_whole_host_of_another_lease_has_no_room():
    other = Booking(at(1), at(2), None)

    assert count_members(host(), [other], {GPU: 1}, at(0), at(3)) == 0
    assert count_members(host(), [other], {GPU: 1}, at(2), at(3)) == 8


def test_lease_that_has_begun_or_never_ends_holds_its_devices():
    begun = Booking(ALWAYS_BEGUN, at(2), {GPU: 8})
    stuck = Booking(at(4), NEVER_ENDS, {GPU: 8})

    assert count_members(host(), [begun], {GPU: 1}, at(-9), at(-8)) == 0
    assert count_members(host(), [stuck], {GPU: 1}, at(90), at(91)) == 0
    assert count_members(host(), [begun, stuck], {GPU: 1}, at(2), at(4)) == 8


def test_resources_of_one_member_come_from_one_provider():
    tree = [LeasableProvider(name, {"VGPU": LeasableInventory(3, 3)}) for name in "ab"]

    assert count_members(tree, [], {ResourceKind("VGPU"): 4}, at(0), at(1)) == 0
    assert count_members(tree, [], {ResourceKind("VGPU"): 3}, at(0), at(1)) == 1
    assert count_members(tree, [], {ResourceKind("VGPU", split=True): 3}, at(0), at(1)) == 2


def test_kinds_of_one_device_count_against_each_other():
    tree = [device("gpu0", FAST), device("gpu1")]

    assert count_members(tree, [booking(0, 1, fast=1)], {GPU: 1}, at(0), at(1)) == 1
    assert count_members(tree, [booking(0, 1, gpu=1)], {FAST: 1}, at(0), at(1)) == 0


def fewest_members(fast, slow, wanted_fast, wanted_any):
    """Members that start whichever devices Nova gives to each of them."""
    least = None
    for of_fast in range(wanted_any + 1):
        left = fast - wanted_fast - of_fast, slow - wanted_any + of_fast
        if min(left) >= 0:
            more = 1 + fewest_members(*left, wanted_fast, wanted_any)
            least = more if least is None else min(least, more)
    return least or 0


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 2), st.integers(1, 3))
def test_one_flavor_takes_no_device_for_two_kinds(fast, slow, wanted_fast, wanted_any):
    tree = [
        *(device(f"fast{number}", FAST) for number in range(fast)),
        *(device(f"slow{number}") for number in range(slow)),
    ]
    request = {GPU: wanted_any, FAST: wanted_fast}

    expected = fewest_members(fast, slow, wanted_fast, wanted_any)
    assert count_members(tree, [], request, at(0), at(1)) == expected


def test_request_of_nothing_fits_nowhere():
    assert count_members(host(), [], {}, at(0), at(1)) == 0
    assert count_members([], [], {GPU: 1}, at(0), at(1)) == 0
