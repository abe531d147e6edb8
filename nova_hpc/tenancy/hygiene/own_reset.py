# SPDX-License-Identifier: Apache-2.0
"""Resets that a vendor's cleaner declares: a file of the device, or a program.

The class of a cleaner declares them as constants. A caller names one of them, and never a
file, a text or an argument. So the privileged helper, which reads the declaration itself, can
write nothing else for a service that an attacker controls. A vendor changes nothing here: it
declares ``resets`` in its own package, such as ``tests/vendor_cleaner``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.topology import handles
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError
from nova_hpc.topology.model import try_normalise_address

#: In an argument of a program it stands for the address of the device.
ADDRESS: Final = "{address}"

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}", re.ASCII)
_ARGUMENT: Final = re.compile(r"[\x20-\x7e]{0,255}", re.ASCII)
#: The kernel takes at most a page in one write.
_LONGEST: Final = 4096
_MOST_PARTS: Final = 8
_MOST_ARGUMENTS: Final = 32


@attrs.frozen
class ResetFile:
    """A reset by a text that is written to a file of the device."""

    #: By which the cleaner and the helper refer to it.
    name: str
    #: Below the device's directory in sysfs, as ``acme/reset_engine``.
    path: str
    text: str = "1\n"

    def __str__(self) -> str:
        return f"file {self.path}"


@attrs.frozen
class ResetProgram:
    """A reset by a program of root, which the helper runs as root without a shell."""

    name: str
    #: Absolute.
    path: str
    #: :data:`ADDRESS` in them is replaced; nothing else is.
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"program {self.path}"

    def argv(self, address: str) -> list[str]:
        """Return the command line that resets a device.

        :param address: PCI address, normalised.
        """
        return [self.path, *(word.replace(ADDRESS, address) for word in self.arguments)]


OwnReset = ResetFile | ResetProgram


def explain_bad_declaration(resets: object) -> str | None:
    """Explain why the attribute ``resets`` of a cleaner cannot be used; None if it can.

    :param resets: as the vendor's class has it, which may be any object.
    """
    if not isinstance(resets, tuple):
        return "its resets are no tuple"
    names = set()
    for own in resets:
        if not isinstance(own, ResetFile | ResetProgram):
            return f"its reset {own!r:.80} is neither a ResetFile nor a ResetProgram"
        reason = _explain_bad_file(own) if isinstance(own, ResetFile) else _explain_bad_program(own)
        if not _is_text(own.name, _NAME):
            reason = "a name has small letters, digits and dashes"
        elif own.name in names:
            reason = "another reset has this name"
        if reason is not None:
            return f"its reset {own.name!r:.80} cannot be used: {reason}"
        names.add(own.name)
    return None


def _explain_bad_file(own: ResetFile) -> str | None:
    parts = own.path.split("/") if isinstance(own.path, str) else []
    if not 1 <= len(parts) <= _MOST_PARTS or not all(_is_text(part, _PART) for part in parts):
        return f"the path {own.path!r:.80} does not stay below the device's directory"
    if any(try_normalise_address(part) is not None for part in parts):
        return f"the path {own.path!r:.80} leads to another device"
    text = own.text.removesuffix("\n") if isinstance(own.text, str) else None
    if not text or len(text) >= _LONGEST or not (text.isascii() and text.isprintable()):
        return "its text is no line of printable ASCII characters"
    return None


def _explain_bad_program(own: ResetProgram) -> str | None:
    parts = own.path.split("/") if isinstance(own.path, str) else []
    if len(parts) < 2 or parts[0] or not all(_is_text(part, _PART) for part in parts[1:]):
        return f"the path {own.path!r:.80} is not absolute"
    arguments = own.arguments
    if not isinstance(arguments, tuple) or len(arguments) > _MOST_ARGUMENTS:
        return f"its arguments are no tuple of at most {_MOST_ARGUMENTS} texts"
    if not all(_is_text(word, _ARGUMENT) for word in arguments):
        return "an argument is no text of at most 255 printable ASCII characters"
    return None


def _is_text(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def explain_unready_reset(root: Path, address: str, own: OwnReset) -> str | None:
    """Explain why a declared reset cannot be made now; None if it can.

    :param root: the directory that contains ``sys``.
    :param address: normalised.
    """
    try:
        if isinstance(own, ResetProgram):
            handles.expect_program_of_root(own.path)
            return None
        with handles.device_file(root, f"{DEVICES}/{address}", own.path) as file:
            return None if file is not None else f"{own.path}: there is no such file"
    except FileError as error:
        return str(error)
