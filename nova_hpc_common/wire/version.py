# SPDX-License-Identifier: Apache-2.0
"""The one rule for changes of wire documents, and for their readers.

A version is a whole number. Within one, keys may be added; none is removed and none
changes its meaning, and a reader ignores unknown keys (except for the snapshot, because a
wrong answer is worse than none there). Any other change makes the next version, in two
releases: the first reads it and still writes the one before, the second writes it and still
reads the one before. So neighbours in a rolling upgrade read each other, whichever is newer.

A reader that meets an unknown version, or a broken text, reports the fact as *unknown*. It
never takes that for an empty document, and it leaves the text in its place: after the next
upgrade it can be read.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

_LONGEST: Final = 60

#: Longest value of instance system metadata, in characters (nova/db/main/models.py,
#: InstanceSystemMetadata.value, all releases); a longer value makes the server's save fail.
LONGEST_METADATA: Final = 255


class WireError(ValueError):
    """A stored text cannot be used. The error contains the reason, for operators."""


class LaterError(WireError):
    """A stored text has a *version* that only a later release reads; it is kept unchanged."""

    def __init__(self, text: str, version: int) -> None:
        super().__init__(text)
        self.version = version


@attrs.frozen
class WireDocument:
    """A kind of stored text: its name, versions, limits, writer and readers."""

    name: str
    #: Its place between writing and reading.
    lives: str
    #: Its writer and readers, as ``module:function``; "" if only other programs write it.
    writer: str
    readers: tuple[str, ...] = ()
    #: Version that this release writes.
    version: int = 1
    #: Versions that it reads: also the one before, and one that it does not write yet.
    reads: tuple[int, ...] = (1,)
    #: Value of the key ``schema``; None if the document has none.
    schema: str | None = None
    #: The key of the version.
    key: str = "version"
    #: Version of a text without a version; None if every text has one.
    absent: int | None = None
    #: Maximum length that is written, in bytes; None if it is not limited.
    limit: int | None = None
    #: Maximum length that is read, in characters; *limit* if None.
    longest: int | None = None
    #: The remedy for a broken or too old text.
    cure: str = ""

    def load(self, text: object) -> dict[str, Any]:
        """Parse the JSON object in *text* and check its version.

        :raises LaterError: only a later release reads it.
        :raises WireError: it is broken, or of a version that no release reads any more.
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
        """Return *version* if this release reads it.

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
                f"the {self.name} has {stated}, which is newer than this release of nova-hpc "
                f"can read, {readable}: update nova-hpc",
                version,
            )
        raise self.broken(f"has {stated}, and this release of nova-hpc reads {readable}")

    def head(self) -> dict[str, Any]:
        """Return the version keys that start a text of this release, as a JSON object."""
        schema = {} if self.schema is None else {"schema": self.schema}
        return {**schema, self.key: self.version}

    def broken(self, problem: str) -> WireError:
        """Build the error for an invalid text of this kind; it is not raised here."""
        return WireError(f"the {self.name} {problem}{self._cure}")

    @property
    def _cure(self) -> str:
        return f"; {self.cure}" if self.cure else ""


def write_compact_json(data: object) -> str:
    """Format *data* as one line of JSON in ASCII without spaces, for short database columns."""
    return json.dumps(data, separators=(",", ":"))


def show_json_value(value: object) -> str:
    """Format a value in JSON, in ASCII and of bounded length, for messages."""
    try:
        text = json.dumps(value, default=repr)
    except RecursionError:  # nested a little less deeply than json.loads refuses
        text = f"{'[' * _LONGEST}..."
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
