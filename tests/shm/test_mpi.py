# SPDX-License-Identifier: Apache-2.0
"""Debian's MPICH and Open MPI, unmodified, and the newest UCX, over the memory and nothing else."""

import re
import struct

import attrs
import pytest

from nova_hpc.guest.files import Root
from nova_hpc.guest.shared_memory import list_network_devices
from nova_hpc.guest.shared_settings import NetworkDevices, build_shared_settings
from tests.shm.stand import MPICH, OPENMPI, make_stand

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
