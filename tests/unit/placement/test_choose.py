"""Examples: what is chosen on hosts that people know, and what is said."""

from __future__ import annotations

import attrs
import pytest

from nova_hpc.placement.choose import choose
from nova_hpc.placement.model import (
    Cell,
    Group,
    Host,
    HostNode,
    Nvlink,
    Policy,
    Pool,
    Request,
    Want,
)
from nova_hpc.placement.profile import Profile, Shape
from nova_hpc.placement.solver import budget
from nova_hpc.placement.spread import rotate
from nova_hpc.topology.level import Distance, Level, Location


def spot(switch: int, per_node: int = 2) -> Location:
    """A place on a host with one PCIe root for each switch."""
    numa = switch // per_node
    return Location(numa=numa, socket=numa, root=f"root{switch}", switches=(f"sw{switch}",))


def gpus(*switches: int) -> tuple[Pool, ...]:
    """One GPU on each of these switches (a number may come several times)."""
    return tuple(
        Pool(f"gpu{n:02}", f"gpu{n:02}", spot(switch), 1, frozenset({"gpu"}))
        for n, switch in enumerate(switches)
    )


def adapters(*switches: int, functions: int = 16) -> tuple[Pool, ...]:
    """One physical function with virtual functions on each of these."""
    return tuple(
        Pool(f"pf{n:02}", f"pf{n:02}", spot(switch), functions, frozenset({"vf"}))
        for n, switch in enumerate(switches)
    )


def host(*pools: Pool, cpus: tuple[int, ...] = (32, 32)) -> Host:
    nodes = tuple(HostNode(n, n, count, {2048: 1000}) for n, count in enumerate(cpus))
    return Host("node7", pools, nodes)


def ask(
    level: Level = Level.SWITCH,
    policy: Policy = Policy.REQUIRED,
    groups: int = 1,
    cells: int = 0,
    cpus: int = 8,
    on_cells: bool = False,
    **counts: int,
) -> Request:
    return Request(
        wants=tuple(Want(name, name, count * groups) for name, count in counts.items()),
        groups=(Group(counts),) * groups,
        level=level,
        policy=policy,
        cells=tuple(Cell(n, cpus, 100 * 2048, 2048) for n in range(cells)),
        on_cells=on_cells,
    )


#: two sockets, four switches, eight GPUs: 0 0 1 1 | 2 2 3 3
DGX = (*gpus(0, 0, 1, 1, 2, 2, 3, 3), *adapters(0, 1, 2, 3))


@pytest.mark.parametrize(
    ("pools", "request_", "expected"),
    [
        # One GPU goes where a switch is broken already.
        (gpus(0, 0, 1, 2, 2), ask(gpu=1), {"gpu02"}),
        # Two go to the pair, and leave the three alone.
        (gpus(0, 0, 0, 1, 1), ask(gpu=2), {"gpu03", "gpu04"}),
        # One of three costs no pair, one of two would.
        (gpus(0, 0, 1, 1, 1), ask(gpu=1), {"gpu02"}),
        # A NUMA node that is broken already, although all switches are alike.
        (gpus(0, 0, 1, 1, 2, 2), ask(gpu=2), {"gpu04", "gpu05"}),
        # The virtual function is the GPU's neighbour.
        ((*gpus(3), *adapters(0, 1, 2, 3)), ask(gpu=1, vf=1), {"gpu00", "pf03"}),
        # Two adapters equally near: one function of each.
        ((*gpus(0, 0), *adapters(0, 0)), ask(gpu=2, vf=2), {"gpu00", "gpu01", "pf00", "pf01"}),
        (adapters(0, 0, 0), ask(vf=3), {"pf00", "pf01", "pf02"}),
        # NUMA level: two whole switches rather than parts of three.
        (gpus(0, 0, 0, 1, 1, 1), ask(Level.NUMA, gpu=3), {"gpu00", "gpu01", "gpu02"}),
    ],
)
def test_the_least_damage(pools: tuple[Pool, ...], request_: Request, expected: set[str]) -> None:
    (found,) = choose(request_, host(*pools)).sets
    assert {pick.pool for pick in found.picks} == expected
    assert found.level is Level.SWITCH


def test_the_adapter_shared_least_is_used() -> None:
    busy = attrs.evolve(adapters(0)[0], free=3)
    idle = attrs.evolve(adapters(0)[0], id="idle", name="zz")
    (found,) = choose(ask(vf=1), host(busy, idle)).sets
    assert found.picks[0].pool == "idle"


