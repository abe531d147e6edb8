# SPDX-License-Identifier: Apache-2.0
"""Runs steps in their order, and collects their evidence."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc_requirements.catalog import Requirement
from nova_hpc_requirements.step_context import NAME, StepContext
from nova_hpc_requirements.step_names import (
    CHANGING,
    DOCUMENTS,
    FABRIC_CHECK,
    GUEST_CHECK,
    ON_NODE,
    READING,
    STEP_NAMES,
)
from nova_hpc_requirements.step_table import run_step
from nova_hpc_requirements.steps_life import remove_made
from nova_hpc_requirements.verdicts import RequirementEvidence, StepEvidence

_LAUNCH: Final = "launch_instance"
_NOT_TRIED: Final = StepEvidence(
    reason="it was not tried: --try --flavor FLAVOR --image IMAGE makes a server, takes it "
    "through its life, and deletes it"
)
_NO_SERVER: Final = StepEvidence(
    reason="no server is named: --server SERVER, or --try --flavor FLAVOR --image IMAGE"
)
_NO_CHECK: Final = StepEvidence(
    reason=f"it is known on the subnet manager's host alone: there "
    f"{DOCUMENTS[FABRIC_CHECK]} >FILE, "
    f"then --evidence {FABRIC_CHECK}=FILE"
)
_ELSEWHERE: Final = (
    "it is known on the compute node alone: there {0} >FILE, then --evidence {1}=FILE"
)


def list_steps(requirements: Iterable[Requirement]) -> tuple[str, ...]:
    """Return the steps that decide on requirements, in the order in which they run."""
    wanted = {step for requirement in requirements for step in requirement.steps}
    return tuple(name for name in STEP_NAMES if name in wanted)


def gather_evidence(
    steps: Iterable[str],
    context: StepContext,
    files: Mapping[str, StepEvidence],
    trying: bool,
    said: Callable[[str], None] = lambda _: None,
) -> RequirementEvidence:
    """Run the steps, and collect their outputs.

    :param files: evidence that exists already, and is not collected again.
    :param trying: servers may be made and changed; they are deleted afterwards.
    :param said: called with the name of each step before it runs.
    """
    evidence = {FABRIC_CHECK: _NO_CHECK, **files}
    wanted = [name for name in steps if name not in evidence]
    lives = [name for name in wanted if name in CHANGING or name in READING]
    for name in wanted:
        if name not in lives:
            evidence[name] = _run_elsewhere(name, context, said)
    if not lives:
        return RequirementEvidence(evidence)
    if trying:
        evidence.update(_try_life(lives, context, said))
    else:
        evidence.update((name, _run_without_trying(name, context, said)) for name in lives)
    _take_guest_report(evidence)
    return RequirementEvidence(evidence)


def _run_elsewhere(name: str, context: StepContext, said: Callable[[str], None]) -> StepEvidence:
    if name in ON_NODE:
        return StepEvidence(reason=_ELSEWHERE.format(f"nova-hpc requirements step {name}", name))
    said(name)
    return run_step(name, context)


def _run_without_trying(
    name: str, context: StepContext, said: Callable[[str], None]
) -> StepEvidence:
    if name in CHANGING:
        return _NOT_TRIED
    if not context.options.server:
        return _NO_SERVER
    said(name)
    return run_step(name, context)


def _try_life(
    names: Iterable[str], context: StepContext, said: Callable[[str], None]
) -> dict[str, StepEvidence]:
    """Create a server, run the named steps on it, and delete it; return step -> evidence."""
    said(_LAUNCH)
    evidence = {_LAUNCH: run_step(_LAUNCH, context)}
    made = evidence[_LAUNCH].output
    if made is None:
        failed = StepEvidence(reason=f"no server could be made: {evidence[_LAUNCH].reason}")
        return {**dict.fromkeys(names, failed), **evidence}
    options = attrs.evolve(
        context.options,
        server=str(made["instance_id"]),
        key_file=str(made.get("key_file") or ""),
        key_name=str(made.get("key_name") or ""),
    )
    own = StepContext(options, lambda: context.connection)
    try:
        for name in names:
            if name not in (_LAUNCH, "teardown"):
                said(name)
                evidence[name] = run_step(name, own)
    finally:
        said("teardown")
        with _requests_to_end_ignored():
            _, left = remove_made(own, dict(made), str(made.get("requested_key_name") or ""))
        for what in left:
            said(f"{NAME}: still there: {what}")
    return evidence


@contextlib.contextmanager
def _requests_to_end_ignored() -> Iterator[None]:
    """Protect a deletion from signals: a service manager may send SIGTERM more than once.

    Ctrl-C still ends it.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)
    try:
        before = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    except ValueError:  # not in the main thread: it gets no signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _take_guest_report(evidence: dict[str, StepEvidence]) -> None:
    """Copy the guest's report on its own check into *evidence* under :data:`GUEST_CHECK`.

    The report is a part of the output of the step ``describe_instance``. If that output has an
    error text instead, the new entry has this reason. An existing entry stays.
    """
    described = evidence.get("describe_instance")
    output = None if described is None else described.output
    if GUEST_CHECK in evidence or not output:
        return
    report, complaint = output.get("guest_check"), output.get("guest_check_error")
    if isinstance(report, dict):
        evidence[GUEST_CHECK] = StepEvidence(report)
    elif isinstance(complaint, str):
        evidence[GUEST_CHECK] = StepEvidence(reason=complaint)
