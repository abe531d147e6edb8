# SPDX-License-Identifier: Apache-2.0
"""The administrator's own partitions: text in the syntax of opensm's ``partitions.conf``.

It is read with opensm's own grammar (:mod:`nova_hpc.fabric.partitions.opensm_grammar`). Text with
a doubt is refused: an abbreviation, a P_Key that opensm makes, a flag that it leaves out. The text
goes into opensm's file as it is, or not at all.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from nova_hpc.fabric.partitions.default_rule import DefaultRule
from nova_hpc.fabric.partitions.file_meaning import PortEntries, RulePort
from nova_hpc.fabric.partitions.keys import DEFAULT_PKEY, format_guid, format_pkey
from nova_hpc.fabric.partitions.opensm_grammar import parse_partitions
from nova_hpc.fabric.partitions.partition_text import (
    EmptyFileError,
    MulticastGroup,
    PartitionDefinition,
    PartitionGrammarError,
    PortGroup,
    PortRule,
    RuleMembership,
    UncertainGrammarError,
)

#: Bytes of a line, its end not counted. opensm reads into 4,096 or 8,192, by release.
LONGEST_LINE: Final = 4000
#: Comments that begin like this are the agent's own.
RESERVED_COMMENT: Final = "# nova-hpc: "

_NAME: Final = re.compile(r"(?:[A-Za-z_][\w.-]*)?", re.ASCII)
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|0|[1-9][0-9]*", re.ASCII)
_NUMERIC_FLAGS: Final = frozenset(("mtu", "rate", "sl", "scope", "Q_Key", "TClass", "FlowLabel"))
#: They may be full: nothing of a project has their ports.
_SERVERS: Final = (PortGroup.SELF, PortGroup.ALL_SWITCHES)


class OwnPartitionsError(ValueError):
    """The administrator's own partitions cannot be used. The text names the place and the
    reason.
    """


@attrs.frozen
class OwnPartitions:
    """The administrator's own partitions: their definitions and the text of their file.

    :ivar default: the content of the default partition except its members.
    """

    text: str = ""
    partitions: tuple[PartitionDefinition, ...] = ()
    default: DefaultRule = attrs.field(factory=DefaultRule)
    _entries: PortEntries = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_entries", PortEntries(self.partitions))

    def pkeys(self) -> frozenset[int]:
        """Return the P_Keys of the administrator's partitions, which no network may have.

        The default partition is not one of them.
        """
        return frozenset(each.pkey for each in self.partitions) - {DEFAULT_PKEY}

    def entries_of(self, guid: int, kind: str = "ca", manages: bool = False) -> frozenset[int]:
        """Return the entries of a port's P_Key table that result from these partitions.

        The last rule on a port and a P_Key holds, as for opensm (``osm_prtn_add_port``).

        :param kind: of the port: ``ca``, ``switch`` or ``router``.
        :param manages: whether the port is the subnet manager's.
        """
        return self._entries.entries_of(RulePort(guid, kind, manages))

    def with_default(self, in_force: DefaultRule) -> OwnPartitions:
        """Return a copy with the default partition's flags of the own file, else of *in_force*."""
        for each in self.partitions:
            if each.pkey == DEFAULT_PKEY and each.ipoib:
                default = attrs.evolve(in_force, ipoib=True, flags=each.flags)
                return attrs.evolve(self, default=default)
        return attrs.evolve(self, default=in_force)


def parse_own_partitions(text: str) -> OwnPartitions:
    """Read the administrator's own partitions.

    :raises OwnPartitionsError: a line is not understood, is too long, or opens the fabric.
    """
    _check_lines(text)
    try:
        read = parse_partitions(text)
    except EmptyFileError:
        return OwnPartitions(text)
    except PartitionGrammarError as error:
        raise OwnPartitionsError(f"{error}: opensm opens the whole fabric then, or ends") from error
    except UncertainGrammarError as error:
        raise OwnPartitionsError(f"{error}: write one definition after the other") from error
    if read.strayed:
        raise OwnPartitionsError(
            f"line {read.strayed[0]}: opensm reads on behind the semicolon, in the rest of an "
            "earlier line, and may open the whole fabric: write the semicolon behind a member"
        )
    for partition in read.definitions:
        _check_definition(partition)
    return OwnPartitions(text, read.definitions)


