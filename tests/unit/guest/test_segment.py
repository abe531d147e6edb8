# SPDX-License-Identifier: Apache-2.0
"""What check and peers say of the memory that a guest shares with others."""

from __future__ import annotations

import json
import os
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement.segment_shape import SegmentShape
from nova_hpc.tenancy.segments import label
from nova_hpc.tenancy.segments.segment_choice import SegmentLack
from nova_hpc_guest import document, segment
from tests.unit.guest.segments import (
    MIB,
    NUMBER,
    PART,
    PARTS,
    SERVERS,
    SIZE,
    TYPES,
    add_dax,
    give_segment,
    head_of,
    promise_share,
)
from tests.unit.guest.servers import run

KIND = "shared-memory"
INSTALLED = "# For any UCX.\nLD_PRELOAD=/usr/lib64/nova-hpc/libnova-hpc-shm.so\n"


@pytest.fixture
def guest(guest):
    """With what install leaves, of which its own tests are."""
    guest.file("run/nova-hpc/shared-memory.env", INSTALLED)
    guest.file("usr/lib64/nova-hpc/libnova-hpc-shm.so", "")
    return guest


def rows(guest, *arguments: str) -> list[str]:
    """What check says of shared memory."""
    _, out, err = run(guest, "check", *arguments)
    assert err == ""
    return [line for line in out.splitlines() if f" {KIND}: " in line]


@given(st.integers(1, 2048), st.integers(2, 16), st.uuids(), st.lists(st.none() | st.uuids()))
def test_a_guest_reads_what_a_node_writes(pages, parts, number, servers):
    shape = SegmentShape(part_mib=2 * pages, parts=parts)
    data = bytearray(8192)
    data[:48] = label.write_head(shape, number)[:48]
    names = [None if server is None else str(server) for server in servers[:parts]]
    for part, name in enumerate(names):
        at = label.member_place_of(part) - label.DEVICE_AT
        data[at : at + label.MEMBER] = label.write_member(name)
    head = segment.parse_head(bytes(data))
    assert head == segment.SegmentHead(parts, shape.part_bytes, str(number))
    promise = document.SharedMemory(shape.part_bytes, 0, parts)
    assert segment.segment_bytes(promise) == shape.device_bytes
    missing = [None] * (parts - len(names))
    assert list(segment.parse_holders(bytes(data), parts)) == names + missing


def test_every_reason_of_a_node_has_words():
    assert {lack.value for lack in SegmentLack} == document.SHARED_REASONS.keys()


def test_a_segment_as_promised(guest):
    give_segment(guest)
    assert run(guest, "check", "--quiet") == (0, "", "")
    assert rows(guest) == []
    assert "shared memory: 4 MiB of each of 3 servers" in run(guest, "show")[1].splitlines()


def test_peers_are_named(guest):
    give_segment(guest)
    status, out, err = run(guest, "peers")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"segment {NUMBER}: 3 parts of 4 MiB, write-back",
        f"part 0: {SERVERS[0]}",
        f"part 1: {SERVERS[1]} (this machine)",
        "part 2: free",
    ]
    assert json.loads(run(guest, "peers", "--format", "json")[1]) == {
        "schema": "nova-hpc/guest-peers",
        "version": 1,
        "segment": str(NUMBER),
        "part_bytes": PART,
        "part": 1,
        "mapping": "write-back",
        "parts": [
            {"part": 0, "server": SERVERS[0], "this": False},
            {"part": 1, "server": SERVERS[1], "this": True},
            {"part": 2, "server": None, "this": False},
        ],
    }


def test_a_machine_without_a_promise_looks_at_no_device(guest):
    device = add_dax(guest, "dax0.0")
    device.unlink()
    device.mkdir()  # would be a finding, had it been opened
    assert rows(guest) == []
    status, out, err = run(guest, "peers")
    assert (status, out) == (2, "")
    assert "promises no shared memory" in err


@pytest.mark.parametrize("word", [*document.SHARED_REASONS, "a-later-word"])
def test_a_wish_that_was_not_met_is_a_note(guest, word):
    promise_share(guest, {"why": word})
    assert run(guest, "check", "--quiet") == (0, "", "")
    (row,) = rows(guest)
    assert row.startswith(f"note {KIND}: started without it: ")
    assert row.endswith(document.SHARED_REASONS.get(word, word))
    status, _, err = run(guest, "peers")
    assert status == 2
    assert "was started without shared memory" in err


