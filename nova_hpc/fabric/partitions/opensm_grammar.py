# SPDX-License-Identifier: Apache-2.0
"""opensm's own grammar of ``partitions.conf``.

The reader follows opensm 3.3.23 step by step (``opensm/osm_prtn_config.c``,
``osm_prtn_config_parse_file`` to ``partition_add_port``), because its grammar is not written down
and differs from its manual:

* words may be abbreviated (``A`` is ``ALL``), and a number at the start is a P_Key;
* ``ALL=`` is full, and a carriage return is an error;
* some forms read on in the rest of an earlier line in the buffer.

One error makes opensm drop the whole file and give every port full membership of the default
partition.

A line longer than opensm's buffer counts as several. The size differs by release, so this module
reads a file with such a line once for each size; if the results differ, the reading is uncertain.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.partitions.keys import DEFAULT_PKEY
from nova_hpc.fabric.partitions.partition_text import (
    EmptyFileError,
    FatalFileError,
    GroupFlags,
    MulticastGroup,
    PartitionDefinition,
    PartitionGrammarError,
    PartitionText,
    PortGroup,
    PortRule,
    RuleMembership,
    UncertainGrammarError,
)

#: Sizes of opensm's buffer in bytes; it reads two fewer at once. 3.3.23 has the first.
BUFFERS: Final = (4096, 8192)
#: How opensm calls the default partition before it reads the file.
_DEFAULT_NAME: Final = b"Default"
#: Bytes of a partition's name that opensm keeps, its end counted (``osm_prtn_t``).
_NAME_ROOM: Final = 32
_SPACES: Final = b" \t\n"
#: isspace(3), which strtoul(3) skips.
_C_SPACES: Final = b" \t\n\v\f\r"
_NUMBER: Final = re.compile(rb"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_MOST: Final = (1 << 64) - 1


def parse_partitions(text: str) -> PartitionText:
    """Read a file of partitions as opensm does.

    :param text: the file; bytes that are not valid UTF-8 are surrogates.
    :raises PartitionGrammarError: opensm drops the file; the text names the line.
    :raises UncertainGrammarError: the file does not determine opensm's result.
    """
    data = text.encode("utf-8", "surrogateescape")
    longest = max(map(len, data.split(b"\n")))
    if longest + 1 <= BUFFERS[0] - 2:
        return _FileReader(BUFFERS[0]).read(data)
    outcomes = [_try_to_read(data, size) for size in BUFFERS]
    refusals = [outcome for outcome in outcomes if isinstance(outcome, PartitionGrammarError)]
    if len(refusals) == len(outcomes):
        raise refusals[0]
    taken = tuple(
        dict.fromkeys(outcome for outcome in outcomes if isinstance(outcome, PartitionText))
    )
    if refusals or len(taken) > 1:
        raise UncertainGrammarError(
            f"a line has {longest} bytes: releases of opensm read it differently",
            taken,
            may_drop=bool(refusals),
        )
    return taken[0]


def _try_to_read(data: bytes, size: int) -> PartitionText | PartitionGrammarError:
    """Parse a file for one buffer size; return an error too, with all line numbers 0."""
    try:
        read = _FileReader(size).read(data)
    except PartitionGrammarError as error:
        return error
    return PartitionText(
        tuple(
            attrs.evolve(
                definition,
                line=0,
                rules=tuple(attrs.evolve(rule, line=0) for rule in definition.rules),
                groups=tuple(attrs.evolve(group, line=0) for group in definition.groups),
                left_out=tuple((0, text) for _, text in definition.left_out),
            )
            for definition in read.definitions
        )
    )


def read_number(text: bytes) -> tuple[int, bytes]:
    """Read a number as strtoul(3) with base 0 does.

    :returns: the number, and the text behind it; 0 and the whole text if it is not a number.
    """
    match = _NUMBER.match(text)
    if match is None:
        return 0, text
    digits = match[2]
    base = 16 if digits[:2].lower() == b"0x" else 8 if digits[:1] == b"0" else 10
    number = min(int(digits, base), _MOST)
    if match[1] == b"-" and number < _MOST:
        number = -number & _MOST
    return number, text[match.end() :]


def _is_beginning(word: bytes, of: bytes) -> bool:
    """Return whether *of* starts with *word*, as C's strncmp: the empty word starts every word."""
    return of.startswith(word)


def _show(word: bytes) -> str:
    return repr(word.decode("utf-8", "replace")[:60])


