# SPDX-License-Identifier: Apache-2.0
"""Releases of Nova that lack a fix on which the scheduler relies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from nova_hpc_tools.adopt import install_shim
from nova_hpc_tools.site import include_files
from nova_hpc_tools.site.findings import DoctorFinding

#: Major release -> the first release that ignores Nova's own hints from users (CVE-2026-46448).
FIXED: Final = {32: (32, 2, 1), 33: (33, 0, 2)}
#: The fix, which leaves such hints out; distributions also have it in earlier releases.
_FIX: Final = re.compile(r"""startswith\(\s*['"]_nova""")


def find_unfixed_nova(nova: Path, version: str | None) -> DoctorFinding | None:
    """Return a finding if this Nova has the bug with which users can skip the scheduler's filters.

    None if it has not, or if the version is unknown.

    :param nova: the folder of its package.
    :param version: from its metadata; None if unknown.
    """
    numbers = tuple(map(int, re.findall(r"\d+", (version or "").partition("+")[0])[:3]))
    least = FIXED.get(numbers[0]) if numbers else None
    if least is None or numbers >= least:
        return None
    if _FIX.search(include_files.read_text_or_empty(nova / "compute/api.py")):
        return None
    named = ".".join(map(str, least))
    return DoctorFinding(
        "nova-hints",
        f"Nova {version} in {nova} takes the scheduler hint _nova_check_type from users "
        "(CVE-2026-46448).",
        f"Install Nova {named} or later, and restart its services.",
    )


def find_unfixed_nova_here() -> DoctorFinding | None:
    """Check the Nova of this machine with :func:`find_unfixed_nova`; None if there is no Nova."""
    try:
        place = install_shim.locate_shim(install_shim.find_nova_interpreter())
    except (install_shim.ShimError, OSError):
        return None
    return find_unfixed_nova(place.nova, place.version)