def test_four_groups_of_one_gpu_and_one_function() -> None:
    request = ask(groups=4, cells=2, gpu=1, vf=1)
    (found,) = choose(request, host(*DGX)).sets
    assert found.cells == {0: 0, 1: 1}
    assert (found.level, found.distance) == (Level.SWITCH, Distance.PIX)
    on_cell = {
        cell: sorted(pick.pool for pick in found.picks if pick.cell == cell) for cell in (0, 1)
    }
    assert on_cell == {
        0: ["gpu00", "gpu01", "pf00", "pf00"],
        1: ["gpu04", "gpu05", "pf02", "pf02"],
    }
    assert found.reason == "4 groups of 1 gpu and 1 vf under one switch (PIX)"


def test_groups_come_from_the_node_whose_cpus_are_free() -> None:
    request = ask(cells=1, cpus=8, gpu=2)
    (found,) = choose(request, host(*DGX, cpus=(4, 32))).sets
    assert found.cells == {0: 1}
    assert {pick.pool for pick in found.picks} == {"gpu04", "gpu05"}


def test_unknown_cpus_and_pages_reject_nothing() -> None:
    request = ask(cells=2, cpus=1000, groups=2, gpu=1)
    unknown = attrs.evolve(host(*DGX), nodes=(HostNode(0), HostNode(1)))
    assert choose(request, unknown).sets
    assert choose(request, attrs.evolve(host(*DGX), nodes=())).sets
    assert not choose(request, host(*DGX)).sets


def test_preferred_takes_the_next_best_and_says_so() -> None:
    request = ask(Level.SWITCH, Policy.PREFERRED, gpu=4)
    (found,) = choose(request, host(*DGX)).sets
    assert found.level is Level.NUMA
    assert found.distance is Distance.NODE
    assert found.reason == (
        "4 gpu on one NUMA node (NODE); not under one switch: "
        "8 gpu free, but at most 2 under one switch (needs 4)"
    )
    (found,) = choose(attrs.evolve(request, policy=Policy.PREFERRED), host(*gpus(0, 1, 2, 3))).sets
    assert found.level is Level.HOST


def test_preferred_keeps_as_many_groups_as_tight_as_possible() -> None:
    request = ask(Level.SWITCH, Policy.PREFERRED, groups=3, gpu=2)
    pools = gpus(0, 0, 0, 1, 1, 1)
    (found,) = choose(request, host(*pools)).sets
    place = {pool.id: pool.location.switches for pool in pools}
    groups = [{place[p.pool] for p in found.picks if p.group == n} for n in range(3)]
    assert sorted(len(switches) for switches in groups) == [1, 1, 2]
    assert found.level is Level.NUMA


def test_a_device_off_the_cell_is_not_near_it() -> None:
    """The pair is on one switch, but not next to the guest's CPUs."""
    request = ask(Level.SWITCH, cells=1, gpu=2)
    far = host(*gpus(0, 0), cpus=(0, 32))
    assert not choose(request, far).sets
    preferred = attrs.evolve(request, policy=Policy.PREFERRED)
    (found,) = choose(preferred, far).sets
    assert found.level is Level.HOST
    assert "not next to CPUs and memory for every cell" in found.reason
    one_socket = attrs.evolve(
        far,
        pools=tuple(
            attrs.evolve(p, location=attrs.evolve(p.location, socket=0)) for p in far.pools
        ),
        nodes=tuple(attrs.evolve(node, socket=0) for node in far.nodes),
    )
    (found,) = choose(preferred, one_socket).sets
    assert found.level is Level.SOCKET
    assert not choose(attrs.evolve(preferred, on_cells=True), one_socket).sets


def test_alternatives_lie_elsewhere() -> None:
    sets = choose(ask(cells=1, gpu=2), host(*DGX), limit=8).sets
    assert [sorted(pick.pool for pick in one.picks) for one in sets] == [
        ["gpu00", "gpu01"],
        ["gpu04", "gpu05"],
        # Equals, on other devices of the same nodes.
        ["gpu02", "gpu03"],
        ["gpu06", "gpu07"],
    ]
    assert [one.cells for one in sets] == [{0: 0}, {0: 1}, {0: 0}, {0: 1}]
    assert len({one.score for one in sets}) == 1


