# SPDX-License-Identifier: Apache-2.0
"""The meaning of a ``partitions.conf`` as data: definitions, rules, groups and flags.

:mod:`nova_hpc.fabric.partitions.opensm_grammar` parses the text.
"""

from __future__ import annotations

import enum

import attrs


class PartitionGrammarError(ValueError):
    """opensm would reject the file, and then give every port full membership of 0x7fff."""


class FatalFileError(PartitionGrammarError):
    """The file makes opensm crash: P_Key tables stay, and nothing manages the fabric."""


class EmptyFileError(PartitionGrammarError):
    """The file has no definition; opensm rejects it, too."""


class UncertainGrammarError(ValueError):
    """It is uncertain how opensm reads the file: releases differ, or memory decides.

    :ivar candidates: the readings of releases that take the file, if only their buffers differ.
    :ivar may_drop: whether a release may also drop the file.
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
    """A rule's membership for its ports; ``both`` is ``full`` without ``allow_both_pkeys``."""

    LIMITED = "limited"
    FULL = "full"
    BOTH = "both"


class PortGroup(enum.StrEnum):
    """opensm's words for many ports, or its own, in the order in which it compares them."""

    ALL = "ALL"
    ALL_CAS = "ALL_CAS"
    ALL_SWITCHES = "ALL_SWITCHES"
    ALL_ROUTERS = "ALL_ROUTERS"
    SELF = "SELF"


@attrs.frozen
class PortRule:
    """One member in a partition definition, as written in the file.

    :ivar who: a port GUID, or a word for a group of ports.
    :ivar word: its text in the file.
    :ivar stated: the text of the membership in the file; None for the definition's default.
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
    """A multicast group that a partition definition creates.

    :ivar stated: the text of its flags in the file.
    :ivar flags: its flags, and the partition's for those that it lacks.
    """

    line: int
    mgid: str
    stated: str
    flags: GroupFlags


@attrs.frozen
class PartitionDefinition:
    """One partition definition in the file, from its name to its semicolon.

    :ivar key: the text of the P_Key in the file; None if it is found by the name, or made.
    :ivar made: whether opensm makes the P_Key, which then depends on earlier definitions.
    :ivar stated: flags and values as in the file.
    :ivar left_out: line and text of members that opensm leaves out silently.
    :ivar ended: False if the file ends before its semicolon; opensm takes it as it is.
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
    """The content of a file of partitions, as opensm reads it.

    :ivar strayed: lines at whose end opensm reads on in the rest of an earlier line.
    """

    definitions: tuple[PartitionDefinition, ...]
    strayed: tuple[int, ...] = ()
