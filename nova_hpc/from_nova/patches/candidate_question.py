# SPDX-License-Identifier: Apache-2.0
"""Nova-scheduler's query to Placement for a server with an ``hpc:`` flavor: hosts, not devices.

Placement visits all providers of the cloud once for each group of the query, and Nova makes
one group for each device: see :mod:`nova_hpc.from_nova.host_question`, which decides. This
module has the wrap, and the conditions for Nova's own query: it is used whenever the shorter
one could miss hosts.

No bug is known to be filed: Nova's query is right, but slow.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator
from typing import Any, Final

from nova import objects
from nova.scheduler.client import report
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc.from_nova import server
from nova_hpc.from_nova.candidates import CandidateError
from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.from_nova.host_question import HostQuestion

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

ASK: Final = Patch(
    "nova.scheduler.client.report:SchedulerReportClient.get_allocation_candidates",
    parameters=("self", "context", "resources"),
    lines={32: (311, 365), 33: (311, 365), 34: (310, 364)},
    why="Nova sends one request group for each device, and Placement reads all providers once "
    "for each group: four GPUs take three times as long as none.",
    until="Placement answers for several devices of a tree in one group",
)

_MARK: Final = "hpc_question"
_SPEC: Final[contextvars.ContextVar[objects.RequestSpec | None]] = contextvars.ContextVar(
    "hpc_asked_for", default=None
)


class LimitMemory:
    """Remembers that Placement's answer reached its limit, so the shorter query is of no use.

    Safe between threads: it only replaces a time by a later one.
    """

    #: Seconds after which the shorter query is tried again: the set of hosts changes.
    SECONDS: Final = 300.0

    def __init__(self) -> None:
        #: Limit of candidates -> when an answer reached it, by the monotonic clock.
        self._reached: dict[int, float] = {}

    def note(self, limit: int) -> None:
        """Record that an answer has reached *limit* candidates."""
        self._reached = {**self._reached, limit: time.monotonic()}

    def holds(self, limit: int | None) -> bool:
        """Whether an answer reached *limit* recently; False without a limit."""
        if limit is None or limit not in self._reached:
            return False
        return time.monotonic() - self._reached[limit] < self.SECONDS

    def clear(self) -> None:
        """Forget all limits that were reached."""
        self._reached = {}


#: The object of this process.
LIMITS: Final = LimitMemory()


def install_question_patch() -> None:
    """Wrap Nova's query of allocation candidates, so that it can leave out devices (idempotent)."""
    if not hasattr(report.SchedulerReportClient.get_allocation_candidates, _MARK):
        wrap_method(report.SchedulerReportClient, ASK, _ask_for_hosts)
        setattr(report.SchedulerReportClient.get_allocation_candidates, _MARK, True)


@contextlib.contextmanager
def serve_question(spec: objects.RequestSpec) -> Iterator[None]:
    """Mark *spec* as the request of this thread while Nova queries Placement for it."""
    token = _SPEC.set(spec)
    try:
        yield
    finally:
        _SPEC.reset(token)


def _ask_for_hosts(call: Call) -> Any:
    spec, resources = _SPEC.get(), call.given["resources"]
    question = _question_for(spec, resources) if spec is not None else None
    if question is None or LIMITS.holds(resources._limit):
        return call()
    answer = call(resources=question.shorten(resources))
    if answer is None:
        # Placement cannot be reached.
        return answer
    candidates, summaries, version = answer
    if candidates is None:
        # It refuses the query; Nova's own query shows whether it accepts that one.
        return call()
    if resources._limit is not None and len(candidates) >= resources._limit:
        # Hosts may be missing in it, and the listed ones may have too few devices.
        LIMITS.note(resources._limit)
        return call()
    if not candidates:
        return answer
    try:
        completed, left = question.complete(candidates, summaries)
    except CandidateError as error:
        LOG.debug("The request to Placement has a group for each device: %s", error)
        return call()
    # A limit of Placement itself may have hidden the hosts with enough devices.
    return (completed, left, version) if completed else call()


def _question_for(spec: objects.RequestSpec, resources: Any) -> HostQuestion | None:
    """Build the shorter query to Placement, for hosts only; None if Nova's own query is needed."""
    if CONF.hpc.placement_question != "hosts":
        return None
    try:
        return HostQuestion.of(resources, server.read_server_task(spec).units)
    except Exception as error:
        # The decision reads the request again, and reports its fault.
        LOG.debug("The request to Placement has a group for each device: %s", error)
        return None
