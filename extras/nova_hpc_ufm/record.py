# SPDX-License-Identifier: Apache-2.0
"""The agent's own record of its changes at UFM.

UFM does not record the maker of a partition (except by its name, from 6.22 on), and the agent must
not touch partitions of administrators. So the agent writes down every P_Key before UFM makes the
partition, and every GUID before it is added. The file is text, so people can read it::

    # nova-hpc-ufm-partitions 1
    # ticket 41
    # job 7 0x0101 0x0002c90000200001
    0x0101
    0x0101 0x0002c90000200001 full

A line that contains only a P_Key makes the partition the agent's; a person who adds such a line
gives the agent a partition. A line with a GUID stays until UFM is read without that member:
a member without a line is not the agent's. A job line is a job that UFM has accepted and that had
not ended, with ``whole`` if it makes or removes the partition. The number ``-`` is an addition
whose answer was lost.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.fabric.partitions.backends.base import SubnetManagerError
from nova_hpc.fabric.partitions.keys import (
    DEFAULT_PKEY,
    Membership,
    format_guid,
    format_pkey,
    parse_guid,
)
from nova_hpc_ufm.jobs import UfmJob

_VERSION: Final = 1
_HEAD: Final = re.compile(r"# nova-hpc-ufm-partitions (\d+)")
_TICKET: Final = re.compile(r"# ticket (\d+)")
_JOB: Final = re.compile(
    r"# job ([0-9A-Za-z]+|-) (0x[0-9a-fA-F]{1,4})( whole)?((?: 0x[0-9a-fA-F]{16})*)"
)
_LINE: Final = re.compile(r"(0x[0-9a-fA-F]{1,4})(?: (0x[0-9a-fA-F]{16}) (full|limited))?")


@attrs.frozen
class UfmRecord:
    """The agent's record file: the partitions that it requested from UFM, and jobs.

    :ivar ticket: of the reading of the desired state that it was written for.
    :ivar partitions: P_Key -> GUID -> membership, as wanted. It includes members that were wanted
        before and that no reading has shown as gone.
    :ivar jobs: jobs that may not have ended.
    """

    ticket: int = 0
    partitions: Mapping[int, Mapping[int, Membership]] = attrs.field(factory=dict)
    jobs: tuple[UfmJob, ...] = ()


def write_ufm_record(path: Path, record: UfmRecord) -> None:
    """Replace the record file atomically, and flush it to the disk."""
    lines = [f"# nova-hpc-ufm-partitions {_VERSION}", f"# ticket {record.ticket}"]
    lines += map(_write_job, record.jobs)
    for pkey in sorted(record.partitions):
        lines.append(format_pkey(pkey))
        members = record.partitions[pkey]
        lines += [
            f"{format_pkey(pkey)} {format_guid(guid)} {members[guid]}" for guid in sorted(members)
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_ufm_record(path: Path) -> UfmRecord | None:
    """Read the record file; None if it does not exist.

    :raises SubnetManagerError: it cannot be read, so the owners of partitions are unknown.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as error:
        raise _broken(path, str(error)) from error
    first, second = (*lines[:2], "", "")[:2]
    head, ticket = _HEAD.fullmatch(first), _TICKET.fullmatch(second)
    if head is None or ticket is None or int(head[1]) != _VERSION:
        raise _broken(path, "its first two lines")
    partitions: dict[int, dict[int, Membership]] = {}
    jobs: list[UfmJob] = []
    for number, line in enumerate(lines[2:], start=3):
        job = _JOB.fullmatch(line)
        if job is not None:
            name, pkey = job[1].strip("-"), int(job[2], 16) & DEFAULT_PKEY
            guids = frozenset(map(parse_guid, job[4].split()))
            jobs.append(UfmJob(name, pkey, guids, bool(job[3])))
        if not line.strip() or line.startswith("#"):
            continue
        parts = _LINE.fullmatch(line.strip())
        if parts is None:
            raise _broken(path, f"line {number}")
        members = partitions.setdefault(int(parts[1], 16) & DEFAULT_PKEY, {})
        if parts[2]:
            members[parse_guid(parts[2])] = Membership(parts[3])
    return UfmRecord(int(ticket[1]), partitions, tuple(jobs))


def _write_job(job: UfmJob) -> str:
    words = ["# job", job.number or "-", format_pkey(job.pkey), *(["whole"] if job.whole else [])]
    return " ".join([*words, *map(format_guid, sorted(job.guids))])


def _broken(path: Path, what: str) -> SubnetManagerError:
    return SubnetManagerError(
        f"{path} cannot be read ({what}), so it is unknown which partitions at UFM are ours; mend "
        "it, or take it away and write a line with the P_Key of each partition that is ours"
    )
