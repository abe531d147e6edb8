# SPDX-License-Identifier: Apache-2.0
"""Which segment, which part: every small world against one that looks at all answers."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement.segment_shape import MIB, SegmentShape
from nova_hpc.tenancy.segments import segment_choice
from nova_hpc.tenancy.segments.segment_choice import (
    LACK_TEXTS,
    SegmentChoice,
    SegmentLack,
    SegmentRequest,
    SegmentState,
    choose_segment,
)
from nova_hpc.tenancy.segments.segment_record import SegmentFileName

ONE, TWO = (f"{digit * 8}-0000-0000-0000-000000000000" for digit in "12")
SMALL, WIDE, LARGE = SegmentShape(2, 2), SegmentShape(2, 4), SegmentShape(4, 3)
SERVERS = ("a", "b", "c", "d")


def name(
    owner: str = ONE, serial: int = 0, shape: SegmentShape = SMALL, node: int = 0
) -> SegmentFileName:
    return SegmentFileName(owner, node, shape, f"{serial:08x}")


@st.composite
def worlds(draw: st.DrawFn) -> tuple[SegmentRequest, SegmentState, SegmentChoice | None]:
    names = draw(
        st.lists(
            st.builds(
                name,
                st.sampled_from((ONE, TWO)),
                st.integers(0, 3),
                st.sampled_from((SMALL, WIDE, LARGE)),
                st.integers(0, 1),
            ),
            max_size=4,
            unique_by=lambda file: (file.serial, file.owner),
        )
    )
    servers = list(draw(st.permutations(SERVERS)))
    taken: dict[SegmentFileName, dict[int, str]] = {}
    for file in names:
        parts = draw(st.sets(st.integers(0, file.shape.parts - 1)))
        taken[file] = {part: servers.pop() for part in sorted(parts) if servers}
    pools = {node: draw(st.integers(0, 6)) * 8 * MIB for node in (0, 1)}
    request = SegmentRequest(
        *("a", ONE, draw(st.sampled_from((SMALL, WIDE, LARGE)))),
        node=draw(st.integers(0, 1)),
        exact=draw(st.booleans()),
    )
    former = None
    if names and draw(st.booleans()):
        file = draw(st.sampled_from(names))
        former = SegmentChoice(file, draw(st.integers(0, file.shape.parts - 1)))
    return request, SegmentState(taken, pools=pools), former


@given(worlds())
def test_what_is_chosen_is_the_best_of_all(
    world: tuple[SegmentRequest, SegmentState, SegmentChoice | None],
) -> None:
    request, state, former = world
    choice = choose_segment(request, state, former)
    others = {
        file: {part for part, server in parts.items() if server != "a"}
        for file, parts in state.taken.items()
    }

    def fits(file: SegmentFileName) -> bool:
        if request.exact:
            return file.shape == request.shape
        return file.shape.part_mib == request.shape.part_mib

    shared = [file for file, parts in others.items() if parts and file.owner == ONE]
    places = [
        (file, part)
        for file in shared
        if fits(file)
        for part in range(file.shape.parts)
        if part not in others[file]
    ]
    if not all(fits(file) for file in shared):
        assert choice is SegmentLack.SIZE
    elif places:
        # Of the best segment, the part that is wanted.
        def worth(place: tuple[SegmentFileName, int]) -> tuple[object, ...]:
            file, part = place
            own = former is not None and former.name == file
            wanted = former is not None and former.part == part
            return (not own, -len(others[file]), file, not wanted, part)

        file, part = min(places, key=worth)
        assert choice == SegmentChoice(file, part)
    elif shared:
        assert choice is SegmentLack.PARTS
    elif (
        former is not None
        and former.name in state.taken
        and former.name.owner == ONE
        and fits(former.name)
    ):
        assert choice == former
    else:
        left = sum(
            file.shape.file_bytes
            for file, parts in state.taken.items()
            if file.node == request.node and (others[file] or "a" not in parts.values())
        )
        if not any(state.pools.values()):
            assert choice is SegmentLack.OFF
        elif left + request.shape.file_bytes > state.pools[request.node]:
            assert choice is SegmentLack.FULL
        else:
            assert isinstance(choice, SegmentChoice)
            assert choice.new
            assert choice.name not in state.taken
            assert attrs.evolve(choice.name, serial="") == SegmentFileName(
                ONE, request.node, request.shape, ""
            )
            wanted = former.part if former else 0
            assert choice.part == (wanted if wanted < request.shape.parts else 0)


@given(st.permutations(SERVERS), st.integers(2, 5))
def test_no_two_servers_have_one_part(order: list[str], parts: int) -> None:
    shape = SegmentShape(2, parts)
    state = SegmentState(pools={0: 1 << 30})
    for server in order:
        choice = choose_segment(SegmentRequest(server, ONE, shape, 0), state)
        if isinstance(choice, SegmentLack):
            assert choice is SegmentLack.PARTS
            assert sum(map(len, state.taken.values())) == parts
            continue
        has = dict(state.taken.get(choice.name, {}))
        assert choice.part not in has
        state = attrs.evolve(
            state, taken={**state.taken, choice.name: {**has, choice.part: server}}
        )
    assert len(state.taken) == 1


def test_what_was_removed_below_a_guest_is_counted() -> None:
    state = SegmentState(lost=frozenset({name()}), pools={0: SMALL.file_bytes})
    assert choose_segment(SegmentRequest("a", ONE, SMALL, 0), state) is SegmentLack.FULL


def test_a_segment_of_which_something_is_not_known_is_not_joined() -> None:
    state = SegmentState({name(): {0: "b"}}, unclear=frozenset({name()}), pools={0: 1 << 30})
    assert choose_segment(SegmentRequest("a", ONE, SMALL, 0), state) is SegmentLack.UNKNOWN
    other = choose_segment(SegmentRequest("a", TWO, SMALL, 0), state)
    assert isinstance(other, SegmentChoice)
    assert other.new


@pytest.mark.parametrize("lack", SegmentLack)
def test_every_lack_has_a_text(lack: SegmentLack) -> None:
    assert LACK_TEXTS[lack].endswith(".")


@pytest.mark.parametrize(
    ("values", "pools"),
    [
        (["0"], {0: 0, 1: 0}),
        (["4096"], {0: 4096, 1: 4096}),
        (["0:4096"], {0: 4096}),
        (["0:4096", "1:8192"], {0: 4096, 1: 8192}),
        (["64", "1:8192"], {0: 64, 1: 8192}),
        (["7:8192"], {}),
        ([], {}),
    ],
)
def test_the_option_says_how_much_on_which_node(values: list[str], pools: dict[int, int]) -> None:
    read = segment_choice.read_pools(values, (0, 1))
    assert read == {node: mib * MIB for node, mib in pools.items()}


def test_all_orders_of_two_groups_fill_the_pool_the_same() -> None:
    starts = [("a", ONE), ("b", ONE), ("c", TWO), ("d", TWO)]
    for order in itertools.permutations(starts):
        taken: dict[SegmentFileName, dict[int, str]] = {}
        for server, owner in order:
            state = SegmentState(taken, pools={0: 2 * SMALL.file_bytes})
            choice = choose_segment(SegmentRequest(server, owner, SMALL, 0), state)
            assert isinstance(choice, SegmentChoice)
            taken.setdefault(choice.name, {})[choice.part] = server
        assert sorted(file.owner for file in taken) == [ONE, TWO]
        state = SegmentState(taken, pools={0: 2 * SMALL.file_bytes})
        assert (state.charge_of(0), state.charge_of(1)) == (2 * SMALL.file_bytes, 0)
