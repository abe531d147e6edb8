# SPDX-License-Identifier: Apache-2.0
"""Ports dealt to groups: examples, and every dealing tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_hpc.placement import flavor, ports
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.judge import judge_claimed_devices
from nova_hpc.placement.model import (
    DeviceGroup,
    DevicePool,
    DeviceSet,
    FreeHost,
    HostNode,
    Ports,
    Request,
    Unmet,
    Want,
    WantedCell,
)
from nova_hpc.placement.spread import rotate_devices
from nova_hpc_common.level import (
    AffinityPolicy,
    Distance,
    Level,
    Location,
    common_level,
    distance_between,
)
from tests.unit.placement.examples import gpus, host, spot

GPU = Want("gpu", "gpu", 1)


def rail(switch: int, *serves: str, functions: int = 8) -> DevicePool:
    """An adapter for ports."""
    return DevicePool(f"pf{switch}", f"pf{switch}", spot(switch), functions, frozenset(serves))


def ask(groups: int, *found: Ports, level: Level = Level.SWITCH, **more: object) -> Request:
    return Request(
        wants=(attrs.evolve(GPU, count=groups),),
        groups=(DeviceGroup({"gpu": 1}),) * groups,
        level=level,
        policy=AffinityPolicy.REQUIRED,
        ports=found,
        **more,
    )


def of(count: int, key: str = "p") -> Ports:
    return Ports(key, "port", count, f"physical network {key}")


def pairs(devices: DeviceSet) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for pick in devices.picks:
        groups.setdefault(pick.group, []).append(pick.pool)
    return sorted(sorted(each) for each in groups.values())


def test_the_group_is_chosen_beside_the_adapter() -> None:
    """Whatever else would be the better device: one is beside a function."""
    cloud = host(*gpus(0, 1, 1), rail(1, "p"))
    (found,) = choose_device_sets(ask(1, of(1)), cloud).sets
    assert (found.level, found.distance) == (Level.SWITCH, Distance.PIX)
    assert sorted(pick.want for pick in found.picks) == ["gpu", "p"]
    assert "pf1" in {pick.pool for pick in found.picks}


@pytest.mark.parametrize("networks", [1, 2, 8])
def test_eight_rails(networks: int) -> None:
    """Eight pairs, whether the rails are one network or several."""
    cloud = host(*gpus(*range(8)), *(rail(n, f"p{n % networks}") for n in range(8)))
    asked = [of(8 // networks, f"p{n}") for n in range(networks)]
    (found,) = choose_device_sets(ask(8, *asked), cloud).sets
    assert found.distance is Distance.PIX
    assert pairs(found) == [[f"gpu{n:02}", f"pf{n}"] for n in range(8)]


def test_half_of_the_rails_by_their_networks() -> None:
    """Four ports of four networks: the GPUs are those of their rails."""
    cloud = host(*gpus(*range(8)), *(rail(n, f"p{n}") for n in range(8)))
    (found,) = choose_device_sets(ask(4, *(of(1, f"p{n}") for n in (1, 3, 4, 6))), cloud).sets
    assert pairs(found) == [[f"gpu{n:02}", f"pf{n}"] for n in (1, 3, 4, 6)]


def test_two_networks_on_two_adapters_each() -> None:
    """What the solver finds first takes both functions from one network's adapters."""
    cloud = host(
        *gpus(0, 0, 2, 3), rail(0, "a"), rail(1, "a"), rail(2, "b", functions=1), rail(3, "b")
    )
    (found,) = choose_device_sets(ask(2, of(1, "a"), of(1, "b")), cloud).sets
    assert found.distance is Distance.PIX
    networks = [pick.want for pick in found.picks if pick.want != "gpu"]
    assert sorted(networks) == ["a", "b"]


@pytest.mark.parametrize("count", [1, 3, 5, 7])
def test_fewer_ports_than_groups(count: int) -> None:
    """As many groups as there are ports have one, and it is beside them."""
    cloud = host(*gpus(*range(8)), *(rail(n, "p") for n in range(8)))
    (found,) = choose_device_sets(ask(8, of(count)), cloud).sets
    sizes = sorted(len(group) for group in pairs(found))
    assert sizes == [1] * (8 - count) + [2] * count
    assert found.distance is Distance.PIX


def test_the_one_port_of_two_cells() -> None:
    """A guest of two cells: the port is on that of its adapter."""
    request = ask(2, of(1), level=Level.NUMA, cells=(WantedCell(0), WantedCell(1)), on_cells=True)
    (found,) = choose_device_sets(request, host(*gpus(0, 2), rail(3, "p"))).sets
    assert found.level is Level.NUMA
    (port,) = [pick for pick in found.picks if pick.want == "p"]
    assert found.cells[port.cell] == 1


