# SPDX-License-Identifier: Apache-2.0
"""MPI between two virtual machines that share memory, in plain emulation and without a cloud.

Two machines of QEMU have one segment, which is written as a node writes it, and what nova-hpc-guest
and the library make of it; a bridge is between them. Nova is not there: what it gives to
which server is tested on its own stack (tests/functional/test_segments.py).
"""

import os
import shutil

import pytest

from benchmarks.shared_memory import machines as rig
from benchmarks.shared_memory.root_disk import COMPILERS, prepare_root_disk

pytestmark = pytest.mark.slow

#: What building and starting needs, of the packages of bindep.txt.
PROGRAMS = ("mmdebstrap", "qemu-system-x86_64", "ip", "ssh", "make", *COMPILERS.values())
START = {
    "mpich": "mpiexec.mpich -hosts vm0,vm1 -n 2",
    "openmpi": "mpirun.openmpi -H vm0,vm1 -n 2",
}
VARIABLES = (
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;"
    " set -a; . /run/nova-hpc/shared-memory.env; set +a"
)
#: A word at the end of the last part, through the device as a program has it.
MAP = (
    "import mmap, os; f = os.open('/dev/nova-hpc-shared', os.O_RDWR);"
    f" m = mmap.mmap(f, {rig.SHAPE.device_bytes}); "
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two machines that are up."""
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing or os.geteuid():
        pytest.skip(f"only root can make the machines, with {missing or 'all that it needs'}")
    folder = tmp_path_factory.mktemp("pair")
    with rig.start_machines(prepare_root_disk(folder), folder, "tcg") as made:
        yield made


@pytest.mark.parametrize("number", [0, 1])
def test_a_machine_has_what_it_was_promised(pair, number):
    """Write-back, too: a machine that may look into debugfs would name another type."""
    assert pair.run(number, "nova-hpc-guest check") == (
        "As promised: 0 devices, 0 NUMA nodes, topology flat.\n"
    )
    peers = pair.run(number, "nova-hpc-guest peers").splitlines()
    print("RESULT:", *peers, sep="\n")
    assert peers[0].endswith(": 2 parts of 64 MiB, write-back")
    assert [line.endswith(" (this machine)") for line in peers[1:]] == [number == 0, number == 1]


def test_what_one_writes_the_other_reads(pair):
    pair.run(0, f'''python3 -c "{MAP} m[-8:] = b'from vm0'"''')
    assert pair.run(1, f'''python3 -c "{MAP} print(m[-8:])"''') == "b'from vm0'\n"


def test_users_outside_of_the_group_have_no_access(pair):
    alone = "setpriv --reuid 65534 --regid 65534 --clear-groups"
    said = pair.run(0, f"{alone} dd if=/dev/nova-hpc-shared count=1 2>&1; true")
    assert "Permission denied" in said
    assert pair.run(0, "stat -L -c '%a %G' /dev/nova-hpc-shared") == "660 hpc\n"


@pytest.mark.parametrize("mpi", list(START))
def test_mpi_takes_the_memory_and_not_the_network(pair, mpi):
    """1,000 messages of random sizes, each compared word by word."""
    before = _count_sent(pair)
    job = f"{START[mpi]} mpi_exchange.{mpi} random 1000 1"
    said = pair.run(0, f"{VARIABLES}; {job}", limit=1200)
    sent = _count_sent(pair) - before
    print(f"RESULT: {mpi}: {said.strip()}; {sent} bytes left by the network")
    assert said.startswith("correct: 1000 messages, ")
    # What starts a job is there, and none of more than a hundred megabytes.
    assert sent < 1_000_000


def _count_sent(pair):
    """Bytes that both have given to their network."""
    return sum(
        int(pair.run(number, "cat /sys/class/net/eth0/statistics/tx_bytes")) for number in (0, 1)
    )
