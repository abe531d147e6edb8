# SPDX-License-Identifier: Apache-2.0
"""What ``install`` leaves on the machine.

Below ``/run``, and so never older than the boot: copies for those who are not
root, NCCL's topology with this machine's addresses, and its environment. Only
the line that names the topology is kept across boots.
"""

from __future__ import annotations

import re
from typing import Final

from . import compare, document
from .document import Document
from .files import FileError, Root
from .machine import Function, Machine

TOPOLOGY: Final = f"{document.STATE}/nccl-topology.xml"
COPY: Final = f"{document.STATE}/guest.json"
ENVIRONMENT: Final = f"{document.STATE}/environment"
NCCL_CONF: Final = "/etc/nccl.conf"
PROFILE: Final = "/etc/profile.d/nova-hpc.sh"

_VARIABLE: Final = "NCCL_TOPO_FILE"
_LEAF: Final = re.compile(r'^[^\n]*busid="device-(\d{1,6})"[^\n]*\n', re.ASCII | re.MULTILINE)


def install(root: Root, found: Document, data: bytes, real: Machine, profile: bool) -> list[str]:
    """Write everything; lines that say what was done.

    :param profile: also write a file for login shells.
    :raises FileError: something cannot be written.
    :raises DocumentError: the template of the topology cannot be read.
    """
    template = document.raw(root, document.NCCL)
    places, _ = compare.locate(found, real)
    said = []
    if root.write(COPY, data + b"\n"):
        said.append(f"wrote {COPY}")
    if template is None or not places:
        for path in (TOPOLOGY, ENVIRONMENT):
            root.remove(path)
        why = "was given none" if template is None else "has none of the promised devices"
        return [*said, f"no topology for NCCL: this machine {why}"]
    text, left_out = fill(template.decode("ascii", "replace"), places)
    if root.write(TOPOLOGY, text.encode()):
        said.append(f"wrote {TOPOLOGY}")
    for number in left_out:
        said.append(f"device {number} is not in {TOPOLOGY}: which one it is is not known")
    if root.write(ENVIRONMENT, f"{_VARIABLE}={TOPOLOGY}\n".encode()):
        said.append(f"wrote {ENVIRONMENT}")
    said.extend(_configure(root))
    if profile and root.write(PROFILE, _PROFILE.encode()):
        said.append(f"wrote {PROFILE}")
    return said


_PROFILE: Final = (
    f"# Written by nova-hpc-guest install.\n[ -r {TOPOLOGY} ] && "
    f'export {_VARIABLE}="${{{_VARIABLE}:-{TOPOLOGY}}}"\n'
)


def forget(root: Root) -> None:
    """Remove what an earlier boot, or another cloud, may have left."""
    for path in (COPY, TOPOLOGY, ENVIRONMENT):
        root.remove(path)


def fill(template: str, places: dict[int, Function]) -> tuple[str, list[int]]:
    """Put this machine's addresses into the topology.

    :returns: the topology, and the devices that were left out of it.
    """
    left_out = []

    def put(match: re.Match[str]) -> str:
        number = int(match[1])
        if number not in places:
            left_out.append(number)
            return ""
        return match[0].replace(document.PLACEHOLDER.format(number), places[number].address, 1)

    return _LEAF.sub(put, template), left_out


def _configure(root: Root) -> list[str]:
    """Name the topology in NCCL's configuration, unless somebody named another."""
    present = root.read(NCCL_CONF) or b""
    line = f"{_VARIABLE}={TOPOLOGY}".encode()
    for other in present.splitlines():
        if other.partition(b"=")[0].strip() == _VARIABLE.encode():
            if other.strip() == line:
                return []
            return [f"{NCCL_CONF} names another {_VARIABLE} already and was left as it is"]
    if present and not present.endswith(b"\n"):
        present += b"\n"
    root.write(NCCL_CONF, present + line + b"\n")
    return [f"added {_VARIABLE} to {NCCL_CONF}"]


__all__ = ["COPY", "ENVIRONMENT", "NCCL_CONF", "TOPOLOGY", "FileError", "fill", "forget", "install"]