def test_no_device(guest):
    promise_share(guest, {"bytes": PART, "part": 0, "parts": PARTS})
    (row,) = rows(guest)
    assert row.startswith(f"WRONG {KIND}: no device of 14 MiB")
    assert run(guest, "check")[0] == 1
    assert run(guest, "check", "--skip", KIND)[0] == 0
    # A device of the user's own, of another size, is none either.
    add_dax(guest, "dax1.0", SIZE + 2 * MIB)
    assert rows(guest) == [row]


def test_a_device_of_the_users_own_is_passed_over(guest):
    add_dax(guest, "dax0.0")
    give_segment(guest, name="dax1.0")
    assert rows(guest) == []
    assert str(NUMBER) in run(guest, "peers")[1]


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"", "it has no head that this command can read"),
        (head_of(magic=1), "it has no head that this command can read"),
        (head_of(version=2), "it has no head that this command can read"),
        (head_of(size=SIZE - 1), "it has no head that this command can read"),
        (head_of(parts=17), "it has no head that this command can read"),
        (
            head_of(parts=6, part=2 * MIB),
            "its head says 6 parts of 2 MiB instead of 3 of 4",
        ),
    ],
)
def test_a_head_that_others_wrote_over(guest, head, text):
    give_segment(guest, head=head or bytes(64))
    assert rows(guest) == [f"WRONG {KIND}: /dev/dax0.0: {text}"]
    status, out, err = run(guest, "peers")
    assert (status, out) == (2, "")
    assert text in err


@given(
    st.binary(max_size=200)
    | st.builds(
        struct.Struct("<QIIQQ16s").pack,
        st.just(0x314D48534350484E),
        st.integers(0, 2),
        st.integers(0, 20),
        st.integers(0, 8).map(lambda pages: pages * 2 * MIB),
        st.integers(0, 80).map(lambda pages: pages * 2 * MIB),
        st.binary(min_size=16, max_size=16),
    )
)
def test_a_head_is_read_or_refused(data):
    head = segment.parse_head(data)
    if head is not None:
        assert 2 <= head.parts <= 16
        assert head.part_bytes >= 2 * MIB
        assert data[:32] == head_of(head.parts, head.part_bytes)[:32]
        assert head.uuid == str(uuid.UUID(bytes=data[32:48]))


@given(st.binary(max_size=6000), st.integers(2, 16))
def test_whatever_stands_in_the_table_only_names_are_told(data, parts):
    for holder in segment.parse_holders(data, parts):
        assert holder is None or segment._UUID.fullmatch(holder.encode())


def test_a_holder_that_is_no_name_is_not_told(guest):
    device = give_segment(guest)
    with device.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\x1b[2J" + b"x" * 60)
    assert run(guest, "peers")[1].splitlines()[1] == "part 0: free"


@pytest.mark.parametrize(
    ("types", "row"),
    [
        (
            TYPES.replace("180e00000) write-back", "180e00000) uncached-minus"),
            f"WRONG {KIND}: this kernel maps it uncached-minus instead of write-back",
        ),
        (
            TYPES + "PAT: [mem 0x0000000180200000-0x0000000180400000) write-combining\n",
            f"WRONG {KIND}: this kernel maps it write-back and write-combining "
            "instead of write-back",
        ),
        ("", f"note {KIND}: how this kernel maps it is not known to this user"),
        (
            "\x00" * 99,
            f"note {KIND}: how this kernel maps it is not known to this user",
        ),
    ],
)
def test_how_the_kernel_maps_it(guest, types, row):
    give_segment(guest)
    guest.file("sys/kernel/debug/x86/pat_memtype_list", types)
    assert rows(guest) == [row]


def test_a_place_that_is_not_told_leaves_the_mapping_unknown(guest):
    give_segment(guest)
    guest.file("sys/bus/dax/devices/dax0.0/resource", "0x0\n")
    (row,) = rows(guest)
    assert row.endswith("is not known to this user")


@given(st.integers(0, 40), st.integers(1, 20), st.integers(0, 40), st.integers(1, 20))
def test_types_are_of_what_overlaps(start, size, other, length):
    text = f"PAT: [mem 0x{other:016x}-0x{other + length:016x}) write-through\n"
    overlaps = bool(set(range(start, start + size)) & set(range(other, other + length)))
    assert segment.find_memory_types(text, start, size) == (
        frozenset({"write-through"}) if overlaps else frozenset()
    )


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("none", "there is no /run/nova-hpc/shared-memory.env"),
        ("library", "the library of the package nova-hpc-shm is not there"),
        ("no library", "the library of the package nova-hpc-shm is not there"),
        ("pid", "this container has its own PID namespace"),
        ("ipc", "this container has its own IPC namespace"),
        ("writable", "others may write it"),
    ],
)
def test_why_mpi_uses_the_network(guest, what, text):
    """A note alone: the cloud's promise is kept."""
    give_segment(guest)
    variables = guest.root / "run/nova-hpc/shared-memory.env"
    spaces = guest.root / "proc/self/ns"
    spaces.mkdir(parents=True)
    (spaces / "pid").symlink_to("pid:[4026531836]")
    assert rows(guest) == []
    if what == "none":
        variables.unlink()
    elif what == "library":
        (guest.root / "usr/lib64/nova-hpc/libnova-hpc-shm.so").unlink()
    elif what == "no library":
        variables.write_text("LD_PRELOAD=$(reboot)\n")
    elif what == "writable":
        variables.chmod(0o666)
    else:
        (spaces / what).unlink(missing_ok=True)
        (spaces / what).symlink_to(f"{what}:[4026532000]")
    (row,) = rows(guest)
    assert row.startswith(f"note {KIND}: MPI uses the network: ")
    assert text in row
    assert run(guest, "check", "--quiet") == (0, "", "")