def test_alternatives_of_another_class_come_before_equals() -> None:
    """One GPU: from the broken switch, then a whole one, then the other whole one."""
    sets = choose(ask(gpu=1), host(*gpus(0, 0, 1, 1, 2)), limit=8).sets
    assert [pick.pool for one in sets for pick in one.picks] == ["gpu04", "gpu00", "gpu02"]
    assert sets[0].score < sets[1].score == sets[2].score


def test_a_packed_host_scores_better_than_a_whole_one() -> None:
    request = ask(gpu=1)
    whole = choose(request, host(*gpus(0, 0, 1, 1, 2, 2, 3, 3))).sets[0]
    broken = choose(request, host(*gpus(0, 1, 1))).sets[0]
    last = choose(request, host(*gpus(0))).sets[0]
    assert last.score < broken.score < whole.score


def unit(number: int, *pools: Pool) -> tuple[Pool, ...]:
    return tuple(attrs.evolve(pool, unit=f"unit{number}") for pool in pools)


def test_a_unit_is_given_whole_or_not_at_all() -> None:
    (gpu,), (adapter,) = gpus(0), adapters(0, functions=1)
    both = unit(0, gpu, adapter)
    assert choose(ask(gpu=1, vf=1), host(*both)).sets
    answer = choose(ask(gpu=1), host(*both))
    assert not answer.sets
    assert answer.miss is not None
    assert answer.miss.user == "0 gpu free (needs 1)"
    assert "gpu00 can not be given" in answer.miss.operator
    # Both serve something, but there is one too many of it.
    answer = choose(ask(gpu=1), host(*unit(0, *gpus(0, 0))))
    assert answer.miss is not None
    assert "2 gpu free, but not in whole IOMMU groups (needs 1 gpu)" in answer.miss.user
    assert choose(ask(gpu=2), host(*unit(0, *gpus(0, 0)))).sets


def test_units_add_up() -> None:
    pools = (
        *unit(0, *gpus(0, 0, 0)),
        *unit(1, *(attrs.evolve(p, id=f"x{p.id}", name=f"x{p.name}") for p in gpus(0, 0))),
    )
    for count, fits in ((1, False), (2, True), (3, True), (4, False), (5, True)):
        assert bool(choose(ask(gpu=count), host(*pools)).sets) is fits


def test_an_alias_that_is_written_twice() -> None:
    """Nova makes two requests of gpu:1,gpu:1; they are one need of two."""
    request = Request(
        wants=(Want("k1", "gpu", 1), Want("k2", "gpu", 1), Want("k3", "vf", 2)),
        groups=(Group({"k1": 1, "k3": 1}), Group({"k2": 1, "k3": 1})),
        level=Level.SWITCH,
        policy=Policy.REQUIRED,
    )
    pools = tuple(
        attrs.evolve(pool, serves=frozenset({"k1", "k2"} if "gpu" in pool.serves else {"k3"}))
        for pool in (*gpus(0, 3), *adapters(0, 3))
    )
    (found,) = choose(request, host(*pools)).sets
    assert {(p.want, p.pool, p.group) for p in found.picks} == {
        ("k1", "gpu00", 0),
        ("k3", "pf00", 0),
        ("k2", "gpu01", 1),
        ("k3", "pf01", 1),
    }


def test_two_aliases_for_one_device() -> None:
    """gpu00 must serve the alias that nothing else serves."""
    first, second = gpus(0, 0)
    both = attrs.evolve(first, serves=frozenset({"gpu", "any"}))
    (found,) = choose(ask(gpu=1, any=1), host(both, second)).sets
    assert {(p.want, p.pool) for p in found.picks} == {("any", "gpu00"), ("gpu", "gpu01")}