def _text_of(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")


class _LineBuffer:
    """opensm's line buffer: behind a line it still contains the ends of longer earlier lines."""

    def __init__(self, size: int) -> None:
        self._bytes = bytearray(size)
        #: Number of bytes that lines have filled so far; old stack contents are behind them.
        self._known = 0
        self._end = 0
        self.strays = False

    def load(self, line: bytes) -> None:
        """Put a line without its comment into the buffer, as fgets(3) does."""
        self._bytes[: len(line) + 1] = line + b"\0"
        self._known = max(self._known, len(line) + 1)
        comment = self.find(b"#", 0)
        if comment is not None:
            self.cut(comment)
        self._end = self.terminator(0)
        self.strays = False

    def terminator(self, start: int) -> int:
        """Return the index of the zero byte that ends the string at *start*.

        :raises UncertainGrammarError: no such byte in the memory that lines have filled.
        """
        at = self._bytes.find(b"\0", start, self._known)
        if at < 0:
            raise UncertainGrammarError(
                "opensm reads on behind a line, in memory that no line has filled"
            )
        # A string that starts exactly at the end of the line may be empty; it is not a stray.
        self.strays = self.strays or start > self._end
        return at

    def find(self, sign: bytes, start: int) -> int | None:
        """Return the index of *sign* in the string at *start*, as strchr(3); None if missing."""
        at = self._bytes.find(sign, start, self.terminator(start))
        return at if at >= 0 else None

    def cut(self, at: int) -> None:
        """End the string at index *at*, with a zero byte."""
        self._bytes[at] = 0

    def skip_spaces(self, start: int) -> int:
        """Return the index of the first byte from *start* on that is not a space."""
        end = self.terminator(start)
        while start < end and self._bytes[start] in _SPACES:
            start += 1
        return start

    def take_trimmed(self, start: int) -> tuple[bytes, int]:
        """Cut the spaces off at the end of a string.

        :returns: the trimmed string, and the index of its former end.
        """
        end = at = self.terminator(start)
        while at != start and self._bytes[at] in b"\0" + _SPACES:
            self._bytes[at] = 0
            at -= 1
        return bytes(self._bytes[start : self.terminator(start)]), end

    def take_token(self, start: int) -> tuple[bytes, bytes | None, int]:
        """Read NAME or NAME=VALUE (``parse_name_token``).

        :returns: name, value, and the index of the next token.
        """
        name_at = self.skip_spaces(start)
        equals = self.find(b"=", name_at)
        if equals is not None:
            self.cut(equals)
        after = self.terminator(start) + 1
        name, _ = self.take_trimmed(name_at)
        if equals is None:
            return name, None, after
        value, end = self.take_trimmed(self.skip_spaces(equals + 1))
        return name, value, end + 1

    def split_comma(self, start: int) -> bool:
        """Cut a string at its first comma; False if it has none."""
        comma = self.find(b",", start)
        if comma is None:
            return False
        self.cut(comma)
        return True


@attrs.define
class _OpenDefinition:
    """A partition definition whose semicolon was not read yet."""

    line: int
    head: PartitionDefinition | None = None
    rules: list[PortRule] = attrs.field(factory=list)
    groups: list[MulticastGroup] = attrs.field(factory=list)
    left_out: list[tuple[int, str]] = attrs.field(factory=list)

    def close(self, ended: bool) -> PartitionDefinition | None:
        if self.head is None:
            return None
        return attrs.evolve(
            self.head,
            rules=tuple(self.rules),
            groups=tuple(self.groups),
            left_out=tuple(self.left_out),
            ended=ended,
        )


class _FileReader:
    """Parser of one file of partitions, for one size of opensm's buffer for lines."""

    def __init__(self, size: int) -> None:
        self._room = size - 2
        self._buffer = _LineBuffer(size)
        self._names: dict[int, bytes] = {DEFAULT_PKEY: _DEFAULT_NAME}
        self._counter = 0
        self._line = 0

    def read(self, data: bytes) -> PartitionText:
        """Parse the whole file of partitions.

        :raises PartitionGrammarError: opensm drops it.
        :raises UncertainGrammarError: the file does not determine opensm's result.
        """
        finished: list[PartitionDefinition] = []
        strayed: list[int] = []
        open_one: _OpenDefinition | None = None
        read_any = False
        for number, line in enumerate(self._split_lines(data), 1):
            self._line = number
            self._buffer.load(line)
            at = 0
            # Each turn reads one piece: up to a semicolon, or to the end of the line.
            while True:
                at = self._buffer.skip_spaces(at)
                if self._buffer.terminator(at) == at:
                    break
                semicolon = self._buffer.find(b";", at)
                if semicolon is not None:
                    self._buffer.cut(semicolon)
                open_one = open_one or _OpenDefinition(self._line)
                at = self._read_piece(open_one, at)
                read_any = True
                if semicolon is None:
                    break
                closed = open_one.close(ended=True)
                finished += [closed] if closed is not None else []
                open_one = None
            if self._buffer.strays:
                strayed.append(self._line)
        last = None if open_one is None else open_one.close(ended=False)
        finished += [last] if last is not None else []
        if not read_any:
            raise EmptyFileError("it has no definition")
        return PartitionText(tuple(finished), tuple(strayed))

    def _split_lines(self, data: bytes) -> Iterator[bytes]:
        """Yield lines as fgets(3) returns them: a line longer than the buffer becomes several."""
        for line in re.findall(rb"[^\n]*\n|[^\n]+\Z", data):
            for start in range(0, len(line), self._room):
                yield line[start : start + self._room]

    def _fail(self, problem: str) -> PartitionGrammarError:
        return PartitionGrammarError(f"line {self._line}: {problem}")

    def _read_piece(self, partition: _OpenDefinition, start: int) -> int:
        """Read a definition, or more of one, up to its semicolon or the end of the line.

        :returns: the index at which opensm reads on.
        """
        if self._buffer.terminator(start) == start:
            start += 1  # An empty piece: opensm reads the text after the semicolon as a part of it.
        at = start
        if partition.head is None:
            at = self._read_head(partition, at)
        while True:
            more = self._buffer.split_comma(at)
            name, stated, at = self._buffer.take_token(at)
            if name == b"mgid":
                return self._read_group(partition, stated, at)
            self._add_rule(partition, name, stated)
            if not more:
                return at

    # -- the head of a definition -----------------------------------------------------------

    def _read_head(self, partition: _OpenDefinition, at: int) -> int:
        colon = self._buffer.find(b":", at)
        if colon is None:
            raise self._fail(
                "the colon has to be on the line where a definition begins "
                f"({_show(self._buffer.take_trimmed(at)[0])})"
            )
        self._buffer.cut(colon)
        more = self._buffer.split_comma(at)
        name, key, at = self._buffer.take_token(at)
        head = PartitionDefinition(
            line=self._line,
            name=_text_of(name),
            pkey=0,
            key=None if key is None else _text_of(key),
            made=False,
            default=RuleMembership.LIMITED,
            flags=GroupFlags(),
            ipoib=False,
            first_index=False,
            stated=(),
        )
        while more:
            more = self._buffer.split_comma(at)
            flag, value, at = self._buffer.take_token(at)
            head = _add_flag(head, flag, value)
        if at != colon + 1:
            raise self._fail("bad definition")
        partition.head = self._choose_pkey(head, name, key)
        return at

    def _choose_pkey(
        self, head: PartitionDefinition, name: bytes, key: bytes | None
    ) -> PartitionDefinition:
        """Return *head* with the stated P_Key, else that of an earlier equal name, else a free."""
        if key is None and name[:1].isdigit():
            name, key = b"", name
            head = attrs.evolve(head, name="", key=_text_of(key))
        pkey = 0
        if key is not None:
            number, rest = read_number(key)
            if rest or rest == key:
                raise self._fail(f"{_show(key)} is no P_Key")
            pkey = number & DEFAULT_PKEY
        made = False
        if not pkey and head.name:
            pkey = self._find_name(name)
        if not pkey:
            made = True
            pkey = self._make_pkey()
        kept = name[: _NAME_ROOM - 1] if name else f"{pkey:04x}".encode("ascii")
        self._names.setdefault(pkey, kept)
        return attrs.evolve(head, pkey=pkey, made=made)

    def _find_name(self, name: bytes) -> int:
        # opensm's table is in the order of keys as the wire has them.
        for pkey in sorted(self._names, key=lambda key: (key & 0xFF) << 8 | key >> 8):
            if self._names[pkey] == name:
                return pkey
        return 0

    def _make_pkey(self) -> int:
        while self._counter < DEFAULT_PKEY - 1:
            self._counter += 1
            if self._counter not in self._names:
                return self._counter
        raise self._fail("no P_Key is free")

    # -- members and groups -----------------------------------------------------------------

    def _add_rule(self, partition: _OpenDefinition, name: bytes, stated: bytes | None) -> None:
        assert partition.head is not None
        if _is_beginning(name, b"NONE"):
            if name or stated is not None:
                text = name if stated is None else name + b"=" + stated
                partition.left_out.append((self._line, _text_of(text)))
            return
        membership = partition.head.default if stated is None else _membership_of(stated)
        who: int | PortGroup
        for who in PortGroup:
            if _is_beginning(name, who.encode("ascii")):
                break
        else:
            who, rest = read_number(name)
            if not who or rest:
                raise self._fail(f"{_show(name)} is no port GUID, and no word of opensm's")
        partition.rules.append(
            PortRule(
                self._line,
                who,
                membership,
                _text_of(name),
                None if stated is None else _text_of(stated),
            )
        )

    def _read_group(self, partition: _OpenDefinition, mgid: bytes | None, at: int) -> int:
        """Read the flags after ``mgid=...`` (``mgroup_create``)."""
        if mgid is None:
            raise FatalFileError(f"line {self._line}: opensm ends at an mgid without a value")
        try:
            address = socket.inet_pton(socket.AF_INET6, mgid.decode("ascii"))
        except (OSError, ValueError):
            return at
        if address[0] != 0xFF:
            return at
        assert partition.head is not None
        inherited = flags = attrs.evolve(partition.head.flags, t_class=0)
        stated = []
        more, strays = True, self._buffer.strays
        # opensm reads the bytes behind the line as flags of a group without any; not as members.
        with contextlib.suppress(UncertainGrammarError):
            while more:
                more = self._buffer.split_comma(at)
                flag, value, at = self._buffer.take_token(at)
                stated.append(_text_of(flag if value is None else flag + b"=" + value))
                flags = _set_group_flag(flags, flag, value) or flags
        if self._buffer.strays:
            stated, flags = [], inherited
        self._buffer.strays = strays
        words = ", ".join(word for word in stated if word)
        partition.groups.append(MulticastGroup(self._line, _text_of(mgid), words, flags))
        return at


def _membership_of(stated: bytes) -> RuleMembership:
    """Parse a membership by its beginning: an empty word is full, an unknown one is limited."""
    if _is_beginning(stated, b"full"):
        return RuleMembership.FULL
    return RuleMembership.BOTH if _is_beginning(stated, b"both") else RuleMembership.LIMITED


#: Flag of opensm -> field of :class:`GroupFlags`, in the order in which it compares them.
_NUMBERS: Final[Mapping[bytes, str]] = {
    b"mtu": "mtu",
    b"rate": "rate",
    b"scope": "scopes",
    b"Q_Key": "q_key",
    b"TClass": "t_class",
    b"sl": "service_level",
    b"FlowLabel": "flow_label",
}
#: Flags with a largest value; a value that is not a valid number is left out.
_LIMITS: Final = {"service_level": 15, "flow_label": 0xFFFFF}


def _add_flag(head: PartitionDefinition, flag: bytes, value: bytes | None) -> PartitionDefinition:
    stated = (*head.stated, (_text_of(flag), None if value is None else _text_of(value)))
    head = attrs.evolve(head, stated=stated)
    flags = _set_group_flag(head.flags, flag, value)
    if flags is not None:
        return attrs.evolve(head, flags=flags)
    if _is_beginning(flag, b"ipoib"):
        return attrs.evolve(head, ipoib=True)
    if _is_beginning(flag, b"defmember"):
        memberships = (b"limited", b"both", b"full")
        if value is None or not any(_is_beginning(value, word) for word in memberships):
            return head
        return attrs.evolve(head, default=_membership_of(value))
    return attrs.evolve(head, first_index=True) if flag == b"indx0" else head


def _set_group_flag(flags: GroupFlags, flag: bytes, value: bytes | None) -> GroupFlags | None:
    """Return the flags of a multicast group with one more; None if the word is not such a flag."""
    for word, field in _NUMBERS.items():
        if _is_beginning(flag, word):
            return _set_number(flags, field, value)
    return None


def _set_number(flags: GroupFlags, field: str, value: bytes | None) -> GroupFlags:
    if value is None:
        return flags
    number, rest = read_number(value)
    number &= 0xFFFF_FFFF
    if field in _LIMITS:
        bad = not value or number > _LIMITS[field] or (rest and rest[0] not in _C_SPACES)
        return flags if bad else attrs.evolve(flags, **{field: number})
    if field == "scopes":
        return attrs.evolve(flags, scopes=flags.scopes | 1 << number) if 0 < number < 16 else flags
    return attrs.evolve(flags, **{field: number})
