# SPDX-License-Identifier: Apache-2.0
"""Changes that UFM has accepted and not made yet.

UFM may answer a change with 202 and make it in a job of its own. Until the job has ended, its GUIDs
can appear in a partition, or disappear from one, at any moment. An addition whose answer was lost
is the same without a number: UFM may still make it, so it counts for a time.
"""

from __future__ import annotations

from typing import Final

import attrs

from nova_hpc_common.outside.text import printable_text

#: States of jobs that have ended (guide, *Jobs REST API*). With any other word a job may run.
_MADE: Final = "completed"
_ENDED: Final = frozenset(
    {"completed with errors", "completed with warnings", "failed", "aborted", "canceled"}
)


@attrs.frozen
class UfmJob:
    """A change at UFM that may not have ended: a job of UFM, or a request without an answer.

    :ivar number: of UFM's job; "" if the answer to the change was lost.
    :ivar guids: GUIDs that it puts into the partition, or takes out of it.
    :ivar whole: it makes or removes the partition.
    :ivar until: time of the agent's clock, in seconds, from which a lost change no longer counts.
    """

    number: str
    pkey: int
    guids: frozenset[int] = frozenset()
    whole: bool = False
    until: float = float("inf")

    @property
    def is_lost(self) -> bool:
        """Whether UFM's answer to the change was lost."""
        return not self.number

    def describe(self) -> str:
        """Return the name of the job for people."""
        return "one whose answer was lost" if self.is_lost else f"job {self.number}"


@attrs.frozen
class UfmJobState:
    """The state of a job, from UFM's answer.

    :ivar error: why it did not make its change; "" if it did, or has not ended.
    """

    has_ended: bool
    error: str = ""


def read_job_states(answer: object) -> dict[str, UfmJobState]:
    """Read the answer to ``GET /jobs/1,2``: number -> state; others are absent."""
    bodies = answer if isinstance(answer, list) else [answer]
    return {
        str(body["ID"]): read_job_state(str(body["ID"]), body)
        for body in bodies
        if isinstance(body, dict) and "ID" in body
    }


def read_job_state(number: str, answer: object) -> UfmJobState:
    """Parse the answer to ``GET /jobs/1``. An unreadable answer counts as a running job."""
    body = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    if not isinstance(body, dict):
        return UfmJobState(False)
    state = str(body.get("Status")).strip()
    if state.lower() == _MADE:
        return UfmJobState(True)
    if state.lower() in _ENDED:
        summary = printable_text(str(body.get("Summary", "")))[:200]
        return UfmJobState(True, f"UFM's job {number} ended as {state}: {summary}")
    return UfmJobState(False)
