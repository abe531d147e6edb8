# SPDX-License-Identifier: Apache-2.0
"""The result: a document that is stored, sent, and judged by other programs.

It contains no name of a host and no serial number. The user guide describes the schema; within
a version keys may be added.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..compare import GuestFinding
from ..files import GuestFileError, Root
from .diagnosis import Diagnosis
from .distribution import Distribution
from .evidence import AcceptanceRow
from .facts import GuestFacts
from .probes import FULL, PROBE_OF, QUICK
from .ratio import SLOW, UNDECIDED
from .refusal import Refusal
from .sample import AcceptanceError, expect_object, is_number, load_object, shorten

SCHEMA: Final = "nova-hpc/acceptance"
VERSION: Final = 1
READS: Final = (1,)
#: Path of the last complete result until the machine is started again.
PLACE: Final = "/run/nova-hpc/acceptance.json"
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"

ACCEPTED: Final = "accepted"
BROKEN: Final = "promise broken"
REFUSED: Final = "refused"
UNMEASURED: Final = "not measurable"
#: Verdict of the whole -> exit status.
STATUSES: Final = {ACCEPTED: 0, SLOW: 1, BROKEN: 1, REFUSED: 2, UNMEASURED: 2, UNDECIDED: 3}


class MeasuredValue(NamedTuple):
    """The median of a probe's runs with its unit, judged or not."""

    probe: str
    unit: str
    median: float
    runs: int


class AcceptanceResult(NamedTuple):
    """Everything that one run of ``nova-hpc-guest accept`` found."""

    tier: str
    boot: str | None
    facts: GuestFacts
    tools: Mapping[str, tuple[str, bool]] = {}
    rows: Sequence[AcceptanceRow] = ()
    measured: Sequence[MeasuredValue] = ()
    #: Probe -> why it was left out: nothing to measure it with, or on.
    missing: Mapping[str, str] = {}
    #: Probe -> why its tool returned no value.
    failed: Mapping[str, str] = {}
    #: The cloud has described this machine.
    promised: bool = False
    #: Why the promise is missing.
    unpromised: str = ""
    findings: Sequence[GuestFinding] = ()
    diagnosis: Diagnosis = Diagnosis((), ())
    baseline: Mapping[str, Any] = {}
    refused: Refusal | None = None
    #: The caller left some probes out.
    partial: bool = False
    short: bool = False
    rounds: int = 0
    notes: Sequence[str] = ()
    published: Sequence[Mapping[str, Any]] = ()
    distributions: Sequence[Distribution] = ()

    @property
    def verdict(self) -> str:
        """One word for all of it."""
        if self.refused is not None:
            return REFUSED
        if any(finding.wrong for finding in self.findings):
            return BROKEN
        verdicts = {row.verdict for row in self.rows}
        if SLOW in verdicts:
            return SLOW
        if UNDECIDED in verdicts:
            return UNDECIDED
        return UNMEASURED if self.failed or not self.rows else ACCEPTED

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return STATUSES[self.verdict]


def build_result_data(result: AcceptanceResult, taken: int) -> dict[str, Any]:
    """Return the result as a JSON object.

    :param taken: when it was measured, in seconds since 1970.
    """
    ids = {test for row in result.rows if row.probe in PROBE_OF for test in PROBE_OF[row.probe].ids}
    refused = result.refused
    data = {
        "schema": SCHEMA,
        "version": VERSION,
        "verdict": result.verdict,
        "status": result.status,
        "tier": result.tier,
        "partial": result.partial,
        "boot": result.boot,
        "time": taken,
        "refused": None if refused is None else refused._asdict(),
        "promise": {
            "given": result.promised,
            "why": result.unpromised,
            "findings": [finding._asdict() for finding in result.findings],
        },
        "baseline": dict(result.baseline),
        "rounds": result.rounds,
        "short": result.short,
        "rows": [
            {
                key: round(value, 6) if isinstance(value, float) else value
                for key, value in row._asdict().items()
            }
            for row in result.rows
        ],
        "measured": [value._asdict() for value in result.measured],
        "missing": dict(sorted(result.missing.items())),
        "failed": dict(sorted(result.failed.items())),
        "causes": [cause._asdict() for cause in result.diagnosis.causes],
        "unexplained": list(result.diagnosis.unexplained),
        "facts": result.facts._asdict(),
        "tools": {
            name: {"version": version, "tried": tried}
            for name, (version, tried) in sorted(result.tools.items())
        },
        "ids": sorted(ids),
        "notes": list(result.notes),
    }
    if result.distributions:
        data["distributions"] = [each.data for each in result.distributions]
    if result.published:
        data["published"] = [dict(row) for row in result.published]
    return data


