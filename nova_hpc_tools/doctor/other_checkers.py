# SPDX-License-Identifier: Apache-2.0
"""Other tools' findings on this machine: ``nova-hpc doctor --others`` runs and reads them.

``virt-host-validate`` checks the host for QEMU, and ``oslo-config-validator`` checks the names of
options. This module does not repeat their checks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from nova_hpc_tools.adopt import install_shim
from nova_hpc_tools.doctor import libvirt_domains
from nova_hpc_tools.site.cures import DoctorCure, place_option
from nova_hpc_tools.site.findings import DoctorFinding

HOST: Final = "virt-host-validate"
CONFIG: Final = "oslo-config-validator"
_SECONDS: Final = 120
#: "  QEMU: Checking for device assignment IOMMU support   : FAIL (No ACPI DMAR table found)";
#: tools/virt-host-validate-common.c of libvirt. Its warnings are normal on many hosts.
_FAILED: Final = re.compile(r"\s*QEMU: (.+?)\s*: FAIL\s*(?:\((.+)\))?\s*")
#: oslo_config/validator.py, _validate.
_UNKNOWN: Final = re.compile(r"(?:ERROR:[\w.]+:)?(\S+?)/(\S+) is not part of the sample config")
#: Prints the namespaces of all options that are installed for this Python.
_PROBE: Final = (
    "from importlib.metadata import entry_points\n"
    "print(*sorted({each.name for each in entry_points(group='oslo.config.opts')}))"
)


def run_other_checkers(
    files: Iterable[Path], python: str | None = None, libvirt: str | None = None
) -> Iterator[DoctorFinding]:
    """Run virt-host-validate and oslo-config-validator, and convert their findings.

    A tool that is not installed or does not answer is a finding, too.

    :param files: the files that Nova's services read.
    :param python: the Python of Nova; None for that of the nova-compute on PATH, or this one.
    :param libvirt: URI of a libvirt whose version matters; None if no version matters.
    """
    yield from _run_host_validator()
    if libvirt is not None and libvirt_domains.libvirt_version_of(libvirt) is None:
        yield _report_silent_checker(
            f"libvirt ({libvirt})", "Start libvirt; run the command as nova-compute can."
        )
    yield from _run_config_validator([path for path in files if path.is_file()], python)


def _run_host_validator() -> Iterator[DoctorFinding]:
    program = shutil.which(HOST)
    out = None if program is None else _output_of_checker([program, "qemu"])
    if out is None:
        yield _report_silent_checker(HOST, "Install libvirt's clients (Debian: libvirt-clients).")
        return
    for line in out.splitlines():
        match = _FAILED.fullmatch(line)
        if match is not None:
            reason = match[2] or "it gives no reason"
            yield DoctorFinding(
                "host-validate",
                f"{HOST}: {match[1]}: {reason}.",
                f"{reason[0].upper()}{reason[1:]}; see {HOST} qemu",
            )


def _run_config_validator(files: Sequence[Path], python: str | None) -> Iterator[DoctorFinding]:
    interpreter = python or install_shim.find_nova_interpreter()
    beside = Path(interpreter).with_name(CONFIG)
    program = str(beside) if beside.is_file() else shutil.which(CONFIG)
    namespaces = None if program is None else _output_of_checker([interpreter, "-c", _PROBE])
    if program is None or not namespaces:
        yield _report_silent_checker(CONFIG, "Run the command where Nova is installed.")
        return
    spaces = [word for name in namespaces.split() for word in ("--namespace", name)]
    for path in files:
        out = _output_of_checker([program, *spaces, "--input-file", str(path)])
        if out is None:
            yield _report_silent_checker(CONFIG, f"See {CONFIG} --input-file {path}.")
            return
        for line in out.splitlines():
            match = _UNKNOWN.fullmatch(line.strip())
            if match is not None:
                yield DoctorFinding(
                    "option-unknown",
                    f"{path}: there is no option [{match[1]}]{match[2]}.",
                    DoctorCure.of(
                        "Correct its name, or take it out of ",
                        place_option(match[1], match[2], called=str(path)),
                        ".",
                    ),
                )


def _report_silent_checker(program: str, cure: str) -> DoctorFinding:
    return DoctorFinding("not-looked", f"{program} is not here, or does not answer.", cure)


def _output_of_checker(words: Sequence[str]) -> str | None:
    """Run a program; return its output, whatever its exit status; None if it cannot be run."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{done.stdout}\n{done.stderr}"
