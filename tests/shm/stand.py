# SPDX-License-Identifier: Apache-2.0
"""A segment in a file and MPI jobs whose ranks have a part each, as if in servers of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.placement.segment_shape import PAGE, SegmentShape
from nova_hpc.tenancy.segments.segment_file import SegmentFolder
from nova_hpc.tenancy.segments.segment_record import SegmentFileName, name_new_file

TOP: Final = Path(__file__).resolve().parents[2]
SHM: Final = TOP / "shm"
#: Where in a file the parts begin: behind the label and the head.
PARTS_AT: Final = 2 * PAGE
#: Of a part, all of which is allocated for each test. An Open MPI rank with a window needs over 7.
PART_MIB: Final = 16
#: Seconds for one job, which takes less than one on a quiet machine.
LIMIT: Final = 120

MPICH: Final = "mpich"
OPENMPI: Final = "openmpi"
_LAUNCH: Final = {
    MPICH: ("mpiexec.mpich",),
    # Ranks of one machine, which it would connect by memory of its own.
    OPENMPI: (
        *("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self"),
        *("--mca", "pml", "ucx", "--mca", "osc", "ucx"),
        *("--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"),
    ),
}
MPIS: Final = tuple(_LAUNCH)


def make_segment(folder: Path, part_mib: int, parts: int) -> Segment:
    """A segment as the host makes it, with a server in each part."""
    segments = SegmentFolder(folder)
    name = name_new_file(str(uuid.uuid4()), 0, SegmentShape(part_mib, parts))
    segments.make_file(name)
    segment = Segment(segments, name)
    segment.write_members({part: str(uuid.uuid4()) for part in range(parts)})
    return segment


@attrs.frozen
class Segment:
    """A segment's file, in the host's hands."""

    folder: SegmentFolder
    name: SegmentFileName

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder.path / str(self.name)

    def write_members(self, servers: Mapping[int, str]) -> None:
        """Say who has which part; none has the others."""
        self.folder.write_members(self.name, servers)


#: Between processes of one machine: nothing else, so what arrives has gone through the memory.
MEMORY_ALONE: Final = {
    "UCX_TLS": "posix,self",
    "UCX_POSIX_USE_PROC_LINK": "n",
    "UCX_ADAPTIVE_PROGRESS": "n",
}


@attrs.frozen
class Stand:
    """A device, and a folder with the locks of its parts.

    :ivar device: what the library opens: a segment's file.
    :ivar library: libnova-hpc-shm.so, and what is to be loaded with it.
    :ivar programs: the folder of what was built.
    :ivar ucx: the folder of another UCX's libraries; None: the distribution's.
    :ivar settings: of UCX, and of the MPI.
    """

    folder: Path
    device: Path
    library: str | Path
    programs: Path
    parts: int = 2
    ucx: Path | None = None
    settings: Mapping[str, str] = MEMORY_ALONE

    def environment(self) -> dict[str, str]:
        """Of ranks and of programs without MPI; the part and its lock are still to be said."""
        new = {
            "NOVA_HPC_SHM_DEVICE": str(self.device),
            "NOVA_HPC_SHM_DIR": str(self.folder / "files"),
            "SHM_TEST_FOLDER": str(self.folder),
            "SHM_TEST_LIBRARY": str(self.library),
            "SHM_TEST_PARTS": str(self.parts),
            "UCX_POSIX_DIR": str(self.folder / "files"),
            "UCX_WARN_UNUSED_ENV_VARS": "n",
            **self.settings,
            # MPICH would take memory of its own among ranks of one machine.
            "MPIR_CVAR_NOLOCAL": "1",
        }
        if self.ucx:
            new["LD_LIBRARY_PATH"] = str(self.ucx)
        return os.environ | new

    @contextlib.contextmanager
    def job(self, mpi: str, ranks: int, words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
        """An MPI job that runs; it is ended afterwards."""
        for old in self.folder.glob("pid.*"):
            old.unlink()
        program = [str(Path(__file__).with_name("rank.sh")), str(self.program(mpi)), *words]
        process = subprocess.Popen(
            [*_LAUNCH[mpi], "-n", str(ranks), *program],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextlib.contextmanager
    def alone(self, part: int, *words: str) -> Iterator[subprocess.Popen[str]]:
        """One of the programs, without MPI, in the server that has *part*; ended afterwards."""
        new = {
            "LD_PRELOAD": str(self.library),
            "NOVA_HPC_SHM_PART": str(part),
            "NOVA_HPC_SHM_LOCK": str(self.folder / f"lock.{part}"),
            # The library may come with sanitizers, the programs have none.
            "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0",
        }
        process = subprocess.Popen(
            [str(self.programs / words[0]), *words[1:]],
            cwd=self.folder,
            env=self.environment() | new,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def probe(self, part: int, what: str) -> str:
        """What ``probe WHAT`` says, which has to end well."""
        with self.alone(part, "probe", what) as process:
            said, _ = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, said
        return said

    def run(self, mpi: str, ranks: int, *words: str) -> str:
        """What a job says that has to end well."""
        with self.job(mpi, ranks, words) as process:
            said, _ = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, said
        return said

    def program(self, mpi: str) -> Path:
        """The test's MPI program for one of the MPIs."""
        return self.programs / f"mpi_exchange.{mpi}"

    def uuid(self) -> str:
        """The number of the segment."""
        uuid: str = self._read_account()["uuid"]
        return uuid

    def stat(self) -> list[dict[str, Any]]:
        """What nova-hpc-shm-stat says of the parts."""
        parts: list[dict[str, Any]] = self._read_account()["parts"]
        return parts

    def _read_account(self) -> dict[str, Any]:
        words = [self.programs / "nova-hpc-shm-stat", "--json", self.device]
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=LIMIT)
        account: dict[str, Any] = json.loads(done.stdout)
        return account

    def held(self) -> int:
        """Bytes that are not free, of all parts."""
        return sum(part["held"] for part in self.stat())


def make_stand(folder: Path, programs: Path, segment: Segment) -> Stand:
    """Servers that share *segment*: a lock for each, and the folder that UCX asks for files of."""
    (folder / "files").mkdir()
    parts = segment.name.shape.parts
    for part in range(parts):
        (folder / f"lock.{part}").touch()
    library = programs / "libnova-hpc-shm.so"
    return Stand(folder, segment.path, library, programs, parts)
