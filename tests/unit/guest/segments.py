# SPDX-License-Identifier: Apache-2.0
"""Segments of shared memory on guests that are directories: a plain file is the device."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import uuid

from nova_hpc_guest import document
from tests.unit.guest.servers import fw_cfg_of
from tests.unit.guest.worlds import Guest

MIB = 1 << 20
PART = 4 * MIB
PARTS = 3
SIZE = 2 * MIB + PARTS * PART
START = 0x180000000
NUMBER = uuid.UUID("5c0e1f2a-3b4c-4d5e-8f60-718293a4b5c6")
SERVERS = ("11111111-2222-3333-4444-555555555550", "11111111-2222-3333-4444-555555555551")
#: The list of the kernel, with the memory and its neighbours.
TYPES = """\
PAT memtype list:
PAT: [mem 0x0000000000000000-0x000000000009f000) write-back
PAT: [mem 0x00000000febf0000-0x00000000febf1000) uncached-minus
PAT: [mem 0x0000000180000000-0x0000000180e00000) write-back
PAT: [mem 0x0000000180e00000-0x0000000180f00000) uncached-minus
"""


def head_of(parts: int = PARTS, part: int = PART, **other: int) -> bytes:
    """The head, as the host writes it."""
    magic = other.get("magic", 0x314D48534350484E)
    size = other.get("size", 2 * MIB + parts * part)
    version = other.get("version", 1)
    return struct.pack("<QIIQQ16s", magic, version, parts, part, size, NUMBER.bytes)


def promise_share(guest: Guest, value: object) -> None:
    """Have the guest's document say *value* of shared memory."""
    raw = fw_cfg_of(guest)
    content = json.loads(document.decode_entry(raw.read_bytes()))
    content["shared_memory"] = value
    raw.write_text(json.dumps(content))


def give_segment(guest: Guest, part: int = 1, name: str = "dax0.0", head: bytes | None = None):
    """Promise a segment, and give its device; the file behind the device."""
    promise_share(guest, {"bytes": PART, "part": part, "parts": PARTS})
    device = add_dax(guest, name)
    guest.file("sys/kernel/debug/x86/pat_memtype_list", TYPES)
    with device.open("r+b") as stream:
        stream.write(head_of() if head is None else head)
        for number, server in enumerate(SERVERS):
            stream.seek(4096 + 64 * number)
            stream.write(server.encode())
    return device


def add_dax(guest: Guest, name: str, size: int = SIZE, driver: str = "device_dax"):
    """A device-dax of zeros."""
    guest.file(f"sys/bus/dax/devices/{name}/size", f"{size}\n")
    guest.file(f"sys/bus/dax/devices/{name}/resource", f"{START:#x}\n")
    link = guest.root / f"sys/bus/dax/devices/{name}/driver"
    link.symlink_to(f"../../../../../../bus/dax/drivers/{driver}")
    device = guest.root / "dev" / name
    device.parent.mkdir(exist_ok=True)
    with device.open("wb") as stream:
        stream.truncate(size)
    return device


def run_in_mounts(guest: Guest, *arguments: str, then: str = "true"):
    """The command in a mount namespace of its own, and after it what a shell says there."""
    command = [sys.executable, "-m", "nova_hpc_guest.command"]
    script = f'"$@" && {then}'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *command, *arguments, "--root", guest.root],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
