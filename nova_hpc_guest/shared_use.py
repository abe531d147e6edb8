# SPDX-License-Identifier: Apache-2.0
"""Reasons why programs of this machine, or of this container, do not use the shared memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .files import GuestFileError, Root
from .shared_memory import SHARED_ENVIRONMENT, find_ucx_version
from .shared_settings import format_version

#: The kernel gives the first namespace of each kind this number (include/linux/proc_ns.h).
_FIRST: Final = {"pid": "pid:[4026531836]", "ipc": "ipc:[4026531839]"}


def find_obstacles(root: Root) -> tuple[str, ...]:
    """List the reasons why MPI stays on the network; () if none can be seen from here."""
    return tuple(_list_obstacles(root))


def _list_obstacles(root: Root) -> Iterator[str]:
    for kind, first in _FIRST.items():
        if root.link(f"/proc/self/ns/{kind}") not in (None, first):
            yield f"MPI uses the network: this container has its own {kind.upper()} namespace"
    try:
        data = root.read_own(SHARED_ENVIRONMENT)
    except GuestFileError as error:
        yield f"MPI uses the network: {error}"
        return
    if data is None:
        yield (
            f"MPI uses the network: there is no {SHARED_ENVIRONMENT} "
            "(nova-hpc-guest install --shared-memory says why)"
        )
        return
    text = data.decode("ascii", "replace")
    library = re.search(r"^LD_PRELOAD=(/[\w./-]{1,200})$", text, re.ASCII | re.MULTILINE)
    if library is None or not root.exists(library[1]):
        yield "MPI uses the network: the library of the package nova-hpc-shm is not there"
    written = re.search(r"^# For UCX (\d{1,4}\.\d{1,4})\.$", text, re.ASCII | re.MULTILINE)
    version = find_ucx_version(root)
    if version is not None and (written is None or written[1] != format_version(version)):
        yield (
            f"{SHARED_ENVIRONMENT} was written for another UCX than {format_version(version)}: "
            "nova-hpc-guest install --shared-memory writes it anew"
        )
