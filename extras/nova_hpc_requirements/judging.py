# SPDX-License-Identifier: Apache-2.0
"""One verdict for each requirement. Pure; any evidence leads to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nova_hpc_common.outside.text import printable_text
from nova_hpc_requirements.catalog import REQUIREMENTS, Requirement
from nova_hpc_requirements.judging_cloud import CLOUD_JUDGES
from nova_hpc_requirements.judging_servers import SERVER_JUDGES
from nova_hpc_requirements.verdicts import (
    EvidenceError,
    RequirementEvidence,
    RequirementState,
    RequirementVerdict,
    judge_unknown,
)

#: Id -> why no software of the cloud decides it.
OUTSIDE: Final = {
    "VMAAS12-01": "the container, its registry and the key to it are NVIDIA's and the user's; "
    "the suite has scripts of its own for it",
}
_JUDGES: Final = {**SERVER_JUDGES, **CLOUD_JUDGES}
_LONGEST: Final = 400


class UnknownRequirementError(Exception):
    """There is no requirement with this id. The text lists the existing ones."""


def choose_requirements(ids: Sequence[str]) -> tuple[Requirement, ...]:
    """Return the requirements with these ids, in the order of the table; all if *ids* is empty.

    :raises UnknownRequirementError: one of them is unknown.
    """
    wanted = {name.strip().upper() for name in ids}
    unknown = sorted(wanted - {requirement.id for requirement in REQUIREMENTS})
    if unknown:
        legal = ", ".join(requirement.id for requirement in REQUIREMENTS)
        raise UnknownRequirementError(
            f"no requirement has the id {', '.join(map(printable_text, unknown))}; this project "
            f"answers {legal}"
        )
    return tuple(item for item in REQUIREMENTS if not wanted or item.id in wanted)


def judge_requirement(
    requirement: Requirement, evidence: RequirementEvidence
) -> RequirementVerdict:
    """Decide from the evidence whether one requirement is met, not met or unknown; never raises."""
    outside = OUTSIDE.get(requirement.id)
    if outside is not None:
        return RequirementVerdict(RequirementState.NOT_OURS, outside)
    try:
        verdict = _JUDGES[requirement.id](evidence)
    except EvidenceError as error:
        verdict = judge_unknown(str(error), requirement.command)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Evidence is a file from elsewhere: evidence without sense is unknown, and never met.
        text = f"the evidence makes no sense: {type(error).__name__}: {error}"
        verdict = judge_unknown(text, requirement.command)
    return RequirementVerdict(
        verdict.state, _shorten_line(verdict.found), _shorten_line(verdict.cure)
    )


def _shorten_line(text: str) -> str:
    line = printable_text(" ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
