# SPDX-License-Identifier: Apache-2.0
"""An NVMe disk of bytes: what a controller does with commands, and what it may do wrong."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import attrs

from nova_hpc.tenancy.hygiene import clean_nvme, nvme_commands
from nova_hpc.tenancy.hygiene.clean_nvme import NvmeDisk, NvmeNamespace, NvmeStatusError

BLOCK = 512
#: Status "sanitize in progress", and "invalid field in command" (NVMe base 2.0, figure 97).
BUSY, INVALID = 0x1D, 0x02


@attrs.define
class FakeDisk(NvmeDisk):
    """The media outlive whoever sends commands."""

    #: Number of a namespace -> its bytes.
    media: dict[int, bytearray]
    #: SANICAP: 1 crypto, 2 block; 0: no Sanitize.
    sanicap: int = 3
    oacs: int = 1 << 1
    fna: int = 0
    cmic: int = 0
    #: Controllers in its subsystem; None: it does not tell.
    controllers: int | None = 1
    unallocated: int = 0
    #: Namespaces that are not attached.
    detached: dict[int, bytearray] = attrs.field(factory=dict)
    #: Looks at the log until an erase ends.
    looks: int = 8
    #: A namespace that the kernel does not show.
    unseen: int = 0
    #: What it does at the end of an erase; "": all of it. "nothing" and "half" are lies, and after
    #: "another" its log tells of another erase.
    does: str = ""
    #: The erase that is under way, and looks that are left.
    running: int = 0
    left: int = 0
    status: int = 0
    command: int = 0
    is_erased: bool = False
    sent: list[int] = attrs.field(factory=list)
    #: Called before each command, and now and then while blocks are read: may end the service.
    tick: Callable[[], object] = lambda: None
    blocks_seen: int = 0

    def close(self):
        """Nothing is open."""

    # -- what the check sees --------------------------------------------------------

    def send(self, command):
        self.tick()
        self.sent.append(command.opcode)
        # The kernel gets exactly what the structure holds.
        raw = nvme_commands.pack_command(command, 0)
        opcode, (nsid,), (cdw10,) = (
            raw[0],
            struct.unpack_from("<I", raw, 4),
            struct.unpack_from("<I", raw, 40),
        )
        assert len(raw) == 72
        if opcode == nvme_commands.GET_LOG:
            return self._log(cdw10)
        if opcode == nvme_commands.IDENTIFY:
            return self._identify(cdw10 & 0xFF, nsid)
        if self.running:
            raise NvmeStatusError(opcode, BUSY)
        if opcode == nvme_commands.SANITIZE and self._may_sanitize(cdw10 & 7):
            self.begin(cdw10)
            return b""
        if opcode == nvme_commands.FORMAT and self.oacs & 2 and nsid in self.media:
            if (cdw10 >> 9) & 7 in (1, 2):
                self._wipe(self.media[nsid], bytes(BLOCK))
            return b""
        raise NvmeStatusError(opcode, INVALID)

    def _may_sanitize(self, action):
        return bool({4: 1, 2: 2}.get(action, 0) & self.sanicap)

    def begin(self, cdw10):
        """An erase begins, whoever wants it."""
        self.running, self.left, self.command, self.status = cdw10 & 7, self.looks, cdw10, 2

    def _log(self, cdw10):
        assert cdw10 == 0x81 | 127 << 16
        if self.running:
            self.left -= 1
            if self.left <= 0:
                self._end()
        progress = 0xFFFF if not self.running else 65536 * (self.looks - self.left) // self.looks
        status = self.status | self.is_erased << 8
        return struct.pack("<HHI", min(progress, 0xFFFF), status, self.command).ljust(512, b"\0")

    def _end(self):
        action, self.running = self.running, 0
        if self.does == "fail":
            self.status = 3
            return
        for data in (*self.media.values(), *self.detached.values()):
            # With another key what was written reads as noise.
            self._wipe(data, b"" if action == 4 else b"\xff" * BLOCK)
        self.status, self.is_erased = 1, True
        if self.does == "another":
            self.command = 2 if action == 4 else 4

    def _wipe(self, data, pattern):
        if self.does == "nothing":
            return
        size = len(data) // 2 if self.does == "half" else len(data)
        data[:size] = (pattern * (size // BLOCK)) if pattern else os.urandom(size)

    def _identify(self, cns, nsid):
        body = bytearray(4096)
        if cns == 1:
            body[76] = self.cmic
            struct.pack_into("<H", body, 256, self.oacs)
            body[296:312] = self.unallocated.to_bytes(16, "little")
            struct.pack_into("<I", body, 328, self.sanicap)
            body[524] = self.fna
        elif cns == 0x13:
            if self.controllers is None:
                raise NvmeStatusError(6, INVALID)
            struct.pack_into("<H", body, 0, self.controllers)
        elif cns in (2, 0x10):
            numbers = sorted({*self.media, *(self.detached if cns == 0x10 else ())})
            struct.pack_into(f"<{len(numbers)}I", body, 0, *numbers)
        else:
            assert nsid in self.media
            body[26] = 0x03
        return bytes(body)

    def list_namespaces(self):
        return tuple(
            NvmeNamespace(number, BLOCK, len(data) // BLOCK)
            for number, data in self.media.items()
            if number != self.unseen
        )

    def read(self, namespace, block):
        self._look()
        place = block * BLOCK
        data = bytes(self.media[namespace.number][place : place + BLOCK])
        assert len(data) == BLOCK
        return data

    def write(self, namespace, block, data):
        self._look()
        assert len(data) == BLOCK
        self.put(namespace.number, block, data)

    def _look(self):
        self.blocks_seen += 1
        if self.blocks_seen % 32 == 0:
            self.tick()
        if self.running:
            raise OSError(errno.EIO, "sanitize in progress")

    # -- what a tenant does -----------------------------------------------------------

    def put(self, number, block, data):
        """Write a block."""
        self.media[number][block * BLOCK : (block + 1) * BLOCK] = data.ljust(BLOCK, b".")
        self.is_erased = False


def make_disk(blocks=2048, **values):
    """A disk with one namespace that somebody has used."""
    disk = FakeDisk({1: bytearray(blocks * BLOCK)}, **values)
    for block in range(0, blocks, 3):
        disk.put(1, block, b"secret of block %d" % block)
    return disk


def erase(disk, note=None):
    """Erase it, and do not wait.

    :param note: file of what the host has begun; None: nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        note = note or Path(folder, "note")
        return clean_nvme.erase_disk(disk, note, sleep=lambda seconds: None)
