# SPDX-License-Identifier: Apache-2.0
"""Admin commands of NVMe controllers as bytes, and their answers. Pure.

Source: the NVM Express Base Specification 2.0 (Identify, Get Log Page, Format NVM, Sanitize) and
``linux/nvme_ioctl.h``. This module needs only the standard library.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

from nova_hpc.tenancy.hygiene.clean_errors import UnableError

#: Opcodes of admin commands.
GET_LOG, IDENTIFY, FORMAT, SANITIZE = 0x02, 0x06, 0x80, 0x84
#: The log page of Sanitize.
SANITIZE_LOG: Final = 0x81
LOG_SIZE: Final = 512
IDENTIFY_SIZE: Final = 4096
ALL_NAMESPACES: Final = 0xFFFFFFFF
#: CNS values of Identify.
NAMESPACE, CONTROLLER, ACTIVE, ALLOCATED, CONTROLLERS = 0x00, 0x01, 0x02, 0x10, 0x13
#: ``struct nvme_passthru_cmd``: opcode, flags, reserved, nsid, cdw2, cdw3, metadata, data, their
#: lengths, cdw10 to cdw15, timeout in ms, result.
_PASSTHRU: Final = struct.Struct("=BBHIIIQQIIIIIIIIII")
#: Milliseconds for a command that answers at once; Format answers when it has ended.
_SOON: Final = 30_000
_LONG: Final = 3_600_000


class SanitizeAction(enum.Enum):
    """The action of Sanitize: its SANACT field."""

    BLOCK = 2
    CRYPTO = 4

    @property
    def words(self) -> str:
        """Name of the action for people, such as ``block erase``."""
        return f"{self.name.lower()} erase"


@dataclass(frozen=True)
class AdminCommand:
    """An NVMe admin command that reads data or has none, with its timeout."""

    opcode: int
    nsid: int = 0
    cdw10: int = 0
    cdw11: int = 0
    #: Bytes that the controller returns.
    size: int = 0
    #: Milliseconds.
    timeout: int = _SOON


@dataclass(frozen=True)
class NvmeController:
    """Abilities that an NVMe controller reports: ways to erase it, and how it may be shared."""

    #: Whether it is a virtual function of another controller, and shares its medium.
    is_virtual: bool
    #: Whether other controllers may reach its namespaces; the list of controllers shows it.
    may_be_shared: bool
    sanitizes: tuple[SanitizeAction, ...]
    has_format: bool
    #: Whether Format erases by a key, and not block by block.
    formats_by_key: bool
    manages_namespaces: bool
    #: Number of bytes outside any namespace.
    unallocated: int


@dataclass(frozen=True)
class SanitizeState:
    """The sanitize log of an NVMe controller: progress and result of an erase."""

    #: SPROG: progress in 65,536ths.
    progress: int
    #: SSTAT, bits 2 to 0: 0 never, 1 and 4 done, 2 under way, 3 failed.
    status: int
    #: Whether nothing was written since the last erase.
    is_erased: bool
    #: SCDW10 of the last erase.
    command: int

    @property
    def is_running(self) -> bool:
        """Whether an erase of the disk is under way."""
        return self.status == 2

    @property
    def is_done(self) -> bool:
        """Whether the last erase was successful."""
        return self.status in (1, 4)

    @property
    def percent(self) -> int:
        """Progress of the erase in percent."""
        return self.progress * 100 // 65536


# -- encoding and decoding ----------------------------------------------------------------


def pack_command(command: AdminCommand, address: int) -> bytearray:
    """Return the kernel's structure of a command.

    :param address: address of the buffer for its data.
    """
    words = (command.cdw10, command.cdw11, 0, 0, 0, 0)
    head = (command.opcode, 0, 0, command.nsid, 0, 0, 0, address, 0, command.size)
    return bytearray(_PASSTHRU.pack(*head, *words, command.timeout, 0))


def log_command() -> AdminCommand:
    """Return the NVMe command Get Log Page for the sanitize log."""
    dwords = LOG_SIZE // 4 - 1
    return AdminCommand(GET_LOG, ALL_NAMESPACES, SANITIZE_LOG | dwords << 16, size=LOG_SIZE)


def sanitize_command(action: SanitizeAction) -> AdminCommand:
    """Return Sanitize. After a failure the disk accepts only another Sanitize (AUSE is 0)."""
    return AdminCommand(SANITIZE, cdw10=action.value)


def format_command(number: int, body: bytes, by_key: bool) -> AdminCommand:
    """Return Format NVM of a namespace with secure erase, in its present format.

    :param body: answer of Identify for the namespace.
    """
    flbas, dps = body[26], body[29]
    word = flbas & 0xF | (flbas >> 4 & 1) << 4 | (dps & 7) << 5 | (dps >> 3 & 1) << 8
    # The upper bits of the format's number, from NVMe 2.0.
    word |= (flbas >> 5 & 3) << 12
    return AdminCommand(FORMAT, number, word | (2 if by_key else 1) << 9, timeout=_LONG)


def decode_controller(body: bytes) -> NvmeController:
    """Decode the answer of Identify for a controller.

    :raises UnableError: it is too short.
    """
    if len(body) < IDENTIFY_SIZE:
        raise UnableError("the controller gave a short answer to Identify")
    (oacs,) = struct.unpack_from("<H", body, 256)
    (sanicap,) = struct.unpack_from("<I", body, 328)
    actions = ((1, SanitizeAction.CRYPTO), (2, SanitizeAction.BLOCK))
    return NvmeController(
        is_virtual=bool(body[76] & 0b100),
        may_be_shared=bool(body[76] & 0b010),
        sanitizes=tuple(action for bit, action in actions if sanicap & bit),
        has_format=bool(oacs & 1 << 1),
        formats_by_key=bool(body[524] & 1 << 2),
        manages_namespaces=bool(oacs & 1 << 3),
        unallocated=int.from_bytes(body[296:312], "little"),
    )


def decode_namespaces(body: bytes) -> tuple[int, ...]:
    """Decode the numbers in a controller's list of namespaces, up to the first zero."""
    numbers = struct.unpack(f"<{len(body) // 4}I", body)
    return numbers[: numbers.index(0)] if 0 in numbers else numbers


def count_controllers(body: bytes) -> int:
    """Return the length of a list of controllers."""
    (count,) = struct.unpack_from("<H", body)
    return int(count)


def decode_sanitize_log(body: bytes) -> SanitizeState:
    """Decode the sanitize log.

    :raises UnableError: it is too short.
    """
    if len(body) < 8:
        raise UnableError("the controller gave a short sanitize log")
    progress, status, command = struct.unpack_from("<HHI", body)
    return SanitizeState(progress, status & 7, bool(status & 1 << 8), command)