def write_acceptance(result: AcceptanceResult, taken: int | None = None) -> str:
    """Format the result as JSON text.

    :param taken: time of the measurement, in seconds since 1970; None for now.
    """
    seconds = int(time.time()) if taken is None else taken
    return json.dumps(build_result_data(result, seconds), indent=1) + "\n"


class AcceptanceSummary(NamedTuple):
    """The parts of a stored result that other programs need."""

    verdict: str
    status: int
    tier: str
    boot: str | None
    partial: bool
    #: Names of the causes, and of the slow probes that none explains.
    causes: tuple[str, ...]
    unexplained: tuple[str, ...]


def read_acceptance(text: str) -> AcceptanceSummary:
    """Read a result that was stored.

    :raises AcceptanceError: it is none, or makes no sense.
    """
    data = load_object(text, SCHEMA, READS, "result")
    verdict, status, tier = data.get("verdict"), data.get("status"), data.get("tier")
    if not isinstance(verdict, str) or STATUSES.get(verdict) != status or isinstance(status, bool):
        raise AcceptanceError(f"the result: verdict {shorten(verdict)}, status {shorten(status)}")
    if not is_number(status) or tier not in (QUICK, FULL):
        raise AcceptanceError(f"the result: tier is {shorten(tier)}")
    boot, partial = data.get("boot"), data.get("partial")
    if not (boot is None or isinstance(boot, str)) or not isinstance(partial, bool):
        raise AcceptanceError(f"the result: boot {shorten(boot)}, partial {shorten(partial)}")
    causes, unexplained = data.get("causes"), data.get("unexplained")
    if not isinstance(causes, list) or not isinstance(unexplained, list):
        raise AcceptanceError("the result: causes or unexplained is no list")
    names = [expect_object(cause, "a cause").get("cause") for cause in causes]
    if not all(isinstance(name, str) for name in (*names, *unexplained)):
        raise AcceptanceError("the result: the name of a cause or probe is no text")
    return AcceptanceSummary(
        verdict, STATUSES[verdict], tier, boot, partial, tuple(map(str, names)), tuple(unexplained)
    )


def read_boot_id(root: Root) -> str | None:
    """Return the kernel's id of this start of the machine; None if it is unreadable."""
    return root.text(_BOOT_ID)


def keep_result(root: Root, text: str) -> str | None:
    """Keep a whole result for the gate.

    :returns: why it could not be kept; None if it was.
    """
    try:
        root.write(PLACE, text.encode("ascii", "replace"))
    except GuestFileError as error:
        return str(error)
    return None


def judge_gate(root: Root, tier: str) -> tuple[int, str]:
    """Return the exit status of the stored result, and one line that describes it.

    :param tier: the least that has to have been measured.
    """
    try:
        data = root.read_own(PLACE)
    except GuestFileError as error:
        return STATUSES[REFUSED], str(error)
    if data is None:
        return STATUSES[UNMEASURED], f"no {PLACE}: run nova-hpc-guest accept as root first"
    try:
        summary = read_acceptance(data.decode("utf-8", "replace"))
    except AcceptanceError as error:
        return STATUSES[REFUSED], f"{PLACE}: {error}"
    boot = read_boot_id(root)
    if boot is None or summary.boot != boot:
        return STATUSES[UNMEASURED], f"{PLACE} is of another start of this machine: measure again"
    if summary.partial or (tier == FULL and summary.tier != FULL):
        return STATUSES[UNMEASURED], f"{PLACE} has not all probes of the tier {tier}: measure again"
    causes = ", ".join((*summary.causes, *(f"no cause for {name}" for name in summary.unexplained)))
    return summary.status, summary.verdict + (f": {causes}" if causes else "")