def test_a_guest_of_ports_alone() -> None:
    request = attrs.evolve(
        ask(1, of(1), level=Level.NUMA, cells=(WantedCell(0, dedicated_cpus=8),), on_cells=True),
        wants=(),
        groups=(DeviceGroup({}),),
    )
    (found,) = choose_device_sets(request, host(rail(0, "p"), rail(2, "p"), cpus=(4, 32))).sets
    assert [pick.pool for pick in found.picks] == ["pf2"]
    two = attrs.evolve(request, groups=(DeviceGroup({}),) * 2, cells=(WantedCell(0), WantedCell(1)))
    (found,) = choose_device_sets(two, host(rail(2, "p"))).sets
    assert [(pick.want, pick.pool) for pick in found.picks] == [("p", "pf2")]


def test_no_function_of_a_network() -> None:
    answer = choose_device_sets(ask(1, of(1, "a"), of(1, "b")), host(*gpus(0), rail(0, "a")))
    assert answer.miss is not None
    assert "0 functions of adapters free for 1 ports of physical network b" in answer.miss.operator
    assert answer.miss.user == "0 functions of adapters free for ports of a network (needs 1)"


def test_functions_elsewhere() -> None:
    answer = choose_device_sets(ask(1, of(1)), host(*gpus(0), rail(1, "p")))
    assert answer.miss is not None
    assert answer.miss.unmet is Unmet.PORTS
    assert answer.miss.user == (
        "1 gpu and 1 port free, but at most 1 gpu with 0 port under one switch "
        "(needs 1 gpu with 1 port)"
    )


def test_an_adapter_and_its_functions_are_not_given_together() -> None:
    whole = attrs.evolve(rail(0, "pf", functions=1), id="whole", rival="pf0", whole=True)
    request = ask(1, of(1), of(1, "pf"), level=Level.NUMA)
    cloud = host(*gpus(0), whole, attrs.evolve(rail(0, "p"), rival="pf0"), rail(1, "p"))
    (found,) = choose_device_sets(request, cloud).sets
    assert {pick.pool for pick in found.picks if pick.want == "p"} == {"pf1"}


def test_sixty_four_ports() -> None:
    cloud = host(*gpus(*range(8)), *(rail(n, f"p{n % 2}", functions=16) for n in range(8)))
    (found,) = choose_device_sets(ask(8, of(40, "p0"), of(24, "p1"), level=Level.HOST), cloud).sets
    assert len(found.picks) == 72
    (found,) = choose_device_sets(ask(8, of(32, "p0"), of(32, "p1")), cloud).sets
    assert {len(group) for group in pairs(found)} == {9}
    assert found.distance is Distance.PIX


def test_the_flavor_says_how_many_ports_a_group_takes() -> None:
    specs = {"hpc:affinity": "switch", "hpc:group": "gpu:1,rail:1"}
    wants = (Want("0", "gpu", 4),)
    found = (Ports("port 0", "rail", 4), Ports("port 1", "storage", 1))
    request = flavor.build_request(specs, wants, (), {}, None, found, ("rail", "storage"))
    assert [(each.name, each.count) for each in request.ports] == [("rail", 4), ("port", 1)]
    assert len(request.groups) == 4
    more = (attrs.evolve(found[0], count=5),)
    with pytest.raises(flavor.FlavorError, match=r"at most 1 rail in each of 4 groups.* has 5"):
        flavor.build_request(specs, wants, (), {}, None, more, ("rail", "storage"))
    with pytest.raises(flavor.FlavorError, match="'rail', which is no alias"):
        flavor.build_request(specs, wants, (), {}, None, (), ())


def test_an_alias_with_the_word_comes_first() -> None:
    specs = {"hpc:affinity": "switch", "hpc:group": "gpu:1,port:1"}
    wants = (Want("0", "gpu", 2), Want("1", "port", 2))
    request = flavor.build_request(specs, wants, (), {}, None, (Ports("port 0", "port", 2),))
    assert len(request.groups) == 2
    assert [each.name for each in request.ports] == ["direct port"]


