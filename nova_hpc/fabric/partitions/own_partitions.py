# SPDX-License-Identifier: Apache-2.0
"""The administrator's own partitions: text in the words of opensm's ``partitions.conf``.

opensm gives every port full membership of the default partition when it cannot read a line
(``opensm/osm_prtn_config.c``, ``osm_prtn.c``: *retrying with default config*), takes
abbreviations (``A`` is ``ALL``), invents P_Keys, and reads lines of 4 or 8 KiB by release, so
that the rest of a longer one counts as the next line. So only what leaves no doubt is read
here, and the text goes into opensm's file as it is, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import attrs

from nova_hpc.fabric.partitions.keys import (
    DEFAULT_PKEY,
    Membership,
    format_guid,
    format_pkey,
    table_entry,
)

#: Bytes of a line, its end not counted. opensm reads into 4,096 or 8,192, by release.
LONGEST_LINE: Final = 4000
#: Comments that begin like this are the agent's own.
RESERVED_COMMENT: Final = "# nova-hpc: "

_HEAD: Final = re.compile(r"(?:([A-Za-z_][\w.-]*)(?:\s*=\s*(\S+))?|(\d\w*))", re.ASCII)
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|0|[1-9][0-9]*", re.ASCII)
_GROUP: Final = re.compile(r"mgid\s*=\s*[0-9a-fA-F:.]+", re.ASCII)
_NUMERIC_FLAGS: Final = frozenset(("mtu", "rate", "sl", "scope", "Q_Key", "TClass", "FlowLabel"))
_WORDS: Final = frozenset(("ALL", "ALL_CAS", "ALL_SWITCHES", "ALL_ROUTERS", "SELF"))
_KIND_OF_WORD: Final = {"ALL_CAS": "ca", "ALL_SWITCHES": "switch", "ALL_ROUTERS": "router"}


class OwnPartitionsError(ValueError):
    """The administrator's own partitions cannot be used; the text says where and why."""


@attrs.frozen
class OwnMember:
    """Who an own partition has: a port GUID, or one of opensm's words for many."""

    who: int | str
    membership: Membership

    def covers(self, guid: int, kind: str, manages: bool) -> bool:
        """Whether a port is meant: its GUID, ``ca``, ``switch`` or ``router``, the manager's."""
        if isinstance(self.who, int):
            return guid == self.who
        if self.who == "SELF":
            return manages
        return self.who == "ALL" or _KIND_OF_WORD[self.who] == kind


@attrs.frozen
class OwnPartition:
    """One definition; several may have the same P_Key, which opensm merges in their order."""

    name: str
    pkey: int
    members: tuple[OwnMember, ...]


@attrs.frozen
class OwnPartitions:
    """All definitions, and the text that they are read from."""

    text: str = ""
    partitions: tuple[OwnPartition, ...] = ()

    def pkeys(self) -> frozenset[int]:
        """The P_Keys beside the default one: no network may have them."""
        return frozenset(each.pkey for each in self.partitions) - {DEFAULT_PKEY}

    def entries_of(self, guid: int, kind: str = "ca", manages: bool = False) -> frozenset[int]:
        """The entries of a port's P_Key table that come of them.

        The last word on a port and a P_Key holds, as for opensm (``osm_prtn_add_port``).
        """
        entries: dict[int, int] = {}
        for partition in self.partitions:
            for member in partition.members:
                if member.covers(guid, kind, manages):
                    entries[partition.pkey] = table_entry(partition.pkey, member.membership)
        return frozenset(entries.values())


def parse_own_partitions(text: str) -> OwnPartitions:
    """Read the administrator's own partitions.

    :raises OwnPartitionsError: a line is not understood, is too long, or opens the fabric.
    """
    _check_lines(text)
    reader = _DefinitionReader()
    for number, line in enumerate(text.split("\n"), 1):
        rest = line.partition("#")[0]
        while (rest := rest.strip(" \t")) != "":
            piece, end, rest = rest.partition(";")
            reader.take_piece(piece.strip(" \t"), bool(end), number)
    return OwnPartitions(text, reader.finish())


