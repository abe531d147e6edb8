# SPDX-License-Identifier: Apache-2.0
"""The files that ``install`` leaves on the machine.

They are below ``/run``, and so never older than the boot: copies for users other than root, NCCL's
topology with this machine's addresses, and its environment. Only the line that names the topology
is kept across boots.
"""

from __future__ import annotations

import re
from typing import Final

from . import compare, document, terms
from .document import GuestDocument
from .files import GuestFileError, Root
from .machine import GuestFunction, GuestMachine

TOPOLOGY: Final = f"{document.STATE}/nccl-topology.xml"
COPY: Final = f"{document.STATE}/guest.json"
ENVIRONMENT: Final = f"{document.STATE}/environment"
NCCL_CONF: Final = "/etc/nccl.conf"
PROFILE: Final = "/etc/profile.d/nova-hpc.sh"

_VARIABLE: Final = "NCCL_TOPO_FILE"
_LEAF: Final = re.compile(r'^[^\n]*busid="device-(\d{1,6})"[^\n]*\n', re.ASCII | re.MULTILINE)


def install_files(
    root: Root, promise: GuestDocument, data: bytes, real: GuestMachine, profile: bool
) -> list[str]:
    """Write the promise's copy and NCCL's topology with its variables; return lines on changes.

    If there is no topology for this machine, files of an earlier one are removed.

    :param profile: also write a file for login shells.
    :raises GuestFileError: something cannot be written.
    :raises DocumentError: the template of the topology cannot be read.
    """
    template = document.read_entry_bytes(root, terms.NCCL)
    places, _ = compare.locate_devices(promise, real)
    report = []
    if root.write(COPY, data + b"\n"):
        report.append(f"wrote {COPY}")
    if template is None or not places:
        for path in (TOPOLOGY, ENVIRONMENT):
            root.remove(path)
        reason = "was given none" if template is None else "has none of the promised devices"
        return [*report, f"no topology for NCCL: this machine {reason}"]
    text, left_out = fill_in_addresses(template.decode("ascii", "replace"), places)
    if root.write(TOPOLOGY, text.encode()):
        report.append(f"wrote {TOPOLOGY}")
    for number in left_out:
        report.append(f"device {number} is not in {TOPOLOGY}: which one it is is not known")
    if root.write(ENVIRONMENT, f"{_VARIABLE}={TOPOLOGY}\n".encode()):
        report.append(f"wrote {ENVIRONMENT}")
    report.extend(_configure_nccl(root))
    if profile and root.write(PROFILE, _PROFILE.encode()):
        report.append(f"wrote {PROFILE}")
    return report


_PROFILE: Final = (
    f"# Written by nova-hpc-guest install.\n[ -r {TOPOLOGY} ] && "
    f'export {_VARIABLE}="${{{_VARIABLE}:-{TOPOLOGY}}}"\n'
)


def forget_installed(root: Root) -> None:
    """Remove the files that an earlier boot, or another cloud, may have left."""
    for path in (COPY, TOPOLOGY, ENVIRONMENT):
        root.remove(path)


def fill_in_addresses(template: str, places: dict[int, GuestFunction]) -> tuple[str, list[int]]:
    """Put this machine's addresses into the topology.

    :returns: the topology, and the devices that were left out of it.
    """
    left_out = []

    def put(match: re.Match[str]) -> str:
        number = int(match[1])
        if number not in places:
            left_out.append(number)
            return ""
        return match[0].replace(terms.PLACEHOLDER.format(number), places[number].address, 1)

    return _LEAF.sub(put, template), left_out


def _configure_nccl(root: Root) -> list[str]:
    """Name the topology file in NCCL's configuration, unless it names another one.

    :returns: lines for the user about the change.
    """
    present = root.read(NCCL_CONF) or b""
    line = f"{_VARIABLE}={TOPOLOGY}".encode()
    for present_line in present.splitlines():
        if present_line.partition(b"=")[0].strip() == _VARIABLE.encode():
            if present_line.strip() == line:
                return []
            return [f"{NCCL_CONF} names another {_VARIABLE} already and was left as it is"]
    if present and not present.endswith(b"\n"):
        present += b"\n"
    root.write(NCCL_CONF, present + line + b"\n")
    return [f"added {_VARIABLE} to {NCCL_CONF}"]


__all__ = [
    "COPY",
    "ENVIRONMENT",
    "NCCL_CONF",
    "TOPOLOGY",
    "GuestFileError",
    "fill_in_addresses",
    "forget_installed",
    "install_files",
]