def test_memory_that_was_made_ordinary(guest):
    device = give_segment(guest)
    link = guest.root / "sys/bus/dax/devices/dax0.0/driver"
    link.unlink()
    link.symlink_to("../../../../../../bus/dax/drivers/kmem")
    device.unlink()
    assert rows(guest) == [f"WRONG {KIND}: /dev/dax0.0: its memory was made ordinary memory"]


@pytest.mark.parametrize("what", ["link", "fifo", "short", "folder"])
def test_something_else_in_the_place_of_the_device(guest, what):
    device = give_segment(guest)
    if what == "short":
        os.truncate(device, 4096)
    else:
        device.rename(guest.root / "elsewhere")
        {
            "link": lambda: device.symlink_to("../elsewhere"),
            "fifo": lambda: os.mkfifo(device),
            "folder": device.mkdir,
        }[what]()
    (row,) = rows(guest)
    assert row.startswith(f"WRONG {KIND}: /dev/dax0.0: ")
    assert run(guest, "peers")[0] == 2


def test_who_may_not_read_it_cannot_tell(guest, monkeypatch):
    """Neither good nor bad: users outside the group run check, too."""
    give_segment(guest)
    real = os.open

    def deny(path, *arguments, **names):
        if str(path).endswith("dax0.0"):
            raise PermissionError(13, os.strerror(13))
        return real(path, *arguments, **names)

    monkeypatch.setattr(os, "open", deny)
    assert rows(guest) == [f"note {KIND}: /dev/dax0.0: permission denied"]
    status, _, err = run(guest, "peers")
    assert status == 2
    assert "a user of the group hpc" in err


@pytest.mark.parametrize(
    "value",
    [
        7,
        [],
        {},
        {"bytes": PART, "part": 0},
        {"bytes": PART, "part": 3, "parts": 3},
        {"bytes": PART, "part": -1, "parts": 3},
        {"bytes": PART, "part": True, "parts": 3},
        {"bytes": PART + 4096, "part": 0, "parts": 3},
        {"bytes": 0, "part": 0, "parts": 3},
        {"bytes": 1 << 41, "part": 0, "parts": 3},
        {"bytes": PART, "part": 0, "parts": 17},
        {"bytes": PART, "part": 0, "parts": 1},
        {"why": None},
        {"why": "no word"},
    ],
)
def test_a_document_that_makes_no_sense(guest, value):
    promise_share(guest, value)
    status, out, err = run(guest, "check")
    assert (status, out) == (2, "")
    assert "shared_memory" in err


def test_the_part_that_programs_use(guest):
    give_segment(guest, part=2)
    guest.file("run/nova-hpc/part", "0\n")
    assert rows(guest) == [f"WRONG {KIND}: programs use part 0, and part 2 is promised"]
