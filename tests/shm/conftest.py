# SPDX-License-Identifier: Apache-2.0
"""The library and the programs are built once."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import attrs
import pytest

from tests.shm.stand import LIMIT, MPIS, PART_MIB, SHM, make_segment, make_stand


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """The folder with the library, all programs of :file:`shm/tests`, and one for both MPIs."""
    for mpi in MPIS:
        if not shutil.which(f"mpicc.{mpi}"):
            pytest.skip(f"no mpicc.{mpi} here; bindep.txt lists what is needed")
    folder = tmp_path_factory.mktemp("build")
    jobs = len(os.sched_getaffinity(0))
    words = ["make", f"--jobs={jobs}", f"BUILD={folder}", f"MPIS={' '.join(MPIS)}", "programs"]
    done = subprocess.run(words, cwd=SHM, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def newest_ucx():
    """The libraries of the newest UCX of PyPI."""
    found = importlib.util.find_spec("libucx")
    if found is None:
        pytest.skip("no libucx-cu12 here; tests/shm/requirements.txt lists it")
    return Path(found.submodule_search_locations[0]) / "lib"


@pytest.fixture
def segments_folder():
    """Where a host has segments: a folder in memory that is its own."""
    with tempfile.TemporaryDirectory(prefix="nova-hpc-shm-", dir="/dev/shm") as folder:
        yield Path(folder) / "segments"


@pytest.fixture
def segment(segments_folder):
    """A segment of two parts."""
    return make_segment(segments_folder, PART_MIB, 2)


@pytest.fixture
def segment_of_three(segments_folder):
    """A segment of three parts."""
    return make_segment(segments_folder, 2 * PART_MIB, 3)


@pytest.fixture
def short_folder():
    """Where UCX's files are: its addresses have 63 bytes, and the folder's name is in them."""
    with tempfile.TemporaryDirectory(prefix="nhs-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def stand(programs, segment, short_folder):
    """Two servers that share a segment."""
    return make_stand(short_folder, programs, segment)


@pytest.fixture(scope="session")
def checked(programs):
    """The library with sanitizers, for LD_PRELOAD of programs that have none."""
    parts = [programs / "checked" / "libnova-hpc-shm.so"]
    for name in ("libasan.so", "libubsan.so"):
        words = ["gcc", f"-print-file-name={name}"]
        parts.append(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return " ".join(str(part).strip() for part in parts)


@pytest.fixture
def guarded(stand, checked):
    """A stand whose programs end at the library's first step outside its bounds."""
    return attrs.evolve(stand, library=checked)