@pytest.mark.parametrize(
    ("pools", "request_", "text"),
    [
        (DGX, ask(gpu=9), "8 gpu free (needs 9)"),
        ((), ask(gpu=1, vf=2), "0 gpu free (needs 1), 0 vf free (needs 2)"),
        (DGX, ask(gpu=4), "8 gpu free, but at most 2 under one switch (needs 4)"),
        (DGX, ask(Level.NUMA, gpu=6), "8 gpu free, but at most 4 on one NUMA node (needs 6)"),
        (
            (*gpus(0, 0), *adapters(1)),
            ask(gpu=2, vf=1),
            "2 gpu and 16 vf free, but at most 2 gpu with 0 vf under one switch "
            "(needs 2 gpu with 1 vf)",
        ),
        (
            gpus(0, 0, 1, 2, 2),
            ask(groups=3, gpu=2),
            "5 gpu free (needs 6)",
        ),
        (
            gpus(0, 0, 1, 2, 2, 3),
            ask(groups=3, gpu=2),
            "6 gpu free, but only 2 groups of 2 gpu fit under one switch each (needs 3 groups)",
        ),
        (
            DGX,
            ask(cells=1, cpus=64, gpu=2),
            "too few NUMA nodes with 64 dedicated CPUs and 100 pages of 2048 KiB free",
        ),
        (DGX, ask(cells=3, gpu=2), "3 guest NUMA cells, but too few NUMA nodes"),
        (
            gpus(0, 0, 0, 1),
            ask(Level.NUMA, groups=4, cells=2, gpu=1),
            "the devices fit on one NUMA node, but not next to free CPUs and memory for "
            "2 guest NUMA cells (needs 4 groups of 1 gpu, spread evenly over "
            "2 guest NUMA cells, at most 2 each)",
        ),
    ],
)
def test_the_nearest_miss(pools: tuple[Pool, ...], request_: Request, text: str) -> None:
    answer = choose(request_, host(*pools))
    assert not answer.sets
    assert answer.miss is not None
    assert answer.miss.user == text
    assert "node7" not in answer.miss.user
    assert "gpu0" not in answer.miss.user


def test_the_operator_reads_which_node_lacks_what() -> None:
    answer = choose(ask(cells=1, gpu=2), host(*gpus(0, 0, 1, 1), cpus=(4, 32)))
    assert answer.miss is not None
    assert answer.miss.operator == (
        "NUMA node 0 has devices for 1 group but 4 free dedicated CPUs (needs 8); "
        "NUMA node 1 has devices for 0 groups (needs 1 group of 2 gpu)"
    )


def test_the_nearest_miss_does_not_depend_on_the_order_of_the_cells() -> None:
    cells = (Cell(0, 64), Cell(1, 1, 2048 * 2000, 2048))
    request = attrs.evolve(ask(gpu=2), cells=cells)
    turned = attrs.evolve(request, cells=cells[::-1])
    miss = choose(request, host(*DGX)).miss
    assert miss is not None
    assert "with 1 dedicated CPUs and 2000 pages of 2048 KiB, and with 64" in miss.user
    assert choose(turned, host(*DGX)).miss == miss


BROKEN = [
    attrs.evolve(gpus(0)[0], free=-5),
    attrs.evolve(gpus(0)[0], id="neg", location=attrs.evolve(spot(0), numa=-1)),
    attrs.evolve(gpus(0)[0], id="lost", location=Location()),
]


def test_nonsense_on_the_host_is_not_believed() -> None:
    answer = choose(ask(Level.HOST, gpu=1, cells=1, on_cells=True), host(*BROKEN))
    assert not answer.sets
    assert answer.miss is not None
    # A root whose devices claim several NUMA nodes is no place to rely on.
    one, other = gpus(0, 0)
    torn = host(one, attrs.evolve(other, location=attrs.evolve(spot(0), numa=1)))
    assert not choose(ask(gpu=2), torn).sets
    assert choose(ask(gpu=1), torn).sets


def test_a_device_that_is_listed_twice_is_one_device() -> None:
    (one,) = gpus(0)
    assert not choose(ask(gpu=2), host(one, one, attrs.evolve(one, free=4))).sets
    assert choose(ask(gpu=1), host(one, one)).sets


@pytest.mark.parametrize(
    "request_",
    [
        Request((), (), Level.HOST, Policy.REQUIRED),
        attrs.evolve(ask(gpu=2), groups=(Group({"gpu": 1}),)),
        attrs.evolve(ask(gpu=3), groups=(Group({"gpu": 1}), Group({"gpu": 2}))),
        attrs.evolve(ask(gpu=1), groups=(Group({"vf": 1}),)),
    ],
)
def test_a_request_that_contradicts_itself(request_: Request) -> None:
    with pytest.raises(ValueError, match=r"group|want"):
        choose(request_, host(*DGX))


