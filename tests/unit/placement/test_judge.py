# SPDX-License-Identifier: Apache-2.0
"""Examples: devices that Nova has claimed, judged before a guest starts."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from nova_hpc.placement.judge import judge_claimed_devices
from nova_hpc.placement.model import (
    DeviceGroup,
    DevicePool,
    FreeHost,
    HostNode,
    Nvlink,
    Request,
    Want,
    WantedCell,
)
from nova_hpc_common.level import AffinityPolicy, Level, Location


def device(
    name: str, switch: int, serves: str, unit: str | None = None, free: int = 1
) -> DevicePool:
    numa = switch // 2
    place = Location(numa=numa, socket=numa, root=f"root{switch}", switches=(f"sw{switch}",))
    return DevicePool(name, name, place, free, frozenset({serves} if serves else ()), unit)


HOST = FreeHost(
    "node7",
    (
        device("0000:01:00.0", 0, "gpu"),
        device("0000:02:00.0", 0, "gpu"),
        device("0000:03:00.0", 1, "gpu"),
        device("0000:83:00.0", 2, "gpu"),
        device("0000:04:00.1", 0, "vf"),
        device("0000:84:00.1", 2, "vf"),
        device("0000:05:00.1", 0, ""),
        device("0000:85:00.1", 2, ""),
    ),
    # Everything is in use: by this very server.
    (HostNode(0, 0, 0, {2048: 0}), HostNode(1, 1, 0, {2048: 0})),
)


def ask(
    policy: AffinityPolicy = AffinityPolicy.REQUIRED,
    cell: int | None = 0,
    level: Level = Level.SWITCH,
    **counts: int,
) -> Request:
    return Request(
        wants=tuple(Want(name, name, count) for name, count in counts.items()),
        groups=(DeviceGroup(counts),),
        level=level,
        policy=policy,
        cells=() if cell is None else (WantedCell(0, 8, 2048 * 9, 2048, host_node=cell),),
    )


def test_what_is_aligned_is_accepted_as_it_is() -> None:
    claimed = {"gpu": ["0000:02:00.0", "0000:01:00.0"], "vf": ["0000:04:00.1"]}
    answer = judge_claimed_devices(ask(gpu=2, vf=1), HOST, claimed)
    (found,) = answer.sets
    assert found.level is Level.SWITCH
    assert {(pick.want, pick.pool) for pick in found.picks} == {
        ("gpu", "0000:01:00.0"),
        ("gpu", "0000:02:00.0"),
        ("vf", "0000:04:00.1"),
    }


@pytest.mark.parametrize(
    ("request_", "claimed", "text"),
    [
        (
            ask(gpu=2),
            {"gpu": ["0000:01:00.0", "0000:03:00.0"]},
            "2 gpu free, but at most 1 under one switch (needs 2)",
        ),
        (ask(gpu=2), {"gpu": ["0000:01:00.0"]}, "1 gpu claimed (needs 2)"),
        (ask(gpu=1), {}, "0 gpu claimed (needs 1)"),
        (
            ask(gpu=1),
            {"gpu": ["0000:99:00.0"]},
            "a claimed gpu is not among the devices of the host",
        ),
        (
            ask(gpu=2),
            {"gpu": ["0000:01:00.0", "0000:01:00.0"]},
            "2 functions of a device are claimed, which has 1",
        ),
        (
            ask(cell=1, gpu=1),
            {"gpu": ["0000:01:00.0"]},
            "the devices fit under one switch, but not next to free CPUs and memory for "
            "1 guest NUMA cell (needs 1 group of 1 gpu)",
        ),
    ],
)
def test_what_is_not_aligned_is_refused(
    request_: Request, claimed: dict[str, Sequence[str]], text: str
) -> None:
    answer = judge_claimed_devices(request_, HOST, claimed)
    assert not answer.sets
    assert answer.miss is not None
    assert answer.miss.user == text


def test_preferred_is_accepted_with_its_level() -> None:
    claimed = {"gpu": ["0000:01:00.0", "0000:03:00.0"]}
    (found,) = judge_claimed_devices(ask(AffinityPolicy.PREFERRED, gpu=2), HOST, claimed).sets
    assert found.level is Level.NUMA
    (found,) = judge_claimed_devices(
        ask(AffinityPolicy.PREFERRED, cell=1, gpu=2), HOST, claimed
    ).sets
    assert found.level is Level.HOST


def test_functions_of_ports_are_judged_with_the_groups() -> None:
    claimed = {"gpu": ["0000:01:00.0"], "port": ["0000:05:00.1"]}
    assert judge_claimed_devices(ask(gpu=1), HOST, claimed).sets
    far = {"gpu": ["0000:01:00.0"], "port": ["0000:85:00.1"]}
    answer = judge_claimed_devices(ask(gpu=1), HOST, far)
    assert answer.miss is not None
    assert answer.miss.user == (
        "a device of one of the server's ports is not under one switch with a group of the others"
    )
    (found,) = judge_claimed_devices(ask(AffinityPolicy.PREFERRED, gpu=1), HOST, far).sets
    assert found.level is Level.HOST
    assert "with the devices of the ports on one host" in found.reason
    unknown = {"gpu": ["0000:01:00.0"], "port": ["0000:99:00.1"]}
    assert not judge_claimed_devices(ask(gpu=1), HOST, unknown).sets
    assert (
        judge_claimed_devices(ask(AffinityPolicy.PREFERRED, gpu=1), HOST, unknown).sets[0].level
        is Level.HOST
    )


def test_part_of_a_unit_is_refused_even_when_preferred() -> None:
    shared = attrs.evolve(
        HOST,
        pools=tuple(
            attrs.evolve(pool, unit="0000:01:00.0") if pool.id in HALF else pool
            for pool in HOST.pools
        ),
    )
    answer = judge_claimed_devices(
        ask(AffinityPolicy.PREFERRED, gpu=1), shared, {"gpu": ["0000:01:00.0"]}
    )
    assert answer.miss is not None
    assert "shares its IOMMU group with a device that is not claimed" in answer.miss.user
    assert "0000:02:00.0" in answer.miss.operator
    assert "0000" not in answer.miss.user
    assert judge_claimed_devices(ask(gpu=2), shared, {"gpu": ["0000:01:00.0", "0000:02:00.0"]}).sets


HALF = ("0000:01:00.0", "0000:02:00.0")


def test_a_want_keeps_the_devices_that_it_claimed() -> None:
    """Devices that could serve either alias are not exchanged to make a set fit."""
    both = frozenset({"a", "b"})
    pools = tuple(
        attrs.evolve(device(name, switch, "a"), serves=both)
        for name, switch in (("p0", 0), ("p1", 0), ("p2", 2), ("p3", 2))
    )
    request = Request(
        wants=(Want("a", "a", 2), Want("b", "b", 2)),
        groups=(DeviceGroup({"a": 1, "b": 1}),) * 2,
        level=Level.SWITCH,
        policy=AffinityPolicy.REQUIRED,
    )
    host = FreeHost("h", pools)
    assert judge_claimed_devices(request, host, {"a": ["p0", "p2"], "b": ["p1", "p3"]}).sets
    assert not judge_claimed_devices(request, host, {"a": ["p0", "p1"], "b": ["p2", "p3"]}).sets


def test_claimed_nvlink_devices_are_exactly_one_set() -> None:
    linked = attrs.evolve(HOST, nvlink=(frozenset(HALF), frozenset({"0000:03:00.0"})))
    required = attrs.evolve(ask(level=Level.HOST, gpu=2), nvlink=Nvlink.REQUIRED)
    (found,) = judge_claimed_devices(required, linked, {"gpu": list(HALF)}).sets
    assert found.reason.endswith("; a whole NVLink set")
    mixed = {"gpu": ["0000:01:00.0", "0000:03:00.0"]}
    answer = judge_claimed_devices(required, linked, mixed)
    assert answer.miss is not None
    assert answer.miss.user == "no whole NVLink set of 2 free (needs 1 group of 2 gpu)"
    preferred = attrs.evolve(required, nvlink=Nvlink.PREFERRED)
    (found,) = judge_claimed_devices(preferred, linked, mixed).sets
    assert found.score[1] == 1
    # No GPU of this host is linked to any: then there is no set to be had.
    assert not judge_claimed_devices(required, HOST, {"gpu": list(HALF)}).sets