# -- every dealing, tried ------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Request, FreeHost]:
    """A host of a few switches, and a request for GPUs and ports of one or two networks."""
    switches, per_root = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    places = [
        Location(numa=n // 2, socket=0, root=f"root{n // per_root}", switches=(f"s{n}",))
        for n in range(switches)
    ]
    where = st.sampled_from([*places, *places, Location(numa=0, socket=0)])
    groups = draw(st.integers(1, 3))
    devices = draw(st.lists(where, min_size=groups, max_size=4))
    pools = [
        DevicePool(f"gpu{n}", f"gpu{n}", place, 1, frozenset({"gpu"}))
        for n, place in enumerate(devices)
    ]
    keys = draw(st.sampled_from([("a",), ("a", "b"), ("a", "b")]))
    serve = st.sampled_from([{key} for key in keys] + [set(keys)])
    for n, place in enumerate(draw(st.lists(where, min_size=1, max_size=4))):
        free = draw(st.sampled_from([1, 1, 2]))
        pools.append(DevicePool(f"pf{n}", f"pf{n}", place, free, frozenset(draw(serve))))
    found = [of(draw(st.integers(1, 2)), key) for key in keys]
    level = draw(st.sampled_from(list(Level)))
    policy = draw(st.sampled_from(list(AffinityPolicy)))
    request = attrs.evolve(ask(groups, *found, level=level), policy=policy)
    return request, FreeHost("h", tuple(pools), (HostNode(0, 0), HostNode(1, 0)))


def dealings(request: Request, cloud: FreeHost) -> Iterator[list[list[DevicePool]]]:
    """Every choice of devices and functions, dealt evenly in every way."""
    number = len(request.groups)
    mine = [pool for pool in cloud.pools if "gpu" in pool.serves]
    keys = [each.key for each in request.ports for _ in range(each.count)]
    adapters = [pool for pool in cloud.pools if "gpu" not in pool.serves]
    low, high = len(keys) // number, -(-len(keys) // number)
    for devices in itertools.combinations(mine, number):
        for given_ in itertools.product(adapters, repeat=len(keys)):
            if any(key not in pool.serves for key, pool in zip(keys, given_, strict=True)):
                continue
            if any(given_.count(pool) > pool.free for pool in given_):
                continue
            for seats in itertools.product(range(number), repeat=len(keys)):
                if not all(low <= seats.count(n) <= high for n in range(number)):
                    continue
                yield [
                    [devices[n], *(p for p, seat in zip(given_, seats, strict=True) if seat == n)]
                    for n in range(number)
                ]


def worth(groups: Sequence[Sequence[DevicePool]]) -> tuple[int, int]:
    """The widest level, and the longest path."""
    level, far = Level.SWITCH, Distance.PIX
    for group in groups:
        if len(group) > 1:
            level = max(level, common_level([pool.location for pool in group]))
            far = max(
                far,
                *(
                    distance_between(a.location, b.location)
                    for a, b in itertools.combinations(group, 2)
                ),
            )
    return int(level), int(far)


@settings(deadline=None, max_examples=150)
@given(worlds())
def test_no_dealing_is_better(world: tuple[Request, FreeHost]) -> None:
    request, cloud = world
    best = min((worth(groups) for groups in dealings(request, cloud)), default=None)
    answer = choose_device_sets(request, cloud)
    if best is None or (request.policy is AffinityPolicy.REQUIRED and best[0] > request.level):
        assert not answer.sets
        assert answer.miss is not None
        return
    (found,) = answer.sets
    assert (int(found.level), int(found.distance)) == best
    pools = {pool.id: pool for pool in cloud.pools}
    groups: dict[int, list[DevicePool]] = {}
    claimed: dict[str, list[str]] = {}
    for pick in found.picks:
        groups.setdefault(pick.group, []).append(pools[pick.pool])
        claimed.setdefault(pick.want, []).append(pick.pool)
    assert worth(list(groups.values())) == best
    assert {key: len(ids) for key, ids in claimed.items()} == {
        "gpu": len(request.groups),
        **{each.key: each.count for each in request.ports},
    }
    assert all(key in pools[one].serves for key, ids in claimed.items() for one in ids)
    # The node says the same of what was chosen.
    (judged,) = judge_claimed_devices(request, cloud, claimed).sets
    assert (judged.level, judged.distance) == (found.level, found.distance)
    # And what is exchanged for it is as good.
    other = rotate_devices(request, cloud, found, 7)
    again = judge_claimed_devices(
        request,
        cloud,
        {key: [pick.pool for pick in other.picks if pick.want == key] for key in claimed},
    )
    assert again.sets[0].level == found.level


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no time to look for the best, one that holds does."""
    monkeypatch.setattr(ports, "TRIES", 4)
    cloud = host(*gpus(*range(4)), *(rail(n, f"p{n % 2}") for n in range(4)))
    request = ask(4, of(9, "p0"), of(3, "p1"), level=Level.HOST)
    (found,) = choose_device_sets(request, cloud).sets
    assert sum(pick.want == "p0" for pick in found.picks) == 9
    assert sum(pick.want == "p1" for pick in found.picks) == 3
