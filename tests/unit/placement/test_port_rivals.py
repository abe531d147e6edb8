# SPDX-License-Identifier: Apache-2.0
"""Whole adapters beside virtual functions on one network, by Nova's own rules.

Nova gives an adapter itself or functions of it, never both: ``_allocate_devs`` and
``free_device`` of nova/pci/manager.py take the relatives of a device out of the pools.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from unittest import mock

import attrs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import (
    ChoiceAnswer,
    DeviceGroup,
    DevicePool,
    DeviceSet,
    FreeHost,
    HostNode,
    Request,
    Unmet,
)
from nova_hpc.placement.solver import costs
from nova_hpc.placement.spread import rotate_devices
from nova_hpc_common.level import AffinityPolicy, Level, Location
from tests.unit.placement.examples import gpus, host, spot
from tests.unit.placement.test_ports import ask, of, worth

#: Keys of the ports of one network: functions, and whole adapters.
FUNCTION, WHOLE = "function", "whole"
#: Level and distance.
Worth = tuple[int, int]


def adapter(
    number: int, place: Location, functions: int, *, itself: bool = True
) -> list[DevicePool]:
    """The pools of one adapter: its functions, and itself."""
    name = f"pf{number}"
    rival = name if itself and functions else None
    pools = []
    if itself:
        pools.append(
            DevicePool(f"w{number}", name, place, 1, frozenset({WHOLE}), rival=rival, whole=True)
        )
    if functions:
        pools.append(
            DevicePool(f"v{number}", name, place, functions, frozenset({FUNCTION}), rival=rival)
        )
    return pools


def ports(groups: int, functions: int, whole: int, **more: object) -> Request:
    found = [of(functions, FUNCTION)] if functions else []
    found += [of(whole, WHOLE)] if whole else []
    return ask(groups, *found, **more)


# -- every choice, tried ---------------------------------------------------------


def choices(request: Request, cloud: FreeHost) -> Iterator[list[DevicePool]]:
    """Every choice of an adapter or a function for each port."""
    wanted = {each.key: each.count for each in request.ports}
    adapters = [pool for pool in cloud.pools if WHOLE in pool.serves]
    for whole in itertools.combinations(adapters, wanted.get(WHOLE, 0)):
        gone = {pool.rival for pool in whole} - {None}
        functions = [
            number
            for number, pool in enumerate(cloud.pools)
            if FUNCTION in pool.serves and pool.rival not in gone
            for _ in range(pool.free)
        ]
        for mine in sorted(set(itertools.combinations(functions, wanted.get(FUNCTION, 0)))):
            yield [*whole, *(cloud.pools[number] for number in mine)]


def best(request: Request, cloud: FreeHost) -> Worth | None:
    """The tightest that any even dealing of any choice reaches; None: there is none."""
    number = len(request.groups)
    most = -(-sum(each.count for each in request.ports) // number)
    least = sum(each.count for each in request.ports) // number
    devices = [pool for pool in cloud.pools if "gpu" in pool.serves]
    allowed = request.level if request.policy is AffinityPolicy.REQUIRED else Level.HOST
    known: dict[tuple[str, ...], Worth] = {}

    def measured(group: Sequence[DevicePool]) -> Worth:
        name = tuple(sorted(pool.id for pool in group))
        if name not in known:
            known[name] = worth([group])
        return known[name]

    def deal(left: Sequence[DevicePool], hands: list[list[DevicePool]]) -> Iterator[Worth]:
        if not left:
            if min(map(len, hands)) > least:  # each has a GPU
                each = [measured(hand) for hand in hands]
                yield max(level for level, _ in each), max(far for _, far in each)
            return
        for hand in hands:
            if len(hand) <= most:
                hand.append(left[0])
                yield from deal(left[1:], hands)
                hand.pop()

    found = (
        one
        for chosen in choices(request, cloud)
        for mine in itertools.combinations(devices, number)
        for one in deal(chosen, [[each] for each in mine])
    )
    return min((one for one in found if one[0] <= allowed), default=None)


def check(request: Request, cloud: FreeHost, found: DeviceSet) -> None:
    """Nova could give it."""
    pools = {pool.id: pool for pool in cloud.pools}
    used = [pick.pool for pick in found.picks]
    assert all(used.count(one) <= pools[one].free for one in used)
    assert all(pick.want in pools[pick.pool].serves for pick in found.picks)
    whole = {pools[one].rival for one in used if pools[one].whole} - {None}
    assert not whole & {pools[one].rival for one in used if not pools[one].whole}
    for each in request.ports:
        assert sum(pick.want == each.key for pick in found.picks) == each.count
    groups: dict[int, list[DevicePool]] = {}
    for pick in found.picks:
        groups.setdefault(pick.group, []).append(pools[pick.pool])
    assert worth(list(groups.values())) == (int(found.level), int(found.distance))
    sizes = [len(groups[number]) for number in range(len(request.groups))]
    assert max(sizes) - min(sizes) <= 1


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Request, FreeHost]:
    """A few adapters of one network, most of which can be had whole or in functions."""
    switches, per_root = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    places = [
        Location(numa=n // 2, socket=0, root=f"root{n // per_root}", switches=(f"s{n}",))
        for n in range(switches)
    ]
    where = st.sampled_from([*places, *places, Location(numa=0, socket=0)])
    groups = draw(st.integers(1, 3))
    pools: list[DevicePool] = []
    for n, place in enumerate(draw(st.lists(where, min_size=groups, max_size=4))):
        pools.append(DevicePool(f"gpu{n}", f"gpu{n}", place, 1, frozenset({"gpu"})))
    for n, place in enumerate(draw(st.lists(where, min_size=2, max_size=4))):
        functions = draw(st.sampled_from([1, 2, 2, 3, 0]))
        itself = not functions or draw(st.integers(0, 3)) > 0
        mine = adapter(n, place, functions, itself=itself)
        if not draw(st.integers(0, 9)):
            # Two that should be in one place, and are said not to be.
            mine[0] = attrs.evolve(mine[0], location=draw(where))
        pools += mine
    request = ports(
        groups,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
        level=draw(st.sampled_from([*Level, Level.HOST, Level.HOST])),
    )
    request = attrs.evolve(request, policy=draw(st.sampled_from(list(AffinityPolicy))))
    return request, FreeHost("h", tuple(pools), (HostNode(0, 0), HostNode(1, 0)))


@settings(deadline=None, max_examples=200)
@given(worlds())
def test_what_nova_could_give_is_found_and_nothing_else(world: tuple[Request, FreeHost]) -> None:
    request, cloud = world
    tightest = best(request, cloud)
    answer = choose_device_sets(request, cloud)
    event("refused" if tightest is None else Level(tightest[0]).word)
    if tightest is None:
        assert not answer.sets
        assert answer.miss is not None
        return
    (found,) = answer.sets
    assert (int(found.level), int(found.distance)) == tightest
    check(request, cloud, found)
    check(request, cloud, rotate_devices(request, cloud, found, 7))


@settings(deadline=None, max_examples=60)
@given(worlds())
def test_what_is_found_in_a_hurry_holds(world: tuple[Request, FreeHost]) -> None:
    """Where the exact search gives up at once."""
    request, cloud = world
    with mock.patch.object(costs, "MAX_WORK", -1):
        answer = choose_device_sets(request, cloud)
    event("found" if answer.sets else "refused")
    for found in answer.sets:
        check(request, cloud, found)
        tightest = best(request, cloud)
        assert tightest is not None
        assert tightest <= (int(found.level), int(found.distance))


# -- by example ----------------------------------------------------------------


def test_two_whole_adapters_and_the_functions_of_the_others() -> None:
    """Found by chance: 96 searches ended in "no host"."""
    nowhere = Location(numa=0, socket=0)
    places = [
        Location(numa=n // 2, socket=0, root=f"root{n // 2}", switches=(f"s{n}",)) for n in range(4)
    ]
    cloud = FreeHost(
        "h",
        (
            DevicePool("gpu0", "gpu0", places[1], 1, frozenset({"gpu"})),
            DevicePool("gpu1", "gpu1", nowhere, 1, frozenset({"gpu"})),
            DevicePool("gpu2", "gpu2", places[1], 1, frozenset({"gpu"})),
            *adapter(0, places[1], 3),
            *adapter(1, places[1], 2),
            *adapter(2, places[2], 1),
            *adapter(3, places[3], 2),
        ),
        (HostNode(0, 0), HostNode(1, 0)),
    )
    request = attrs.evolve(ports(2, 3, 2, level=Level.HOST), policy=AffinityPolicy.PREFERRED)
    (found,) = choose_device_sets(request, cloud).sets
    check(request, cloud, found)
    assert (int(found.level), int(found.distance)) == best(request, cloud)


def rails(count: int) -> FreeHost:
    """GPUs with an adapter each, which can be had whole or in eight functions."""
    mine = [pool for n in range(count) for pool in adapter(n, spot(n), 8)]
    return host(*gpus(*range(count)), *mine)


@pytest.mark.parametrize(("functions", "whole"), [(4, 4), (7, 1), (1, 7), (0, 8), (16, 0)])
def test_eight_rails_of_both(functions: int, whole: int) -> None:
    request, cloud = ports(8, functions, whole), rails(8)
    (found,) = choose_device_sets(request, cloud).sets
    pools = {pool.id: pool for pool in cloud.pools}
    taken = {pools[pick.pool].name for pick in found.picks if pick.want == WHOLE}
    assert len(taken) == whole
    assert found.level is Level.SWITCH
    assert not taken & {pools[p.pool].name for p in found.picks if p.want == FUNCTION}


def test_every_adapter_whole_leaves_no_function() -> None:
    answer: ChoiceAnswer = choose_device_sets(ports(8, 1, 8, level=Level.HOST), rails(8))
    assert answer.miss is not None
    assert answer.miss.unmet is Unmet.PORTS


def test_functions_that_differ_go_together() -> None:
    """Trusted ones and others of one adapter are two pools, which are no rivals."""
    (one, two) = (
        DevicePool(f"v{key}", "pf0", spot(0), 4, frozenset({key}), rival="pf0")
        for key in ("a", "b")
    )
    itself = DevicePool("w0", "pf0", spot(0), 1, frozenset({WHOLE}), rival="pf0", whole=True)
    request = ask(1, of(2, "a"), of(2, "b"))
    (found,) = choose_device_sets(request, host(*gpus(0), one, two, itself)).sets
    assert sorted(pick.pool for pick in found.picks) == ["gpu00", "va", "va", "vb", "vb"]


def test_a_flavors_own_adapter_and_its_functions() -> None:
    """Where an alias takes the adapter, no port has functions of it."""
    want = DevicePool("w0", "pf0", spot(0), 1, frozenset({"gpu"}), rival="pf0", whole=True)
    mine = DevicePool("v0", "pf0", spot(0), 4, frozenset({FUNCTION}), rival="pf0")
    assert not choose_device_sets(ports(1, 1, 0), host(want, mine)).sets
    other = DevicePool("v1", "pf1", spot(0), 4, frozenset({FUNCTION}))
    (found,) = choose_device_sets(ports(1, 1, 0), host(want, mine, other)).sets
    assert sorted(pick.pool for pick in found.picks) == ["v1", "w0"]
    # A want without ports has one or the other, too.
    groups = attrs.evolve(ports(1, 0, 0), groups=(DeviceGroup({"gpu": 1}),))
    assert choose_device_sets(groups, host(want, mine)).sets
