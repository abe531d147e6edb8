# SPDX-License-Identifier: Apache-2.0
"""The library without an MPI: what a program does with files of UCX's folder."""

import fcntl
import os
import struct
import time
from pathlib import Path

import attrs
import pytest

from tests.shm.stand import LIMIT, PART_MIB

#: Of Linux; Python has no names for them.
_OFD_GETLK, _OFD_SETLK = 36, 37
#: struct flock of 64 bits: type, whence, start, length, PID.
_FLOCK = "hhqqi4x"
GUEST = "11111111-2222-3333-4444-555555555550"


@pytest.mark.parametrize("what", ["one-file", "number", "threads"])
def test_what_is_promised_of_files(guarded, what):
    assert guarded.probe(0, what) == ""
    assert guarded.held() == 0 or what == "number"


def test_a_full_part_is_said_with_the_cure(guarded):
    said = guarded.probe(1, "full")
    # Of one MiB each, and the directory takes one, too.
    assert f"{PART_MIB - 1} files: No space left on device" in said
    assert said.count("more hpc:shared_memory") == 1


def test_only_ucx_is_told_of_the_memory_in_place_of_the_machine(guarded):
    own, told, stat = guarded.probe(0, "truth").splitlines()
    assert own == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert told == guarded.uuid()
    assert stat.split()[0] == "999999999"
    assert stat.split()[21] == "4242"


def _measure_addresses(stand):
    with stand.alone(0, "ask-worker") as process:
        said, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, said
    return [int(word) for word in said.split()]


def test_ucx_gives_an_address_with_memory_for_other_machines(stand):
    settings = {**stand.settings, "UCX_TLS": "posix,tcp,self", "UCX_NET_DEVICES": "lo"}
    stand = attrs.evolve(stand, settings=settings)
    for_all, for_others = _measure_addresses(stand)
    assert for_others == for_all > 0
    # UCX itself, in a server without the device, leaves it out.
    for_all, for_others = _measure_addresses(attrs.evolve(stand, device=stand.folder / "none"))
    assert 0 < for_others < for_all


def _let_end(process):
    said, _ = process.communicate("\n", timeout=LIMIT)
    assert process.returncode == 0, said


def _await_ready(process):
    line = process.stdout.readline()
    assert line == "ready\n", line + process.stdout.read()


@pytest.mark.parametrize("what", ["fork", "close-all", "hold"])
def test_what_a_process_has_mapped_is_held_while_it_lives(guarded, what):
    with guarded.alone(0, "probe", what) as process:
        _await_ready(process)
        before = guarded.held()
        assert before > 0
        guarded.probe(0, "join")  # looks for the dead
        assert guarded.held() == before
        _let_end(process)
    guarded.probe(0, "join")
    assert guarded.held() == 0


def test_a_child_holds_what_its_dead_parent_has_mapped(guarded):
    with guarded.alone(0, "probe", "orphan") as parent:
        _await_ready(parent)
        guarded.probe(0, "join")
        assert guarded.held() == 8192
        parent.communicate("\n", timeout=LIMIT)
    guarded.probe(0, "join")
    assert guarded.held() == 0


def test_a_peer_holds_what_a_dead_maker_gave_it(guarded):
    with guarded.alone(0, "probe", "hold") as maker:
        _await_ready(maker)
        with guarded.alone(1, "probe", "see") as peer:
            _await_ready(peer)
            maker.kill()
            maker.wait(LIMIT)
            guarded.probe(0, "join")
            assert guarded.held() == 8192
            assert guarded.stat()[1]["peer_files"] == 1
            _let_end(peer)
    # Its bit is the other server's to take away, at that one's next start.
    guarded.probe(0, "join")
    assert guarded.held() == 8192
    guarded.probe(1, "join")
    assert guarded.held() == 0


def test_a_server_whose_name_is_gone_holds_nothing(guarded, segment):
    with guarded.alone(0, "probe", "hold") as maker:
        _await_ready(maker)
        with guarded.alone(1, "probe", "see") as peer:
            _await_ready(peer)
    # Both were killed.
    guarded.probe(0, "join")
    assert guarded.held() == 8192
    segment.write_members({0: GUEST})
    assert guarded.held() == 0


NO_MEMORY = "No such file or directory\n"


def test_without_a_device_nothing_is_said(guarded):
    bare = attrs.evolve(guarded, device=guarded.folder / "none")
    assert bare.probe(0, "join") == NO_MEMORY


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("number", "NOVA_HPC_SHM_PART: it is no number of a part of the memory"),
        ("lock", "lock.0: it cannot be opened: No such file or directory"),
        ("size", ": it is smaller than its head says"),
        ("head", ": it is no shared memory of nova-hpc, or its head is damaged"),
        ("device", "/dev/null: its size is unknown (a container needs /sys), or too small"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_the_program_goes_on(guarded, change, sentence):
    part = 0
    if change == "number":
        part = 2
    elif change == "lock":
        (guarded.folder / "lock.0").unlink()
    elif change == "size":
        with guarded.device.open("r+b") as stream:
            stream.truncate(guarded.device.stat().st_size - 4096)
    elif change == "head":
        with guarded.device.open("r+b") as stream:
            stream.seek(2 << 20)
            stream.write(b"nothing!")
    elif change == "device":
        guarded = attrs.evolve(guarded, device="/dev/null")
    said = guarded.probe(part, "join")
    assert said.endswith(f"{sentence}; the job goes on without shared memory\n{NO_MEMORY}"), said
    assert said.startswith("nova-hpc-shm: ")
    assert said.count("\n") == 2


def _set_first_byte(file, kind):
    fcntl.fcntl(file, _OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 1, 0))


def _await_a_number(file, process):
    """Till *process* has the lock of the second byte: its number, which it takes first of all."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 1, 1, 0)
    end = time.monotonic() + LIMIT
    while struct.unpack(_FLOCK, fcntl.fcntl(file, _OFD_GETLK, asked))[0] == fcntl.F_UNLCK:
        assert process.poll() is None, "it has not waited for the lock"
        assert time.monotonic() < end, "it has not joined"
        time.sleep(0.001)


@pytest.fixture
def held_lock(guarded):
    """The lock of the first server's directory, in other hands."""
    with (guarded.folder / "lock.0").open("r+b") as file:
        _set_first_byte(file, fcntl.F_WRLCK)
        yield file


def test_a_process_waits_for_the_lock_of_its_server(guarded, held_lock):
    with guarded.alone(0, "probe", "join") as process:
        _await_a_number(held_lock, process)
        # A process of another server starts, joins and ends meanwhile.
        assert guarded.probe(1, "join") == NO_MEMORY
        assert process.poll() is None
        _set_first_byte(held_lock, fcntl.F_UNLCK)
        assert process.communicate(timeout=LIMIT)[0] == NO_MEMORY


@pytest.mark.slow
@pytest.mark.usefixtures("held_lock")
def test_it_does_not_wait_for_ever(guarded):
    said = guarded.probe(0, "join")
    assert "the lock of this server's part is not to be had: Connection timed out" in said
    assert said.endswith(NO_MEMORY)