def find_long_line(text: str) -> int | None:
    """Return the number of the first line that may be too long for opensm; None if all fit.

    :param text: the file; bytes that are not valid UTF-8 are surrogates. Comments count.
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
                "this file contains only the operator's own partitions"
            )
        plain = line.partition("#")[0]
        if not plain.isascii() or any(ord(sign) < 32 and sign != "\t" for sign in plain):
            raise OwnPartitionsError(
                f"line {number} has a character that opensm cannot read (a carriage return, or "
                "not ASCII): save the file as plain text with line ends of Unix"
            )
        if "\0" in line:
            raise OwnPartitionsError(f"line {number} has a NUL: opensm ends the line there")


def _check_definition(partition: PartitionDefinition) -> None:
    """Refuse a definition that opensm takes, but that is certainly a mistake.

    :raises OwnPartitionsError: names the line.
    """
    number = partition.line
    if not partition.ended:
        raise OwnPartitionsError(
            f"the definition of line {number} does not end: its semicolon is missing, or the file "
            "is cut off"
        )
    if _NAME.fullmatch(partition.name) is None:
        raise OwnPartitionsError(
            f"line {number}: {partition.name[:60]!r} is no name of a partition"
        )
    if partition.key is None:
        raise OwnPartitionsError(
            f"line {number}: partition {partition.name!r} has no P_Key, so opensm would take one "
            f"that a network may have; write {partition.name}=0x...."
        )
    if _read_number(partition.key, f"line {number}: P_Key") > 0xFFFF or partition.made:
        raise OwnPartitionsError(f"line {number}: {partition.key} is no P_Key: 0x0001 to 0x7fff")
    for word, value in partition.stated:
        _check_flag(word, value, number)
    for line, text in partition.left_out:
        raise OwnPartitionsError(
            f"line {line}: {text[:60]!r} is no number, and opensm leaves it out"
        )
    for group in partition.groups:
        _check_group(group)
    for rule in partition.rules:
        _check_rule(rule)
        _refuse_open_rule(partition, rule)


def _check_flag(word: str, value: str | None, number: int) -> None:
    if word == "defmember":
        _check_membership(value or "", number)
    elif word in _NUMERIC_FLAGS and value is not None:
        _read_number(value, f"line {number}: {word}")
    elif word not in ("ipoib", "indx0") or value is not None:
        flag = word if value is None else f"{word}={value}"
        raise OwnPartitionsError(
            f"line {number}: opensm does not support the flag {flag[:60]!r} and would ignore it "
            "silently"
        )


def _check_group(group: MulticastGroup) -> None:
    for flag in group.stated.split(", ") if group.stated else ():
        word, _, value = flag.partition("=")
        if word not in _NUMERIC_FLAGS:
            raise OwnPartitionsError(f"line {group.line}: {flag[:60]!r} is no flag of a group")
        _read_number(value, f"line {group.line}: {word}")


def _check_rule(rule: PortRule) -> None:
    if rule.stated is not None:
        _check_membership(rule.stated, rule.line)
    elif rule.membership is RuleMembership.BOTH:
        _check_membership("both", rule.line)
    if isinstance(rule.who, PortGroup) and rule.word == rule.who:
        return
    what = f"line {rule.line}: port GUID (or {', '.join(PortGroup)})"
    if not 0 < _read_number(rule.word, what) < 1 << 64:
        raise OwnPartitionsError(f"line {rule.line}: {rule.word} is no port GUID")


def _check_membership(text: str, number: int) -> None:
    if text not in ("full", "limited"):
        raise OwnPartitionsError(
            f"line {number}: {text[:60]!r} is no membership: write full or limited (opensm "
            "reads anything else according to its options)"
        )


def _read_number(text: str, what: str) -> int:
    """Read a number as opensm does; octal numbers are refused, as they are certainly mistakes."""
    if _NUMBER.fullmatch(text) is None:
        raise OwnPartitionsError(f"{what}: {text[:60]!r} is no number")
    return int(text, 0)


def _refuse_open_rule(partition: PartitionDefinition, rule: PortRule) -> None:
    """Refuse a rule that lets all ports reach one another."""
    if isinstance(rule.who, int):
        return
    if partition.pkey == DEFAULT_PKEY:
        raise OwnPartitionsError(
            f"line {rule.line}: {rule.who} in the default partition: the agent writes that one "
            "(all limited, the subnet manager full); a port that serves all others can be added "
            f"GUID by GUID, such as {format_guid(0x2C90000200001)}=full"
        )
    if rule.membership is not RuleMembership.LIMITED and rule.who not in _SERVERS:
        raise OwnPartitionsError(
            f"line {rule.line}: {rule.who}=full in partition {format_pkey(partition.pkey)} opens "
            "the fabric: all reach all. Make them limited, and those full that serve others, GUID "
            f"by GUID, such as {format_guid(0x2C90000200001)}=full"
        )
