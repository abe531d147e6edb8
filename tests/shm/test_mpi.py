# SPDX-License-Identifier: Apache-2.0
"""Debian's MPICH and Open MPI, unmodified, and the newest UCX, over the memory and nothing else."""

import ctypes.util
import re
import struct
import subprocess
from pathlib import Path

import attrs
import pytest

from nova_hpc_guest import shared_settings
from nova_hpc_guest.files import Root
from nova_hpc_guest.shared_memory import list_network_devices
from nova_hpc_guest.shared_settings import NetworkDevices, build_shared_settings
from tests.shm.stand import MPICH, OPENMPI, make_segment, make_stand

DISTRIBUTION, NEWEST = "the distribution's", "PyPI's newest"
_WORDS = 8


def _first_words(key):
    words = []
    for _ in range(_WORDS):
        key = (key * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        words.append(key)
    return struct.pack(f"<{_WORDS}Q", *words)


@pytest.fixture(params=[DISTRIBUTION, NEWEST])
def beside(request, stand):
    """The stand with one UCX."""
    if request.param == DISTRIBUTION:
        return stand
    return attrs.evolve(stand, ucx=request.getfixturevalue("newest_ucx"))


@pytest.mark.parametrize("mpi", [MPICH, OPENMPI])
def test_random_messages_arrive_and_went_through_the_memory(beside, mpi):
    said = beside.run(mpi, 2, "random", "100", "3")
    assert re.search(r"^correct: 100 messages, \d+ bytes, 2 ranks$", said, re.MULTILINE), said
    assert "nova-hpc-shm:" not in said
    for part in beside.stat():
        assert part["files_made"] > 0
        assert part["peers_mapped"] > 0
        assert part["held"] == 0
    # None is in the folder itself.
    assert list((beside.folder / "files").iterdir()) == []


@pytest.mark.parametrize("mpi", [MPICH, OPENMPI])
def test_a_long_first_message_one_way(beside, mpi):
    assert _first_words(3) not in beside.device.read_bytes()
    said = beside.run(mpi, 2, "one-way", "123000")
    assert "correct: 1 messages, 123000 bytes, 2 ranks" in said
    # Its bytes are where the host has the memory.
    assert _first_words(3) in beside.device.read_bytes()


@pytest.mark.parametrize("mpi", [MPICH, OPENMPI])
def test_with_the_settings_that_a_guest_writes(stand, mpi):
    interfaces = list_network_devices(Root("/")).interfaces
    written = build_shared_settings(
        str(stand.library), str(stand.folder / "files"), None, NetworkDevices(interfaces)
    )
    # rank.sh loads the library: the launcher's own processes have no part.
    settings = {name: value for name, value in written if name != "LD_PRELOAD"}
    said = attrs.evolve(stand, settings=settings).run(mpi, 2, "random", "30", "4")
    assert "correct: 30 messages" in said
    assert all(part["peers_mapped"] > 0 for part in stand.stat())


@pytest.mark.slow
@pytest.mark.parametrize("mpi", [MPICH, OPENMPI])
def test_six_ranks_in_three_servers(programs, segment_of_three, short_folder, mpi):
    many = make_stand(short_folder, programs, segment_of_three)
    said = many.run(mpi, 6, "random", "200", "5")
    assert "correct: 200 messages" in said
    assert all(part["files_made"] > 1 for part in many.stat())
    assert many.held() == 0


def _find_tcmalloc():
    found = ctypes.util.find_library("tcmalloc_minimal")
    if found is None:
        pytest.skip("no tcmalloc here; bindep.txt lists it")
    return found


def _find_asan():
    words = ["gcc", "-print-file-name=libasan.so"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(params=["tcmalloc", "AddressSanitizer"])
def other(request, monkeypatch):
    """Another library that stands before mmap()."""
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    return _find_tcmalloc() if request.param == "tcmalloc" else _find_asan()


@pytest.fixture
def with_network(stand):
    """The ranks can reach each other without the memory, too."""
    settings = {**stand.settings, "UCX_TLS": "posix,tcp,self", "UCX_NET_DEVICES": "lo"}
    return attrs.evolve(stand, settings=settings)


@pytest.mark.parametrize("mpi", [MPICH, OPENMPI])
def test_another_preload_before_ours(with_network, other, mpi):
    """It would take UCX's mmap() for its own: the job says so, and goes on over the network."""
    both = attrs.evolve(with_network, library=f"{other} {with_network.library}")
    said = both.run(mpi, 2, "random", "30", "6")
    assert "correct: 30 messages" in said
    lines = [line for line in said.splitlines() if line.startswith("nova-hpc-shm: ")]
    assert len(lines) == 2, said
    for line in lines:
        assert Path(other).name.partition(".so")[0] in line
        assert "put libnova-hpc-shm.so first in LD_PRELOAD" in line
        assert line.endswith("the job goes on without shared memory")
    assert all(part["files_made"] == 0 for part in both.stat())


@pytest.mark.parametrize("mpi", [MPICH, OPENMPI])
def test_another_preload_behind_ours(stand, mpi):
    both = attrs.evolve(stand, library=f"{stand.library} {_find_tcmalloc()}")
    said = both.run(mpi, 2, "random", "30", "7")
    assert "correct: 30 messages" in said
    assert "nova-hpc-shm:" not in said
    assert all(part["peers_mapped"] > 0 for part in both.stat())


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("mpi", [MPICH, OPENMPI])
def test_the_rule_has_room_for_a_rank_on_each_cpu(
    programs, segments_folder, short_folder, mpi, ranks
):
    """With a window, for which Open MPI takes the most."""
    mib = shared_settings.DIRECTORY_MIB + ranks * shared_settings.RANK_MIB
    even = mib + mib % 2
    full = make_stand(short_folder, programs, make_segment(segments_folder, even, 2))
    said = full.run(mpi, 2 * ranks, "random", "20", "8")
    assert "correct: 20 messages" in said
    assert "this server's part is full" not in said
    assert all(part["peers_mapped"] > 0 for part in full.stat())
