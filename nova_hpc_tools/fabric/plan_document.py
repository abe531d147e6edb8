# SPDX-License-Identifier: Apache-2.0
"""The planner's answer as a JSON document with a version.

Within a version keys may be added; a key is never removed and never changes its meaning.
"""

from __future__ import annotations

import json
from typing import Any, Final

from nova_hpc.cluster.plan.model import Gang, GangMiss, GangPlan, GangRefusal

SCHEMA: Final = "nova-hpc/gang-plan"
VERSION: Final = 1


def format_plan_document(gang: Gang, answer: GangPlan | GangRefusal) -> str:
    """Format the plan document as JSON text: ASCII, indented, ends with a newline."""
    return json.dumps(build_plan_document(gang, answer), indent=2) + "\n"


def build_plan_document(gang: Gang, answer: GangPlan | GangRefusal) -> dict[str, Any]:
    """Build the plan document as a JSON object: question and answer.

    The keys after ``fits`` depend on its value.
    """
    head = {
        "schema": SCHEMA,
        "version": VERSION,
        "asked": _build_question(gang),
        "fits": isinstance(answer, GangPlan),
    }
    if isinstance(answer, GangRefusal):
        return {
            **head,
            "reason": answer.reason,
            "nearest": _build_miss(answer.nearest),
            "instead": _build_miss(answer.instead),
            "total": answer.total,
        }
    return {
        **head,
        "level": answer.level,
        "domain": answer.domain,
        "reached": answer.reached,
        "proven": answer.proven,
        "why": answer.why,
        "around": {level.word: name for level, name in answer.around},
        "leaves": dict(answer.leaves),
        "hosts": dict(answer.hosts),
    }


def _build_question(gang: Gang) -> dict[str, Any]:
    return {
        "members": gang.members,
        "level": gang.level.word,
        "policy": gang.policy.value,
        "order": gang.order.value,
        "max_per_host": gang.max_per_host,
        "rails": gang.rails,
        "group": gang.group,
    }


def _build_miss(miss: GangMiss | None) -> dict[str, Any] | None:
    if miss is None:
        return None
    return {"level": miss.level, "domain": miss.domain, "holds": miss.holds}
