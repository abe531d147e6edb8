# SPDX-License-Identifier: Apache-2.0
"""Whether the keys of opensm are readable by users of its host.

opensm prints ``m_key``, ``sm_key`` and ``sa_key`` into its log when it starts, and its log has mode
0644 unless it is started with a umask.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from nova_hpc.fabric.partitions.backends.base import AuditRow, AuditState

_KEYS: Final = "SDN04-05"


def audit_secrecy(conf: Any) -> Iterator[AuditRow]:
    """Check that other users cannot read the files with keys of the fabric.

    :param conf: the group ``[hpc_fabric_agent]``.
    """
    paths = (Path(conf.opensm_config), Path(conf.opensm_log))
    readable, unknown = [], []
    for path in paths:
        try:
            readable += [str(path)] if _can_others_read(path) else []
        except FileNotFoundError:
            continue
        except OSError as error:
            unknown.append(f"{path}: {error.strerror}")
    yield _make_row(readable, unknown)


def _make_row(readable: Iterable[str], unknown: Iterable[str]) -> AuditRow:
    name = "key_files"
    if files := ", ".join(readable):
        cure = f"chmod o= {files.replace(', ', ' ')}; UMask=0077 in the unit of opensm"
        found = f"every user of this host can read {files}, which have keys of the fabric"
        return AuditRow(name, _KEYS, AuditState.NOT_MET, found, cure)
    if files := ", ".join(unknown):
        return AuditRow(name, _KEYS, AuditState.UNKNOWN, files)
    return AuditRow(name, _KEYS, AuditState.MET, "only their owner and group read them")


def _can_others_read(path: Path) -> bool:
    """Whether a user who is neither the owner nor in the group can open a file.

    :raises OSError: the modes of the file or a folder cannot be read.
    """
    place = path.resolve()
    if not place.stat().st_mode & stat.S_IROTH:
        return False
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in place.parents)
