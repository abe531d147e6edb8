"""The attributes of one kernel object: the files and links of its directory in sysfs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final, TypeVar

import attrs

from nova_hpc.topology.files import FileError, Folder, Tree

_INTEGER: Final = re.compile(r"-?\d{1,9}", re.ASCII)
_HEX: Final = re.compile(r"0x([0-9a-fA-F]{1,8})", re.ASCII)

_T = TypeVar("_T")


@functools.lru_cache(maxsize=1024)
def _code(text: str, digits: int) -> str | None:
    match = _HEX.fullmatch(text)
    if match is None or int(match[1], 16) >= 16**digits:
        return None
    return f"{int(match[1], 16):0{digits}x}"


@attrs.define
class Attributes:
    """Reads them; what is there and makes no sense is left out, with the reason."""

    tree: Tree
    #: Of the directory.
    place: str
    #: The directory itself; None: what it holds is not known.
    folder: Folder | None
    #: What made no sense.
    reasons: list[str] = attrs.field(factory=list, kw_only=True)

    def path(self, name: str) -> str:
        """Of one of them."""
        return f"{self.place}/{name}"

    def reason(self, text: str) -> None:
        """Keep a reason, once."""
        # The object is named anyway where the reason is shown.
        short = text.removeprefix(f"{self.place}/")
        if short not in self.reasons:
            self.reasons.append(short)

    def attempt(self, get: Callable[[], _T], default: _T) -> _T:
        """What *get* returns, or *default* and a reason."""
        try:
            return get()
        except (FileError, ValueError) as error:
            self.reason(str(error))
            return default

    def text(self, name: str) -> str | None:
        """The text of a file; None: it is not there, or unreadable."""
        try:
            if self.folder is not None:
                return self.folder.text(name)
            return self.tree.text(self.path(name))
        except FileError as error:
            self.reason(str(error))
            return None

    def lacks(self, name: str) -> bool:
        """Whether its directory is known not to hold *name*."""
        return self.folder is not None and name not in self.folder.names

    def names(self, name: str) -> list[str]:
        """What a folder in it holds."""
        nothing: list[str] = []
        if self.lacks(name):
            return nothing
        return self.attempt(lambda: self.tree.names(self.path(name)), nothing)

    def number(self, name: str, least: int) -> int | None:
        """A file with a decimal number that is not below *least*."""
        text = self.text(name)
        if text is None:
            return None
        if _INTEGER.fullmatch(text) is None or int(text) < least:
            self.reason(f"{name}: {text[:40]!r} is no possible value")
            return None
        return int(text)

    def code(self, name: str, digits: int) -> str | None:
        """A file like ``0x10de``; hex digits without the prefix."""
        text = self.text(name)
        if text is None:
            return None
        found = _code(text, digits)
        if found is None:
            self.reason(f"{name}: {text[:40]!r} is no possible value")
        return found

    def link(self, name: str) -> str | None:
        """The last part of what a link leads to."""
        if self.lacks(name):
            return None
        text = None if self.folder is None else self.folder.link(name)
        # The kernel's links say where they lead; others may be loops.
        if text is not None and text.startswith("../") and text[-1] not in "./":
            return text.rpartition("/")[2]
        target = self.attempt(lambda: self.tree.target(self.path(name)), None)
        last = target.rpartition("/")[2] if target else ""
        return last or None
