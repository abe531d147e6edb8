# SPDX-License-Identifier: Apache-2.0
"""CPUs and pages that can matter to nobody make no two hosts different."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from nova_hpc.placement import between_hosts
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import (
    ChoiceAnswer,
    DeviceGroup,
    FreeHost,
    HostNode,
    Request,
    Want,
    WantedCell,
)
from nova_hpc.placement.profile import DEFAULT, FlavorShape, Profile
from nova_hpc_common.level import AffinityPolicy, Level
from tests.unit.placement.test_properties import EXAMPLES, check_set
from tests.unit.placement.worlds import cases

SIZE = 1048576


@st.composite
def busy(draw: st.DrawFn) -> tuple[Request, FreeHost, Profile]:
    """Hosts with any number of CPUs and pages left, and flavors that take some."""
    request, host = draw(cases())
    grain = draw(st.sampled_from([1, 2, 3, 4]))
    shapes = [
        FlavorShape(
            {draw(st.sampled_from(["gpu", "vf", "a"])): draw(st.integers(1, 2))},
            groups=draw(st.sampled_from([1, 2])),
            level=draw(st.sampled_from(Level)),
            cpus=grain * draw(st.integers(0, 4)),
            memory_kib=2048 * draw(st.integers(0, 3)),
            page_kib=draw(st.sampled_from([2048, None])),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    cells = tuple(
        attrs.evolve(cell, dedicated_cpus=grain * draw(st.integers(0, 3))) for cell in request.cells
    )
    nodes = tuple(
        attrs.evolve(
            node,
            dedicated_cpus=draw(st.sampled_from([None, *range(-1, 30)])),
            pages=draw(
                st.sampled_from([None, *({2048: count, SIZE: count} for count in range(-1, 16))])
            ),
        )
        for node in host.nodes
    )
    return (
        attrs.evolve(request, cells=cells),
        attrs.evolve(host, nodes=nodes),
        Profile(tuple(shapes)),
    )


def asked(request: Request, host: FreeHost, profile: Profile) -> ChoiceAnswer:
    """The answer for the host as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(between_hosts, "reduce_host", lambda request, host, profile: host)
        return choose_device_sets(request, host, profile=profile)


@settings(
    max_examples=max(EXAMPLES // 4, 1),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(busy())
def test_the_answer_stays(case: tuple[Request, FreeHost, Profile]) -> None:
    request, host, profile = case
    other = between_hosts.reduce_host(request, host, profile)
    event("other CPUs or pages" if other != host else "as it was")
    assert between_hosts.reduce_host(request, other, profile) == other
    before = asked(request, host, profile)
    after = asked(request, other, profile)
    assert after.miss == before.miss
    assert [found.score for found in after.sets] == [found.score for found in before.sets]
    for found in after.sets:
        check_set(request, host, found)  # fits the host as it is


def host(*cpus: int | None) -> FreeHost:
    return FreeHost(
        "h", (), tuple(HostNode(n, n, count, {SIZE: 3}) for n, count in enumerate(cpus))
    )


def request(cpus: int = 0) -> Request:
    cells = (WantedCell(0, cpus),) if cpus else ()
    wants = (Want("gpu", "gpu", 1),)
    return Request(wants, (DeviceGroup({"gpu": 1}),), Level.HOST, AffinityPolicy.REQUIRED, cells)


def cpus_of(found: FreeHost) -> list[int | None]:
    return [node.dedicated_cpus for node in found.nodes]


def test_nobody_needs_any() -> None:
    found = between_hosts.reduce_host(request(), host(17, 3, None, -1), DEFAULT)
    assert cpus_of(found) == [0, 0, None, -1]
    assert [node.pages for node in found.nodes] == [{}, {}, {}, {}]


def test_more_than_the_request_needs() -> None:
    # What is too little is kept: people are told how much it is.
    assert cpus_of(between_hosts.reduce_host(request(8), host(17, 31, 5), DEFAULT)) == [8, 8, 5]


def test_whole_servers_of_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = FlavorShape({"gpu": 1}, cpus=12)
    monkeypatch.setattr(
        between_hosts, "_list_possible_shapes", lambda shapes, pools: [(shape, 4, 4)]
    )
    sold = Profile((shape,))
    assert cpus_of(between_hosts.reduce_host(request(), host(100, 30), sold)) == [48, 24]
    # The rest of one node and that of the other make one more server on the host.
    assert cpus_of(between_hosts.reduce_host(request(), host(19, 30), sold)) == [18, 30]
    assert cpus_of(between_hosts.reduce_host(request(), host(20, 31), sold)) == [18, 30]


def test_a_host_that_contradicts_itself_is_left_alone() -> None:
    twice = attrs.evolve(host(1), nodes=(HostNode(0, 0, 1), HostNode(0, 0, 2)))
    assert between_hosts.reduce_host(request(), twice, DEFAULT) is twice
    with pytest.raises(ValueError, match="twice"):
        choose_device_sets(request(), twice)