def test_sixteen_gpus_and_their_virtual_functions() -> None:
    """The work grows with domains and counts, not with combinations."""
    switches = [n // 2 for n in range(16)]
    big = host(*gpus(*switches), *adapters(*switches))
    big = attrs.evolve(
        big,
        pools=tuple(
            attrs.evolve(
                pool,
                location=Location(
                    numa=int(pool.location.switches[0][2:]) // 4,
                    socket=0,
                    root=pool.location.root,
                    switches=pool.location.switches,
                ),
            )
            for pool in big.pools
        ),
        nodes=(HostNode(0, 0), HostNode(1, 0)),
    )
    (found,) = choose(ask(groups=8, cells=2, gpu=1, vf=1), big).sets
    assert (found.level, found.distance) == (Level.SWITCH, Distance.PIX)
    assert len({pick.pool for pick in found.picks}) == 16
    (found,) = choose(ask(Level.HOST, gpu=16, vf=256), big).sets
    assert len(found.picks) == 272
    every = unit(0, *big.pools[:2])
    for number in range(1, 16):
        every += unit(number, *big.pools[number * 2 : number * 2 + 2])
    (found,) = choose(
        ask(groups=8, gpu=2),
        attrs.evolve(
            big, pools=tuple(attrs.evolve(p, free=1, serves=frozenset({"gpu"})) for p in every)
        ),
    ).sets
    assert found.level is Level.SWITCH


def test_beyond_its_bound_the_search_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same level and distance, from the bounded choice; never an endless search."""
    request = ask(groups=4, cells=2, gpu=1, vf=1)
    exact_ = choose(request, host(*DGX)).sets[0]
    monkeypatch.setattr(budget, "MAX_WORK", 10)
    (found,) = choose(request, host(*DGX)).sets
    assert found.score[:3] == exact_.score[:3]
    assert found.score >= exact_.score


def test_a_request_beyond_the_bound_is_answered() -> None:
    """Eight aliases that every device serves: more labellings than can be tried."""
    names = [f"alias{n}" for n in range(8)]
    shared = tuple(
        attrs.evolve(pool, serves=frozenset(names))
        for pool in adapters(*(n // 2 for n in range(16)), functions=5)
    )
    (found,) = choose(ask(Level.HOST, **dict.fromkeys(names, 4)), host(*shared)).sets
    assert len(found.picks) == 32


def test_more_wide_units_than_can_be_tried() -> None:
    """The answer is found by counts; which of 12,870 choices of units does not matter."""
    pools = tuple(
        attrs.evolve(pool, unit=f"unit{number // 2}")
        for number, pool in enumerate(gpus(*([0, 1, 2, 3] * 8)))
    )
    (found,) = choose(ask(Level.HOST, gpu=16), host(*pools)).sets
    used = {pick.pool for pick in found.picks}
    units = {pool.unit for pool in pools if pool.id in used}
    assert used == {pool.id for pool in pools if pool.unit in units}


QUADS = tuple(frozenset(f"gpu{n:02}" for n in four) for four in ((0, 1, 4, 5), (2, 3, 6, 7)))


@pytest.mark.parametrize("policy", Policy)
def test_nvlink_comes_after_the_level_and_before_the_distance(policy: Policy) -> None:
    """The pair below one switch is no set; the sets cross the sockets."""
    pools = gpus(0, 0, 1, 1, 2, 2, 3, 3)
    linked = attrs.evolve(host(*pools), nvlink=QUADS)
    request = ask(Level.HOST, policy, gpu=4)
    (plain,) = choose(request, linked).sets
    assert plain.level is Level.NUMA
    (found,) = choose(attrs.evolve(request, nvlink=Nvlink.REQUIRED), linked).sets
    assert {pick.pool for pick in found.picks} in QUADS
    assert found.level is Level.HOST
    assert found.reason.endswith("; a whole NVLink set")
    (found,) = choose(attrs.evolve(request, nvlink=Nvlink.PREFERRED), linked).sets
    assert (found.level, found.score[1]) == (Level.NUMA, 1)
    assert found.reason.endswith("; 1 group not a whole NVLink set")


def test_devices_beside_an_nvlink_set() -> None:
    """Two groups of a linked pair and one function each, on both sockets."""
    pairs = (frozenset({"gpu00", "gpu02"}), frozenset({"gpu05", "gpu06"}))
    linked = attrs.evolve(host(*DGX), nvlink=pairs)
    request = attrs.evolve(ask(Level.NUMA, groups=2, cells=2, gpu=2, vf=1), nvlink=Nvlink.REQUIRED)
    (found,) = choose(request, linked).sets
    for number, pair in enumerate(pairs):
        picks = [pick for pick in found.picks if pick.group == number]
        assert {pick.pool for pick in picks if pick.want == "gpu"} == pair
        assert {pick.cell for pick in picks} == {number}
    assert found.level is Level.NUMA


@pytest.mark.parametrize(
    ("sets", "counts", "text"),
    [
        ((), {"gpu": 2}, "no NVLink sets are known or wholly free here"),
        ((QUADS[0],), {"vf": 1}, "none of the devices asked for is in an NVLink set"),
        (QUADS, {"gpu": 2}, "no whole NVLink set of 2 free (needs 1 group of 2 gpu)"),
        ((frozenset({"gpu00", "gone"}),), {"gpu": 2}, "no whole NVLink set of 2 free"),
        (QUADS, {"gpu": 4}, "2 whole NVLink sets of 4 gpu free (needs 1 apart, on one NUMA"),
    ],
)
def test_the_nearest_miss_of_nvlink(
    sets: tuple[frozenset[str], ...], counts: dict[str, int], text: str
) -> None:
    linked = attrs.evolve(host(*DGX), nvlink=sets)
    request = attrs.evolve(ask(Level.NUMA, **counts), nvlink=Nvlink.REQUIRED)
    answer = choose(request, linked)
    assert answer.miss is not None
    assert answer.miss.user.startswith(text)


def test_the_profile_decides_what_stays_whole() -> None:
    """With pairs for sale the pair stays; with single GPUs only, names decide."""
    pools = tuple(attrs.evolve(pool, role="gpu") for pool in gpus(0, 0, 1))
    pairs = Profile((Shape({"gpu": 2}, level=Level.SWITCH),))
    singles = Profile((Shape({"gpu": 1}, level=Level.SWITCH),))
    (found,) = choose(ask(gpu=1), host(*pools), profile=pairs).sets
    assert (found.picks[0].pool, found.score[4]) == ("gpu02", 0)
    (found,) = choose(ask(gpu=1), host(*pools), profile=singles).sets
    assert found.score[4] == 1


def test_devices_that_nobody_asked_for_count_as_damage() -> None:
    """A function next to a GPU is worth keeping where both are sold together."""
    pools = tuple(attrs.evolve(pool, role="gpu", serves=frozenset()) for pool in gpus(0))
    ports = tuple(attrs.evolve(pool, role="vf") for pool in adapters(0, 1, functions=1))
    both = Profile((Shape({"gpu": 1, "vf": 1}, level=Level.SWITCH),))
    (found,) = choose(ask(vf=1), host(*pools, *ports), profile=both).sets
    assert (found.picks[0].pool, found.score[4]) == ("pf01", 0)


def test_free_cpus_limit_what_a_node_is_worth() -> None:
    """Node 0 has CPUs for none of the shapes: its GPUs are the ones to give away."""
    pools = tuple(attrs.evolve(pool, role="gpu") for pool in gpus(0, 2))
    shape = Profile((Shape({"gpu": 1}, level=Level.NUMA, cpus=8),))
    for cpus, expected in (((4, 32), "gpu00"), ((32, 4), "gpu01")):
        (found,) = choose(ask(gpu=1), host(*pools, cpus=cpus), profile=shape).sets
        assert found.picks[0].pool == expected


@pytest.mark.parametrize(
    "shape",
    [Shape({}), Shape({"gpu": 0}), Shape({"gpu": 1}, groups=0), Shape({"gpu": 1}, weight=-1)],
)
def test_a_profile_that_makes_no_sense(shape: Shape) -> None:
    with pytest.raises(ValueError, match="shape"):
        choose(ask(gpu=1), host(*DGX), profile=Profile((shape,)))


def test_contradictions_of_the_host_are_named() -> None:
    (one,) = gpus(0)
    other = attrs.evolve(one, location=spot(2))
    answer = choose(ask(gpu=1), host(one, other))
    assert answer.miss is not None
    assert "gpu00 is listed twice with different data" in answer.miss.operator
    many = attrs.evolve(one, free=10**9)
    answer = choose(ask(gpu=1), host(many))
    assert answer.miss is not None
    assert "gpu00 is said to have 1000000000 free devices" in answer.miss.operator
    twice = attrs.evolve(host(one), nodes=(HostNode(0, 0, 1), HostNode(0, 0, 2)))
    with pytest.raises(ValueError, match="NUMA node 0 twice"):
        choose(ask(gpu=1), twice)


def test_racing_servers_are_spread_over_equal_devices() -> None:
    request = ask(cells=1, gpu=2)
    (found,) = choose(request, host(*DGX)).sets
    places = {
        tuple(sorted(pick.pool for pick in rotate(request, host(*DGX), found, seed).picks))
        for seed in range(40)
    }
    assert places == {(f"gpu{n:02}", f"gpu{n + 1:02}") for n in (0, 2, 4, 6)}
