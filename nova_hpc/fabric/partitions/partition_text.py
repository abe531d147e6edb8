# SPDX-License-Identifier: Apache-2.0
"""The meaning of a ``partitions.conf`` as data: definitions, rules, groups and flags.

:mod:`nova_hpc.fabric.partitions.opensm_grammar` makes it of text.
"""

from __future__ import annotations

import enum

import attrs


class PartitionGrammarError(ValueError):
    """opensm would not take the file, and gives every port full membership of 0x7fff."""


class FatalFileError(PartitionGrammarError):
    """opensm ends with a segmentation fault: tables stay, and nothing manages the fabric."""


class EmptyFileError(PartitionGrammarError):
    """It has no definition, and opensm drops it as well."""


class UncertainGrammarError(ValueError):
    """Nothing in the file decides what opensm makes of it.

    :ivar candidates: what releases that take the file make of it, where only their buffers differ.
    :ivar may_drop: whether a release may drop the file as well.
    """

    def __init__(
        self,
        problem: str,
        candidates: tuple[PartitionText, ...] = (),
        *,
        may_drop: bool = True,
    ) -> None:
        super().__init__(problem)
        self.candidates = candidates
        self.may_drop = may_drop


class RuleMembership(enum.StrEnum):
    """What a rule gives its ports; ``both`` is ``full`` unless ``allow_both_pkeys`` is set."""

    LIMITED = "limited"
    FULL = "full"
    BOTH = "both"


class PortGroup(enum.StrEnum):
    """opensm's words for many ports, or for its own; in the order in which it compares them."""

    ALL = "ALL"
    ALL_CAS = "ALL_CAS"
    ALL_SWITCHES = "ALL_SWITCHES"
    ALL_ROUTERS = "ALL_ROUTERS"
    SELF = "SELF"


@attrs.frozen
class PortRule:
    """One member as stated.

    :ivar who: a port GUID, or a word for many.
    :ivar word: as it is written.
    :ivar stated: the membership as it is written; None: the definition's default.
    """

    line: int
    who: int | PortGroup
    membership: RuleMembership
    word: str
    stated: str | None = None


@attrs.frozen
class GroupFlags:
    """The flags of a definition that concern its multicast groups; numbers as opensm has them.

    :ivar scopes: a bit for each.
    """

    mtu: int = 4
    rate: int = 3
    service_level: int = 0
    scopes: int = 0
    q_key: int = 0
    t_class: int = 0
    flow_label: int = 0


@attrs.frozen
class MulticastGroup:
    """A group that the file makes.

    :ivar stated: its flags as they are written.
    :ivar flags: those, and the partition's where it has none of its own.
    """

    line: int
    mgid: str
    stated: str
    flags: GroupFlags


@attrs.frozen
class PartitionDefinition:
    """One definition, from its name to its semicolon.

    :ivar key: the P_Key as it is written; None: it is found by the name, or made.
    :ivar made: whether opensm makes one, which then depends on what it has had before.
    :ivar stated: flags as they are written, with their values.
    :ivar left_out: line and text of members that opensm leaves out without a word.
    :ivar ended: False: the file ends before its semicolon; opensm takes it as it is.
    """

    line: int
    name: str
    pkey: int
    key: str | None
    made: bool
    default: RuleMembership
    flags: GroupFlags
    ipoib: bool
    first_index: bool
    stated: tuple[tuple[str, str | None], ...]
    rules: tuple[PortRule, ...] = ()
    groups: tuple[MulticastGroup, ...] = ()
    left_out: tuple[tuple[int, str], ...] = ()
    ended: bool = False


@attrs.frozen
class PartitionText:
    """What opensm makes of a file.

    :ivar strayed: lines at whose end opensm reads on in what an earlier line has left.
    """

    definitions: tuple[PartitionDefinition, ...]
    strayed: tuple[int, ...] = ()
