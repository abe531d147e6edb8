# SPDX-License-Identifier: Apache-2.0
"""Evidence that was recorded elsewhere: on a node, beside the subnet manager, in a guest."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from nova_hpc_common.outside.text import printable_text
from nova_hpc_requirements.step_names import DOCUMENTS, EVIDENCE_NAMES, FABRIC_CHECK
from nova_hpc_requirements.verdicts import StepEvidence

_LONGEST: Final = 16 << 20


class EvidenceFileError(Exception):
    """A file of evidence cannot be used. The text names the file and the cure."""


def parse_evidence_option(text: str) -> tuple[str, Path]:
    """Parse ``STEP=FILE`` into the step and the path, as argparse's type."""
    name, sign, file = text.partition("=")
    if not sign or not file:
        raise argparse.ArgumentTypeError(f"{text!r} is not STEP=FILE")
    if name not in EVIDENCE_NAMES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(EVIDENCE_NAMES)}")
    return name, Path(file)


def read_evidence_files(files: Sequence[tuple[str, Path]]) -> dict[str, StepEvidence]:
    """Read the files of evidence: step -> its output.

    :raises EvidenceFileError: one cannot be read, or is none, or two are of one step.
    """
    evidence: dict[str, StepEvidence] = {}
    for name, path in files:
        if name in evidence:
            raise EvidenceFileError(f"--evidence {name} is given twice: leave one out")
        evidence[name] = StepEvidence(read_evidence_file(name, path))
    return evidence


def read_evidence_file(name: str, path: Path) -> dict[str, Any]:
    """Read the JSON object in one file of evidence.

    :raises EvidenceFileError: it cannot be read, or holds none.
    """
    what = f"--evidence {name}: {printable_text(str(path))}"
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST + 1)
    except OSError as error:
        raise EvidenceFileError(f"{what}: {error.strerror or error}") from error
    if len(data) > _LONGEST:
        raise EvidenceFileError(f"{what}: it is longer than {_LONGEST} bytes")
    made = DOCUMENTS.get(name, f"nova-hpc requirements step {name}")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = printable_text(" ".join(str(error).split()))[:200]
        raise EvidenceFileError(f"{what} is not JSON ({reason}); {made} makes it") from error
    if name == FABRIC_CHECK and isinstance(value, list):
        value = {"success": True, "rows": value}
    if not isinstance(value, dict):
        raise EvidenceFileError(f"{what} holds no object; {made} makes it")
    return value
