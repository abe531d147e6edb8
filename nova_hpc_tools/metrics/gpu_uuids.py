# SPDX-License-Identifier: Apache-2.0
"""UUIDs of GPUs, which join metrics of NVIDIA's DCGM with those of this project.

NVIDIA's driver makes a UUID. If the host's driver has the GPU, the kernel's files contain it. A GPU
that is bound to VFIO has none on the host, and its guest is not contacted. So an operator may give
a file that was written when the GPUs were burnt in. Its lines identify the piece of hardware and
never its address: a GPU that was replaced has no line, instead of a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from nova_hpc.topology.files import FileError, FileTree
from nova_hpc_tools.base import CommandError

#: ``/proc/driver/nvidia/gpus/ADDRESS/information``, a line of it.
_INFORMATION: Final = re.compile(r"^GPU UUID:\s+(GPU-[0-9a-f-]{36})\s*$", re.MULTILINE)
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Ids that distinguish each piece of hardware (nova_hpc.wire.ledger.LedgerDevice.hardware).
_IDENTITIES: Final = ("serial:", "vpd:")
#: Bytes of a file of UUIDs; far more than a cloud has.
_LARGEST: Final = 1 << 22


def read_kernel_uuids(root: Path, addresses: Iterable[str]) -> dict[str, str]:
    """Return address -> UUID of the GPUs that NVIDIA's driver has on this host.

    :param root: the directory that contains ``proc``.
    """
    tree = FileTree(root)
    uuids = {}
    for address in addresses:
        try:
            text = tree.text(f"/proc/driver/nvidia/gpus/{address}/information") or ""
        except FileError:
            continue
        match = _INFORMATION.search(text)
        if match is not None and _UUID.fullmatch(match[1]):
            uuids[address] = match[1]
    return uuids


def read_uuid_file(path: Path) -> Mapping[str, str]:
    """Read the operator's file of GPU UUIDs: hardware, as ``nova-hpc device show`` names it ->
    UUID.

    A line is both, with white space between; ``#`` begins a comment.

    :raises CommandError: it cannot be read, or a line is none; the text names it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"--gpu-uuid-file: {path} cannot be read: {reason}") from error
    if len(text) > _LARGEST:
        raise CommandError(f"--gpu-uuid-file: {path} has more than {_LARGEST} bytes")
    uuids: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        what = f"--gpu-uuid-file: {path}, line {number}"
        if len(words) != 2 or not _UUID.fullmatch(words[1]):
            raise CommandError(f"{what}: a line is HARDWARE GPU-UUID, with white space between")
        hardware, uuid = words
        if not hardware.startswith(_IDENTITIES):
            raise CommandError(
                f"{what}: {hardware} is no piece of hardware: give the value of hardware in "
                "nova-hpc device show, if it begins with serial: or vpd: (a slot may have "
                "another card tomorrow)"
            )
        if uuids.setdefault(hardware, uuid) != uuid:
            raise CommandError(f"{what}: {hardware} has another UUID above")
    return uuids