def find_long_line(text: str) -> int | None:
    """The number of a line that may be too long for opensm, comments included; None: all fit.

    :param text: bytes that are no UTF-8 are surrogates.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if len(line.encode("utf-8", "surrogateescape")) > LONGEST_LINE:
            return number
    return None


def _check_lines(text: str) -> None:
    long = find_long_line(text)
    if long is not None:
        raise OwnPartitionsError(
            f"line {long} has over {LONGEST_LINE} bytes: opensm takes the rest of a long line for "
            "another one and opens the whole fabric; put one GUID on a line (comments count, too)"
        )
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(RESERVED_COMMENT.rstrip()):
            raise OwnPartitionsError(
                f"line {number}: comments that begin with {RESERVED_COMMENT!r} are the agent's: "
                "this file has only what is not the agent's"
            )
        plain = line.partition("#")[0]
        if not plain.isascii() or any(ord(sign) < 32 and sign != "\t" for sign in plain):
            raise OwnPartitionsError(
                f"line {number} has a sign that opensm does not know (a carriage return, or not "
                "ASCII): save the file as plain text with line ends of Unix"
            )
        if "\0" in line:
            raise OwnPartitionsError(f"line {number} has a NUL: opensm ends the line there")


class _DefinitionReader:
    """Puts definitions together from pieces of lines, as opensm's parser gets them."""

    def __init__(self) -> None:
        self._finished: list[OwnPartition] = []
        self._head: tuple[str, int, Membership] | None = None
        self._members: list[OwnMember] = []
        self._line = 0

    def take_piece(self, piece: str, ends: bool, number: int) -> None:
        """Read what one line has up to a semicolon, or to its end."""
        if self._head is None:
            self._line = number
            head, colon, piece = piece.partition(":")
            if not colon:
                raise OwnPartitionsError(
                    f"line {number}: the colon has to be on the line where a definition begins "
                    f"({head.strip()[:60]!r}): opensm opens the whole fabric otherwise"
                )
            self._head = _read_head(head, number)
        self._members.extend(_read_members(piece, self._head[2], number))
        if ends:
            name, pkey, _ = self._head
            partition = OwnPartition(name, pkey, tuple(self._members))
            _refuse_open_partition(partition, self._line)
            self._finished.append(partition)
            self._head, self._members = None, []

    def finish(self) -> tuple[OwnPartition, ...]:
        """All definitions.

        :raises OwnPartitionsError: the last one does not end.
        """
        if self._head is not None:
            raise OwnPartitionsError(
                f"the definition of line {self._line} does not end: its semicolon is missing, or "
                "the file is cut off"
            )
        return tuple(self._finished)


def _read_head(text: str, number: int) -> tuple[str, int, Membership]:
    """Read name, P_Key and flags, up to the colon."""
    first, *flags = (part.strip() for part in text.split(","))
    match = _HEAD.fullmatch(first)
    if match is None:
        raise OwnPartitionsError(f"line {number}: {first[:60]!r} is no NAME=P_KEY of a partition")
    name, key = match[1] or "", match[2] or match[3]
    if key is None:
        raise OwnPartitionsError(
            f"line {number}: partition {name!r} has no P_Key, so opensm would take one that a "
            f"network may have; write {name}=0x...."
        )
    pkey = _read_number(key, f"line {number}: P_Key") & 0x7FFF
    if not pkey or _read_number(key, "") > 0xFFFF:
        raise OwnPartitionsError(f"line {number}: {key} is no P_Key: 0x0001 to 0x7fff")
    membership = Membership.LIMITED
    for flag in flags:
        word, equals, value = (part.strip() for part in flag.partition("="))
        if word == "defmember":
            membership = _read_membership(value, number)
        elif word in _NUMERIC_FLAGS and equals:
            _read_number(value, f"line {number}: {word}")
        elif word not in ("ipoib", "indx0") or equals:
            raise OwnPartitionsError(
                f"line {number}: opensm does not know the flag {flag[:60]!r} and would leave it "
                "out without a word"
            )
    return name, pkey, membership


def _read_members(text: str, default: Membership, number: int) -> Iterable[OwnMember]:
    if text.lstrip().startswith("mgid"):
        group, *flags = (part.strip() for part in text.split(","))
        if _GROUP.fullmatch(group) is None or any(
            flag.partition("=")[0].strip() not in _NUMERIC_FLAGS for flag in flags
        ):
            raise OwnPartitionsError(f"line {number}: {text[:60]!r} is no multicast group")
        return
    for part in text.split(","):
        token, equals, value = (piece.strip() for piece in part.partition("="))
        if not token and not equals:
            continue  # A comma at the end of a line.
        membership = _read_membership(value, number) if equals else default
        if token in _WORDS:
            yield OwnMember(token, membership)
            continue
        guid = _read_number(token, f"line {number}: port GUID (or {', '.join(sorted(_WORDS))})")
        if not 0 < guid < 1 << 64:
            raise OwnPartitionsError(f"line {number}: {token} is no port GUID")
        yield OwnMember(guid, membership)


def _read_membership(text: str, number: int) -> Membership:
    if text not in ("full", "limited"):
        raise OwnPartitionsError(
            f"line {number}: {text[:60]!r} is no membership: write full or limited (what opensm "
            "makes of anything else depends on its options)"
        )
    return Membership(text)


def _read_number(text: str, what: str) -> int:
    """Read a number as opensm does; octal ones are refused, they are meant by nobody."""
    if _NUMBER.fullmatch(text) is None:
        raise OwnPartitionsError(f"{what}: {text[:60]!r} is no number")
    return int(text, 0)


def _refuse_open_partition(partition: OwnPartition, number: int) -> None:
    """Refuse what lets everybody reach everybody."""
    for member in partition.members:
        if isinstance(member.who, int):
            continue
        if partition.pkey == DEFAULT_PKEY:
            raise OwnPartitionsError(
                f"line {number}: {member.who} in the default partition: the agent writes that one "
                "(all limited, the subnet manager full); a port that serves all others can be "
                f"added GUID by GUID, such as {format_guid(0x2C90000200001)}=full"
            )
        if member.membership is Membership.FULL and member.who not in ("SELF", "ALL_SWITCHES"):
            raise OwnPartitionsError(
                f"line {number}: {member.who}=full in partition {format_pkey(partition.pkey)} "
                "opens the fabric: all reach all. Make them limited, and those full that serve "
                f"others, GUID by GUID, such as {format_guid(0x2C90000200001)}=full"
            )
