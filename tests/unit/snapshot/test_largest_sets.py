# SPDX-License-Identifier: Apache-2.0
"""The largest sets of a host, held against brute force over all subsets of its devices."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement.model import DevicePool, FreeHost
from nova_hpc_common.level import Level, Location, common_level
from nova_hpc_tools.snapshot.largest_sets import measure_largest_sets


def pool(number: int, switch: int, role: str = "gpu", unit: str | None = None, free: int = 1):
    """A device below one of four switches of two NUMA nodes."""
    place = Location(
        numa=switch // 2, socket=0, root=f"root{switch}", switches=(f"switch{switch}",)
    )
    return DevicePool(
        id=f"uuid-{number}",
        name=f"0000:{number:02x}:00.0",
        location=place,
        free=free,
        serves=frozenset(),
        unit=unit,
        role=role,
    )


def by_brute_force(pools, role, level):
    """The largest subset that is at the level and holds whole units of wanted devices alone."""
    devices = [each for each in pools for _ in range(each.free)]
    wanted = [number for number, each in enumerate(devices) if each.role == role]
    for size in range(len(wanted), 0, -1):
        for chosen in itertools.combinations(wanted, size):
            units = {devices[number].unit for number in chosen} - {None}
            whole = all(
                number in chosen for number, each in enumerate(devices) if each.unit in units
            )
            places = [devices[number].location for number in chosen]
            if whole and common_level(places) <= level:
                return size
    return 0


@given(
    st.lists(
        st.builds(
            pool,
            number=st.just(0),
            switch=st.integers(0, 3),
            role=st.sampled_from(("gpu", "gpu", "vf")),
            unit=st.sampled_from((None, None, "a", "b")),
            free=st.integers(1, 2),
        ),
        max_size=6,
    )
)
def test_the_engine_gives_what_brute_force_finds(drawn):
    pools = tuple(
        DevicePool(
            id=f"uuid-{number}",
            name=f"0000:{number:02x}:00.0",
            location=each.location,
            free=each.free,
            serves=frozenset(),
            unit=each.unit,
            role=each.role,
        )
        for number, each in enumerate(drawn)
    )
    measured = measure_largest_sets(FreeHost("n1", pools), "gpu")
    assert measured == {level: by_brute_force(pools, "gpu", level) for level in Level}


def test_what_fragmentation_takes():
    # One of each pair is in use: four are free, and no two below one switch.
    host = FreeHost("n1", tuple(pool(number, number) for number in range(4)))
    assert measure_largest_sets(host, "gpu") == {
        Level.SWITCH: 1,
        Level.ROOT: 1,
        Level.NUMA: 2,
        Level.SOCKET: 4,
        Level.HOST: 4,
    }
    assert set(measure_largest_sets(host, "vf").values()) == {0}


def test_a_place_that_is_unknown_holds_one_device():
    unknown = DevicePool("u", "0000:01:00.0", Location(), 8, frozenset(), role="vf")
    measured = measure_largest_sets(FreeHost("n1", (unknown,)), "vf")
    assert (measured[Level.SWITCH], measured[Level.HOST]) == (1, 8)


def test_a_unit_with_a_device_of_another_role_is_given_to_nobody():
    pools = (pool(0, 0, unit="a"), pool(1, 0, role="vf", unit="a"), pool(2, 0))
    assert set(measure_largest_sets(FreeHost("n1", pools), "gpu").values()) == {1}
