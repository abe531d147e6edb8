# SPDX-License-Identifier: Apache-2.0
"""How often a guest has ended, from Nova's list of a server's actions."""

from __future__ import annotations

from typing import Any

import pytest

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_client.openstack.v1 import cluster_views
from tests.unit.cluster.test_healing import build

USER = "8a7e1a05c23446119483d71844238e0a"


def action(name: str, minute: int, user: str | None = USER, message: str | None = None) -> Any:
    moment = f"2026-11-30T{minute // 60:02d}:{minute % 60:02d}:00.000000"
    return {"action": name, "start_time": moment, "user_id": user, "message": message}


def count(*actions: Any) -> int:
    """*actions*: the newest first, as Nova lists them."""

    class Rest:
        def nova(self, method: str, path: str) -> Any:
            return {"instanceActions": list(actions)}

    return SdkCloud.count_endings(type("Cloud", (), {"rest": Rest()})(), "server")  # type: ignore[arg-type]


CREATED = action("create", 0)


def test_a_guest_that_has_ended_and_one_that_its_owner_has_stopped() -> None:
    assert count(action("stop", 9, None), CREATED) == 1
    assert count(action("hpc_fault_found", 10), action("stop", 9, None), CREATED) == 1
    assert count(action("stop", 9), CREATED) == 0
    assert count(CREATED) == count() == 0
    # Nova stops it once more if its guest runs after its owner's stop.
    assert count(action("stop", 9, None), action("stop", 8), CREATED) == 0
    assert count(action("stop", 9, None), action("start", 8), action("stop", 7), CREATED) == 1


def test_a_start_that_fails_counts_as_an_end() -> None:
    """Before: the healer reported that no member has to be replaced."""
    failed = action("start", 10, message="Error")
    assert count(failed, action("stop", 9, None), CREATED) == 2
    assert count(action("start", 10), action("stop", 9, None), CREATED) == 0


def test_only_ends_of_one_hour_count() -> None:
    ends = [action("stop", minute, None) for minute in (200, 170, 141, 140, 20)]
    starts = [action("start", minute) for minute in (180, 160, 140, 30)]
    listed = sorted((*ends, *starts, CREATED), key=lambda each: each["start_time"], reverse=True)
    assert count(*listed) == 3


@pytest.mark.parametrize(
    "broken",
    [
        {"action": None, "start_time": "2026-11-30T00:00:00", "user_id": None},
        {"action": "stop", "start_time": "soon", "user_id": None},
        {"action": "stop", "user_id": None},
        {},
        None,
    ],
)
def test_garbage_is_no_end(broken: Any) -> None:
    assert count(broken, CREATED) == 0


def test_one_server_whose_actions_cannot_be_read_hides_no_other() -> None:
    servers = {number: {"status": "SHUTOFF", "task": ""} for number in (1, 2, 3)}
    cluster = build({**servers, 4: {}})

    def count(server: str) -> int:
        if server == "id1":
            raise ClusterCloudError("Nova has no such server")
        return 1 if server == "id3" else 0

    marked = cluster_views._mark_ended(cluster, count)
    assert [member.ended for member in marked.members] == [False, False, True, False]
    assert marked.reason == "t-3 is SHUTOFF: its guest has ended"
    # The first eight only, because each one is a request.
    many = build({number: {"status": "SHUTOFF", "task": ""} for number in range(1, 40)})
    asked: list[str] = []
    cluster_views._mark_ended(many, lambda server: asked.append(server) or 0)  # type: ignore[func-returns-value]
    assert len(asked) == 8
