# SPDX-License-Identifier: Apache-2.0
"""Which VFIO drivers there are for a function, by the kernel's own word.

A driver that gives functions to guests registers for them below the alias ``vfio_pci:``
(``Documentation/driver-api/vfio-pci-device-specific-driver-acceptance.rst`` of the kernel),
which ``modules.alias`` of the running kernel has: ``vfio-pci`` for all, and a variant
driver, as ``nvgrace_gpu_vfio_pci``, for those that need it.
"""

from __future__ import annotations

import fnmatch
from typing import Final

from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import Tree

#: The driver for all.
GENERIC: Final = "vfio-pci"

_KIND: Final = "vfio_pci:"
_RELEASE: Final = "/proc/sys/kernel/osrelease"
#: Longer than any that a distribution has (1.5 MiB).
_LONGEST: Final = 1 << 24


def drivers(tree: Tree, address: str) -> frozenset[str]:
    """The VFIO drivers that may have the function at a normalised *address*.

    :raises FileError: the kernel's files cannot be read.
    """
    identity = tree.text(f"{DEVICES}/{address}/modalias") or ""
    release = tree.text(_RELEASE)
    data = b"" if release is None else tree.read(f"/lib/modules/{release}/modules.alias", _LONGEST)
    wanted = f"{_KIND}{identity.removeprefix('pci:')}"
    found = {GENERIC}
    for line in (data or b"").decode("utf-8", "replace").splitlines():
        words = line.split()
        if len(words) == 3 and words[1].startswith(_KIND) and fnmatch.fnmatchcase(wanted, words[1]):
            # A module's name has no hyphens, and its driver's name mostly has.
            found |= {words[2], words[2].replace("_", "-")}
    return frozenset(found | _speaking(tree, address))


def _speaking(tree: Tree, address: str) -> set[str]:
    """The driver that has it, if that speaks VFIO."""
    target = tree.target(f"{DEVICES}/{address}/driver")
    if target is None or not tree.names(f"{DEVICES}/{address}/vfio-dev"):
        return set()
    return {target.rpartition("/")[2]}
