# SPDX-License-Identifier: Apache-2.0
"""The rule for the default partition: all ports reach the subnet manager, not one another.

The agent sets the memberships. The multicast groups belong to the site and stay as they were: the
first definition with ``ipoib`` sets MTU and rate for IPoIB on the whole fabric.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from nova_hpc.fabric.partitions.keys import DEFAULT_PKEY
from nova_hpc.fabric.partitions.opensm_grammar import parse_partitions
from nova_hpc.fabric.partitions.partition_text import (
    GroupFlags,
    PartitionDefinition,
    PartitionGrammarError,
    UncertainGrammarError,
)

#: Field of :class:`GroupFlags` -> opensm's flag.
_WORDS: Final = {
    "mtu": "mtu",
    "rate": "rate",
    "service_level": "sl",
    "q_key": "Q_Key",
    "t_class": "TClass",
    "flow_label": "FlowLabel",
}
_PLAIN: Final = GroupFlags()


@attrs.frozen
class DefaultRule:
    """The settings of the default partition, without its members.

    :ivar groups: MGID and flags of each group except IPoIB's, as written. Each has at least one
        flag: opensm reads the bytes behind the line as the flags of a group without any.
    """

    ipoib: bool = True
    first_index: bool = False
    flags: GroupFlags = _PLAIN
    groups: tuple[tuple[str, str], ...] = ()

    def render(self) -> str:
        """Return the definition of the default partition in the syntax of opensm's file."""
        head = "Default=0x7fff" + (", ipoib" if self.ipoib else "")
        head += ", indx0" if self.first_index else ""
        for field, word in _WORDS.items():
            value = getattr(self.flags, field)
            head += f", {word}={value}" if value != getattr(_PLAIN, field) else ""
        scopes = [scope for scope in range(16) if self.flags.scopes >> scope & 1]
        head += "".join(f", scope={scope}" for scope in scopes)
        members = "ALL=limited, SELF=full ;\n"
        if not self.groups:
            return f"{head} : {members}"
        groups = "".join(f"mgid={mgid}, {flags}\n" for mgid, flags in self.groups)
        return f"{head} :\n{groups}{members}"


def take_default_rule(definitions: Iterable[PartitionDefinition]) -> DefaultRule:
    """Merge a file's definitions of the default partition into one rule with their settings.

    :param definitions: from a file that opensm accepts.
    """
    rules = [rule for rule in definitions if rule.pkey == DEFAULT_PKEY]
    first = next((rule for rule in rules if rule.ipoib), None)
    groups: dict[str, str] = {}
    for group in (group for rule in rules for group in rule.groups):
        groups.setdefault(group.mgid, group.stated or f"rate={group.flags.rate}")
    return DefaultRule(
        ipoib=first is not None,
        first_index=any(rule.first_index for rule in rules),
        flags=_flags_of(rules if first is None else [first]),
        groups=tuple(groups.items()),
    )


def _flags_of(rules: list[PartitionDefinition]) -> GroupFlags:
    return rules[-1].flags if rules else _PLAIN


def read_default_rule(text: str | None) -> DefaultRule:
    """Parse the settings of the default partition in a file's text.

    They are opensm's own defaults if opensm does not accept the file.
    """
    try:
        return take_default_rule(parse_partitions(text or "").definitions)
    except (PartitionGrammarError, UncertainGrammarError):
        return DefaultRule()
