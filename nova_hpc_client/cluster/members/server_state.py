# SPDX-License-Identifier: Apache-2.0
"""The meaning of a server's status, task and power state for its cluster. Pure.

The statuses come from Nova's API (nova/api/openstack/common.py, ``_STATE_MAP``); a test compares
them with Nova's own.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs


class Standing(enum.Enum):
    """The meaning of a member's state for its cluster."""

    RUNS = "runs"
    #: Nova is making it, and it has not run yet.
    ARRIVES = "arrives"
    #: Nova is at work on it, or its power state does not match its status yet.
    CHANGES = "changes"
    #: It does not run until a command starts it.
    RESTS = "rests"
    FAILED = "failed"
    LEAVES = "leaves"
    #: Nova shows no status, or one of a later release.
    UNKNOWN = "unknown"


@attrs.frozen
class StatusMeaning:
    """A row of :data:`STATUSES`.

    :ivar verb: words after ``openstack server`` that make the member run again.
    :ivar whole: words after ``openstack hpc cluster`` that make all members run again.
    """

    standing: Standing
    verb: str = ""
    whole: str = ""


_AT_WORK: Final = StatusMeaning(Standing.CHANGES)
_SHELVED: Final = StatusMeaning(Standing.RESTS, "unshelve", "unshelve")
_UNKNOWN: Final = StatusMeaning(Standing.UNKNOWN, "show")
#: Nova does not touch a guest that its hypervisor has paused, for example after an I/O error.
_HALTED: Final = StatusMeaning(Standing.RESTS, "reboot --hard")

#: Status of Nova's API -> its meaning while the server has no task.
STATUSES: Final[Mapping[str, StatusMeaning]] = {
    "ACTIVE": StatusMeaning(Standing.RUNS),
    "BUILD": StatusMeaning(Standing.ARRIVES),
    "REBOOT": _AT_WORK,
    "HARD_REBOOT": _AT_WORK,
    "PASSWORD": _AT_WORK,
    "REBUILD": _AT_WORK,
    "MIGRATING": _AT_WORK,
    "RESIZE": _AT_WORK,
    "REVERT_RESIZE": _AT_WORK,
    "VERIFY_RESIZE": StatusMeaning(Standing.RESTS, "resize confirm"),
    "SHUTOFF": StatusMeaning(Standing.RESTS, "start", "start"),
    "PAUSED": StatusMeaning(Standing.RESTS, "unpause"),
    "SUSPENDED": StatusMeaning(Standing.RESTS, "resume"),
    "RESCUE": StatusMeaning(Standing.RESTS, "unrescue"),
    "SHELVED": _SHELVED,
    "SHELVED_OFFLOADED": _SHELVED,
    "ERROR": StatusMeaning(Standing.FAILED),
    "SOFT_DELETED": StatusMeaning(Standing.LEAVES),
    "DELETED": StatusMeaning(Standing.LEAVES),
    "UNKNOWN": _UNKNOWN,
}
#: Tasks that delete a server.
LEAVING_TASKS: Final = ("deleting", "soft-deleting")
#: Tasks that make images of the disk while an ACTIVE guest runs.
RUNNING_TASKS: Final = (
    "image_snapshot",
    "image_snapshot_pending",
    "image_pending_upload",
    "image_uploading",
    "image_backup",
)
#: Statuses in which Nova accepts changes of a server's metadata (nova/compute/api.py,
#: ``update_instance_metadata``, which checks Nova's internal states).
CHANGEABLE: Final = (
    *("ACTIVE", "PAUSED", "SUSPENDED", "SHUTOFF", "REBOOT", "HARD_REBOOT", "PASSWORD", "MIGRATING"),
    *("REBUILD", "RESIZE"),
)
#: Statuses of the members -> state of a cluster whose members all rest in one way.
RESTING_TOGETHER: Final = {
    frozenset({"SHUTOFF"}): "STOPPED",
    frozenset({"SHELVED"}): "SHELVED",
    frozenset({"SHELVED_OFFLOADED"}): "SHELVED",
    frozenset({"SHELVED", "SHELVED_OFFLOADED"}): "SHELVED",
}
#: Values of ``OS-EXT-STS:power_state`` (nova/compute/power_state.py).
RUNNING, PAUSED = 1, 3


def judge_server(status: str, task: str = "", power: int | None = None) -> StatusMeaning:
    """Return the meaning of a server's state for its cluster.

    An ACTIVE guest that has switched itself off counts as changing, because Nova stops it soon. So
    does a guest that its hypervisor does not list at the moment.

    :param status: Nova's status, such as ``ACTIVE``.
    :param task: Nova's task state; empty if there is none.
    :param power: Nova's number of the power state; None if Nova does not show it.
    """
    meaning = STATUSES.get(status, _UNKNOWN)
    if task in LEAVING_TASKS:
        return STATUSES["DELETED"]
    if meaning.standing in (Standing.RUNS, Standing.RESTS):
        if task in RUNNING_TASKS and meaning.standing is Standing.RUNS:
            return meaning
        if task:
            return _AT_WORK
    if meaning.standing is Standing.RUNS and power not in (None, RUNNING):
        return _HALTED if power == PAUSED else _AT_WORK
    return meaning
