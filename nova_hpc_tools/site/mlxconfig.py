# SPDX-License-Identifier: Apache-2.0
"""Read from ``mlxconfig`` the SR-IOV settings of an adapter after its next cold start.

The module sets nothing.

The parser accepts the output of NVIDIA's MFT and of the free ``mstflint`` (mstconfig). *Not tested
on hardware*: the tests use the output in the manual.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from nova_hpc.tenancy.hygiene import reset
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc_tools.site.declared_vfs import FirmwareSriov

_PROGRAMS: Final = ("mlxconfig", "mstconfig")
#: Seconds for one adapter.
_PATIENCE: Final = 20.0
#: They match only the value after the next start, which is the last one of its line.
_ENABLED: Final = re.compile(r"^\*?\s*SRIOV_EN\s.*?\b(True|False)\([01]\)\s*$", re.MULTILINE)
_COUNT: Final = re.compile(r"^\*?\s*NUM_OF_VFS\s(?:.*\s)?(\d{1,4})\s*$", re.MULTILINE)


def parse_sriov_answer(text: str) -> FirmwareSriov | None:
    """Parse the SR-IOV settings in mlxconfig's output; None if one of them is missing."""
    enabled, count = _ENABLED.findall(text), _COUNT.findall(text)
    if len(enabled) != 1 or len(count) != 1:
        return None
    return FirmwareSriov(enabled[0] == "True", int(count[0]))


def read_firmware_sriov(root: Path | None, addresses: Iterable[str]) -> dict[str, FirmwareSriov]:
    """Run mlxconfig on this machine's adapters; return address -> SR-IOV settings. Never raises.

    Adapters that do not report them are left out.

    :param root: the folder with the node's files; the result is empty unless it is ``/``.
    """
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if root is None or root.resolve() != Path("/") or program is None:
        return {}
    settings = {}
    for address in addresses:
        argv = [program, "-d", address, "query", "SRIOV_EN", "NUM_OF_VFS"]
        try:
            status, text = reset.run_with_deadline(argv, _PATIENCE)
        except ResetError:
            continue
        told = parse_sriov_answer(text) if status == 0 else None
        if told is not None:
            settings[address] = told
    return settings
