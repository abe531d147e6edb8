# SPDX-License-Identifier: Apache-2.0
"""The states of requirements, the verdicts, and the evidence for them. Data only."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs


class RequirementState(enum.StrEnum):
    """The result for one requirement: met, not met, unknown, or outside of nova-hpc."""

    MET = "met"
    NOT_MET = "not met"
    #: It was not tried, or could not be read. Never the same as met.
    UNKNOWN = "not known"
    #: Nothing of the cloud's software decides it.
    NOT_OURS = "not ours"


class EvidenceError(Exception):
    """A step gave no usable evidence. The text names the missing thing and the cure."""


@attrs.frozen
class RequirementVerdict:
    """The result for one requirement, with the evidence and the cure.

    :ivar found: the evidence, or the reason.
    :ivar cure: the steps to make it met, or known; "" if nothing has to be done.
    """

    state: RequirementState
    found: str
    cure: str = ""


@attrs.frozen
class StepEvidence:
    """The output of one step, or the reason why there is none.

    :ivar output: the object that it printed; None if it printed none, for :attr:`reason`.
    """

    output: Mapping[str, Any] | None = None
    reason: str = ""


def _freeze_steps(steps: Mapping[str, StepEvidence]) -> Mapping[str, StepEvidence]:
    return MappingProxyType(dict(steps))


@attrs.frozen
class RequirementEvidence:
    """The outputs of all steps, by the suite's names of the steps."""

    steps: Mapping[str, StepEvidence] = attrs.field(converter=_freeze_steps, factory=dict)

    def read_step(self, name: str) -> Mapping[str, Any]:
        """Return the output of a step that completed.

        :raises EvidenceError: the output is missing, or reports that the step failed.
        """
        evidence = self.steps.get(name)
        if evidence is None:
            raise EvidenceError(f"the step {name} was not run")
        if evidence.output is None:
            raise EvidenceError(evidence.reason or f"the step {name} printed nothing")
        if evidence.output.get("success") is False:
            error = evidence.output.get("error")
            raise EvidenceError(f"{name}: {error}" if error else f"{name} failed without a reason")
        return evidence.output

    def read_field(self, step: str, key: str, kind: type | tuple[type, ...]) -> Any:
        """Return the value of *key* in a step's output.

        :raises EvidenceError: it is not there, or of another kind.
        """
        value = self.read_step(step).get(key)
        if isinstance(value, bool) and kind is int:
            value = None
        if not isinstance(value, kind):
            raise EvidenceError(f"{step} has nothing usable for {key}: {str(value)[:80]!r}")
        return value

    def read_rows(self, step: str, key: str) -> Sequence[Mapping[str, Any]]:
        """Return the list of objects under *key* in a step's output.

        :raises EvidenceError: it is not there, or holds something else.
        """
        rows = self.read_field(step, key, list)
        if not all(isinstance(row, dict) for row in rows):
            raise EvidenceError(f"{step}: {key} holds something that is no object")
        return list(rows)


def judge_met(found: str) -> RequirementVerdict:
    """Build the verdict for a requirement that is met.

    :param found: the facts, for people.
    """
    return RequirementVerdict(RequirementState.MET, found)


def judge_not_met(found: str, cure: str) -> RequirementVerdict:
    """Build the verdict for a requirement that is not met.

    :param found: the facts, for people.
    """
    return RequirementVerdict(RequirementState.NOT_MET, found, cure)


def judge_unknown(found: str, cure: str = "") -> RequirementVerdict:
    """Build the verdict for a requirement whose state is unknown.

    :param found: the facts, for people.
    """
    return RequirementVerdict(RequirementState.UNKNOWN, found, cure)
