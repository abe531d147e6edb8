# SPDX-License-Identifier: Apache-2.0
"""The one rule by which every wire document changes, and its readers judge it.

A version is a whole number. Within one, keys may be added; none is removed and none
changes its meaning, and a reader ignores keys that it does not know (but for the
snapshot, where a wrong answer is worse than none). Whatever cannot be done so is the
next version, in two releases: the first reads it and still writes the one before, the
second writes it and still reads the one before. So neighbours in a rolling upgrade, of
which either may be the newer one, read each other.

A reader that meets a version it does not know, or a text that is broken, says that the
fact is *unknown*. It never takes that for "there is nothing", and it leaves the text
where it lies: after the next upgrade it can be read.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

_LONGEST: Final = 60

#: Longest value of instance system metadata, in characters (nova/db/main/models.py,
#: InstanceSystemMetadata.value, all releases); what is longer fails the server's save.
LONGEST_METADATA: Final = 255


class WireError(ValueError):
    """A text that must not be acted on. The error says why, for operators."""


class LaterError(WireError):
    """A text of a *version* that only a later release reads: it stays as it is."""

    def __init__(self, text: str, version: int) -> None:
        super().__init__(text)
        self.version = version


@attrs.frozen
class WireDocument:
    """The common properties of all texts of one kind."""

    name: str
    #: Where it is while nobody reads it.
    lives: str
    #: What makes it, and what reads it, as ``module:function``; "" where only others do.
    writer: str
    readers: tuple[str, ...] = ()
    #: Version that this release writes.
    version: int = 1
    #: Versions that it reads: also the one before, and one that it does not write yet.
    reads: tuple[int, ...] = (1,)
    #: What the key ``schema`` says; None: there is no such key.
    schema: str | None = None
    #: Where the version is said.
    key: str = "version"
    #: Version of a text that does not say one; None: every one says it.
    absent: int | None = None
    #: The longest that is written, in bytes; None: as long as it needs to be.
    limit: int | None = None
    #: The longest that is looked at, in characters; None: *limit*.
    longest: int | None = None
    #: What helps when it is broken or too old.
    cure: str = ""

    def load(self, text: object) -> dict[str, Any]:
        """The JSON object in *text*, whatever that is.

        :raises LaterError: only a later release reads it.
        :raises WireError: it is broken, or of a version that nobody reads any more.
        """
        longest = self.longest or self.limit
        if not isinstance(text, str) or (longest is not None and len(text) > longest):
            raise self.broken(f"is no text{f' of at most {longest} characters' if longest else ''}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.broken(f"is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise self.broken("is no JSON object")
        if self.schema is not None and data.get("schema") != self.schema:
            raise WireError(f"it is no {self.name}{self._cure}")
        self.check(data.get(self.key, self.absent))
        return data

    def check(self, version: object) -> int:
        """The *version* itself, if this release reads it.

        :raises LaterError: only a later one does.
        :raises WireError: no release does.
        """
        # True == 1 == 1.0 in Python, but neither true nor 1.0 is a version.
        if type(version) is int and version in self.reads:
            return version
        readable = ", ".join(map(str, self.reads))
        stated = f"version {show_json_value(version)}"
        if type(version) is int and version > max(self.reads):
            raise LaterError(
                f"the {self.name} has {stated}, which is newer than what this release of nova-hpc "
                f"reads, {readable}: update nova-hpc",
                version,
            )
        raise self.broken(f"has {stated}, and this release of nova-hpc reads {readable}")

    def head(self) -> dict[str, Any]:
        """The beginning of a text of this release."""
        schema = {} if self.schema is None else {"schema": self.schema}
        return {**schema, self.key: self.version}

    def broken(self, problem: str) -> WireError:
        """The error for a text that is not what it should be."""
        return WireError(f"the {self.name} {problem}{self._cure}")

    @property
    def _cure(self) -> str:
        return f"; {self.cure}" if self.cure else ""


def write_compact_json(data: object) -> str:
    """One line of ASCII without spaces, for columns that are short."""
    return json.dumps(data, separators=(",", ":"))


def show_json_value(value: object) -> str:
    """A value as JSON has it, in ASCII and of bounded length, for messages."""
    try:
        text = json.dumps(value, default=repr)
    except RecursionError:  # nested just less deep than json.loads minds
        text = f"{'[' * _LONGEST}..."
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
