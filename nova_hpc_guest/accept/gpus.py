# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine: their number, their NUMA node, and other processes that use them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from typing import Final

from ..document import GuestDocument
from .facts import GuestFacts
from .tools import run_tool

#: A word of a reading: so many other processes used a GPU.
GPU_USERS: Final = "gpu-users="
_VENDORS: Final = ("10de", "1002")
#: It prints the processes that compute on a GPU of NVIDIA's, one a line.
_USERS: Final = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
#: Seconds; a driver that was not loaded loads its firmware first.
_LIMIT: Final = 20.0


def count_gpus(facts: GuestFacts) -> int:
    """Count the GPUs of NVIDIA and AMD."""
    return sum(count for ids, count in facts.devices.items() if ids[:4] in _VENDORS)


def find_gpu_cell(promise: GuestDocument | None) -> int | None:
    """Return the NUMA node that all promised GPUs are near to; None without such a node."""
    devices = () if promise is None else promise.devices
    cells = {device.cell for device in devices if device.vendor_id in _VENDORS}
    cells.discard(None)
    # nvbandwidth measures all GPUs: with several nodes none would be near to all of them.
    return cells.pop() if len(cells) == 1 else None


def list_gpu_users(environment: Mapping[str, str]) -> list[int] | None:
    """List the ids of processes that compute on GPUs of NVIDIA's.

    Empty without the tool, and in a container, which sees only its own processes; None if the tool
    does not answer.
    """
    tool = shutil.which(_USERS[0], path=environment.get("PATH"))
    if tool is None:
        return []
    done = run_tool([tool, *_USERS[1:]], environment, _LIMIT)
    if done.problem is not None:
        return None
    return sorted(set(map(int, re.findall(r"^\s*(\d{1,10})\s*$", done.output, re.MULTILINE))))
