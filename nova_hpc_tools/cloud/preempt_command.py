# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc capacity --make-room --preempt`` and ``--unshelve``, after their options are read."""

from __future__ import annotations

import json
import sys
from typing import Final

import attrs

from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.base import CommandAnswer
from nova_hpc_tools.cloud.room import answers, preemption_answers
from nova_hpc_tools.cloud.room.preemption import PreemptionPlan, find_preemption
from nova_hpc_tools.cloud.room.preemptor import Preemptor, ToldPlan
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.cloud.room.unshelver import ReturnVerdict, Unshelver, WaitingServer
from nova_hpc_tools.cloud.server_moves import DrainStopError
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError
from nova_hpc_tools.snapshot import Snapshot

VERSION: Final = 1
UNSHELVE_SCHEMA: Final = "nova-hpc/unshelve"
_LEFT: Final = 1


@attrs.frozen
class PreemptRun:
    """One run of ``--make-room --preempt``.

    :ivar name: of the command, for messages.
    :ivar schema: of the answer for programs.
    :ivar notice: minutes.
    :ivar preemptor: None if it only plans.
    """

    name: str
    schema: str
    notice: int
    preemptor: Preemptor | None

    def finish_begun_shelving(self) -> None:
        """Finish the shelving that an earlier run has begun, before the cloud is read."""
        for failure in self.preemptor.finish_begun_shelving() if self.preemptor else ():
            self._warn(f"warning: {printable_text(failure)}")

    def answer(self, cloud: Snapshot, question: RoomQuestion, problems: list[str]) -> CommandAnswer:
        """Plan, and with --yes make room; status 0 if the request fits then."""
        if self.preemptor is None:
            told = ToldPlan(find_preemption(cloud, question))
        else:
            told = self.preemptor.tell_owners(cloud, question, self.notice)
        plan, due = told.answer, told.due
        fits = isinstance(plan, PreemptionPlan) and not plan.servers
        done: list[str] = []
        if self.preemptor is not None and due is not None:
            for line in preemption_answers.format_notice(told.servers, due):
                self.preemptor.say(line)
            problem = self._carry_out(self.preemptor, question, told, done)
            fits = problem is None
            if problem is not None:
                self._warn(problem)

        def show() -> None:
            if due is None:
                preemption_answers.print_preemption(question, plan)
            elif fits:
                print(f"{question.text}: fits now")

        document = {
            "schema": self.schema,
            "version": VERSION,
            **answers.describe_question(question),
            "fits": fits,
            **preemption_answers.describe_preemption(plan, due, done),
            "problems": problems,
        }
        return CommandAnswer(
            preemption_answers.COLUMNS,
            preemption_answers.list_rows(plan, done),
            status=0 if fits else _LEFT,
            show=show,
            document=lambda: json.dumps(document, indent=2) + "\n",
        )

    def _carry_out(
        self, preemptor: Preemptor, question: RoomQuestion, told: ToldPlan, done: list[str]
    ) -> str | None:
        """Wait, and shelve the servers; returns the reason if the request does not fit then."""

        def format_stop(error: object) -> str:
            count = f"{len(done)} of {len(told.servers)} servers are shelved"
            back = "; --unshelve brings them back" if done else ""
            return f"{count}; stopped: {printable_text(str(error))}; run it again to go on{back}"

        try:
            preemptor.await_notice(told)
            for server in preemptor.carry_out(question, told.servers):
                done.append(server.uuid)
        except (DrainStopError, NovaApiError) as error:
            return format_stop(error)
        except KeyboardInterrupt:
            self._warn(format_stop("the notices hold for an hour"))
            raise
        if not preemptor.await_room(question):
            return (
                f"{len(done)} servers are shelved, and {question.text} does not fit: other servers "
                "came, or devices are withheld (nova-hpc device list --all-nodes)"
            )
        return None

    def _warn(self, text: str) -> None:
        print(f"{self.name}: {text}", file=sys.stderr)


def answer_unshelve(unshelver: Unshelver, act: bool) -> CommandAnswer:
    """List the preempted servers, with *act* unshelve those that fit; status 0 if none is left."""
    back = list(unshelver.unshelve_in_order()) if act else []
    cloud = unshelver.read()
    left = [(place, unshelver.judge(cloud, place)) for place in unshelver.list_waiting()]
    rows: list[tuple[WaitingServer, ReturnVerdict | None]] = [(place, None) for place in back]
    rows += left
    document = {
        "schema": UNSHELVE_SCHEMA,
        "version": VERSION,
        "servers": preemption_answers.describe_waiting(rows),
    }
    return CommandAnswer(
        preemption_answers.WAITING_COLUMNS,
        preemption_answers.list_waiting_rows(rows),
        status=_LEFT if left else 0,
        show=lambda: preemption_answers.print_waiting(rows),
        document=lambda: json.dumps(document, indent=2) + "\n",
    )
