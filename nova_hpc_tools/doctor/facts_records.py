# SPDX-License-Identifier: Apache-2.0
"""The records of a whole cloud for ``nova-hpc doctor``: of Nova, Placement and the map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.progress import track

from nova_hpc_common.output.printing import InertConsole
from nova_hpc_tools.doctor import checks_records
from nova_hpc_tools.site.cures import CommandRun, CuredCommand, DoctorCure
from nova_hpc_tools.site.findings import DoctorFinding
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers

_UNREAD: Final = "not-looked"


def examine_records_twice(config: Sequence[str], alone: bool = True) -> list[DoctorFinding]:
    """Find the faults that two examinations have in common: a change in progress is no fault.

    :param config: --config-file=FILE and --config-dir=DIR of Nova's scheduler.
    :param alone: the records are the only part that is examined.
    :raises nova_hpc_tools.snapshot.SnapshotError: nothing can be read, and *alone*.
    """
    try:
        read = cloud_readers.records_reader(config)
        first_findings = checks_records.check_records(read(_show_placement_progress))
        if not first_findings:
            return first_findings
        again = checks_records.check_records(read(_show_placement_progress))
    except SnapshotError as error:
        if alone:
            raise
        text = str(error).rstrip(".")
        return [
            DoctorFinding(
                _UNREAD,
                f"The cloud was not checked: {text}.",
                DoctorCure.of(
                    "Run ", CommandRun(CuredCommand.DOCTOR_OF_CLOUD), " where nova-manage runs."
                ),
            )
        ]
    sure = [*first_findings, *(finding for finding in again if finding.check == _UNREAD)]
    # An incomplete first examination does not show which faults are new.
    unsure = any(finding.check == _UNREAD for finding in first_findings)
    return [finding for finding in again if unsure or finding in sure]


def _show_placement_progress(devices: Sequence[Any]) -> Iterable[Any]:
    console = InertConsole(stderr=True)
    return track(
        devices,
        "Asking Placement",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
