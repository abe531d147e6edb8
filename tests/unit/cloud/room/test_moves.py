# SPDX-License-Identifier: Apache-2.0
"""The fewest moves that make room, against every sequence of moves."""

from __future__ import annotations

import os

import pytest

from nova_hpc_tools.cloud.room.moves import RoomMiss, RoomPlan, find_room_moves
from tests.unit.cloud.room import random_clouds as drawn

EXAMPLES = int(os.environ.get("NOVA_HPC_EXAMPLES", "12"))
#: Brute force goes no further; a night has the time for one move more.
MOST = 3 if EXAMPLES > 12 else 2
#: A cloud in which no server in the way has a place before another one has moved.
CHAIN = 84


@pytest.mark.parametrize("start", range(4))
def test_no_plan_has_more_moves_than_brute_force(start: int) -> None:
    for seed in (*range(start, EXAMPLES, 4), *((CHAIN,) if not start else ())):
        cloud, fabric, chance = drawn.draw_cloud(seed)
        question = drawn.draw_question(cloud, fabric, chance)
        found = find_room_moves(cloud, question, seconds=2.0)
        least = drawn.fewest_moves(cloud, fabric, question, MOST)
        if isinstance(found, RoomMiss):
            assert least is None or not found.proven, (seed, found)
            assert found.reason
            continue
        assert isinstance(found, RoomPlan)
        count = len(found.moves)
        # A search that was cut short says so; it may miss the shortest plan.
        enough = least is None and count > MOST
        assert count == least or enough or (not found.proven and count > least), (seed, count)
        # Each move is possible when its turn comes, and at the end the request fits.
        for move in found.moves:
            after = drawn.move(cloud, fabric, move.server.uuid, move.target)
            assert after is not None, (seed, move)
            (before,) = [each for each in cloud.servers if each.uuid == move.server.uuid]
            assert before.host == move.server.host
            cloud = after
        assert drawn.fits(cloud, question), seed
        assert sum(found.gang.hosts.values()) == question.members
