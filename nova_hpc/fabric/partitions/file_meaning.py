# SPDX-License-Identifier: Apache-2.0
"""The P_Keys that opensm gives to ports for a file of partitions that it accepts.

Before opensm reads the file, all ports are limited members of the default partition, and its own
port is a full one (``opensm/osm_prtn.c``, ``prtn_make_default``). Then it applies the rules in
their order: the last rule on a port and a P_Key decides (``osm_prtn_add_port``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.partitions.keys import (
    DEFAULT_PKEY,
    Membership,
    format_guid,
    format_pkey,
    table_entry,
)
from nova_hpc.fabric.partitions.partition_text import (
    GroupFlags,
    PartitionDefinition,
    PartitionText,
    PortGroup,
    PortRule,
    RuleMembership,
)

_NAMES: Final = {"ca": "adapter", "switch": "switch", "router": "router"}
_KIND_OF_GROUP: Final = {
    PortGroup.ALL_CAS: "ca",
    PortGroup.ALL_SWITCHES: "switch",
    PortGroup.ALL_ROUTERS: "router",
}


@attrs.frozen
class RulePort:
    """A port with the properties that rules of a partitions file compare to select ports.

    :ivar guid: 0: one that no rule names.
    :ivar kind: ``ca``, ``switch`` or ``router``.
    :ivar manages: whether it is the subnet manager's own.
    """

    guid: int
    kind: str = "ca"
    manages: bool = False

    def is_in(self, who: int | PortGroup) -> bool:
        """Whether a rule for *who* (a GUID or a group of ports) applies to this port."""
        if isinstance(who, int):
            return who == self.guid
        if who is PortGroup.SELF:
            return self.manages
        return who is PortGroup.ALL or _KIND_OF_GROUP[who] == self.kind

    def __str__(self) -> str:
        if self.guid:
            return f"port {format_guid(self.guid)}"
        return "the subnet manager's port" if self.manages else f"every other {_NAMES[self.kind]}"


#: A port of each kind that no rule names, and the subnet manager's.
UNNAMED: Final = (RulePort(0, "ca"), RulePort(0, "switch"), RulePort(0, "router"))
MANAGER: Final = RulePort(0, manages=True)


@attrs.frozen
class PortEntries:
    """The effect of partition definitions on single ports: the entries of their P_Key tables."""

    definitions: tuple[PartitionDefinition, ...]
    #: opensm's option ``allow_both_pkeys``.
    allow_both: bool = False
    _of_groups: list[tuple[int, int, PortRule]] = attrs.field(init=False, factory=list)
    _of_guids: defaultdict[int, list[tuple[int, int, PortRule]]] = attrs.field(
        init=False, factory=lambda: defaultdict(list)
    )

    def __attrs_post_init__(self) -> None:
        rules = [
            (definition.pkey, rule) for definition in self.definitions for rule in definition.rules
        ]
        for number, (pkey, rule) in enumerate(rules):
            who = rule.who
            of = self._of_groups if isinstance(who, PortGroup) else self._of_guids[who]
            of.append((number, pkey, rule))

    def list_rules(self, port: RulePort) -> Iterator[tuple[int, PortRule]]:
        """Yield P_Key and rule of each rule that applies to *port*, in the order of the file."""
        own = self._of_guids.get(port.guid, [])
        for _, pkey, rule in sorted(self._of_groups + own, key=lambda row: row[0]):
            if port.is_in(rule.who):
                yield pkey, rule

    def entries_of(self, port: RulePort) -> frozenset[int]:
        """Return the entries of a port's P_Key table that result from these definitions only."""
        held: dict[int, frozenset[Membership]] = {}
        for pkey, rule in self.list_rules(port):
            full = rule.membership is not RuleMembership.LIMITED
            held[pkey] = frozenset((Membership.FULL if full else Membership.LIMITED,))
            if self.allow_both and rule.membership is RuleMembership.BOTH:
                held[pkey] = frozenset(Membership)
        return frozenset(
            table_entry(pkey, membership)
            for pkey, memberships in held.items()
            for membership in memberships
        )

    def table_of(self, port: RulePort) -> frozenset[int]:
        """Return the whole P_Key table of *port*, with opensm's entry for the default partition."""
        entries = self.entries_of(port)
        if any(entry & DEFAULT_PKEY == DEFAULT_PKEY for entry in entries):
            return entries
        base = Membership.FULL if port.manages else Membership.LIMITED
        return entries | {table_entry(DEFAULT_PKEY, base)}

    def named_ports(self) -> tuple[RulePort, ...]:
        """List the ports to check: each named one, an unnamed one of each kind, the manager's.

        A GUID does not show the kind of its port (channel adapter, switch, router). So it occurs
        once per kind if rules name kinds.
        """
        groups = {rule.who for _, _, rule in self._of_groups}
        kinds = ("ca", *(("switch", "router") if groups & _KIND_OF_GROUP.keys() else ()))
        named = tuple(RulePort(guid, kind) for guid in sorted(self._of_guids) for kind in kinds)
        return (*named, *UNNAMED, MANAGER)


def find_open_rule(entries: PortEntries, port: RulePort) -> PortRule | None:
    """Find the rule that makes *port* a full member of the default partition; else None."""
    full = table_entry(DEFAULT_PKEY, Membership.FULL)
    if full not in entries.entries_of(port):
        return None
    rules = [rule for pkey, rule in entries.list_rules(port) if pkey == DEFAULT_PKEY]
    return rules[-1]


def describe_properties(definitions: Iterable[PartitionDefinition]) -> Mapping[str, str]:
    """Collect the settings of a partition except its members, from all its definitions.

    :returns: name of the setting -> value, as text. The first definition with ``ipoib`` makes the
        broadcast group, and its numbers stay. The last definition sets the service level of paths.
    """
    properties: dict[str, str] = {}
    for definition in definitions:
        flags = definition.flags
        properties["sl of paths"] = str(flags.service_level)
        if definition.first_index:
            properties["indx0"] = "set"
        for scope in _list_scopes(flags.scopes) if definition.ipoib else ():
            name = f"the IPoIB group of scope {scope}"
            properties.setdefault(name, _say_flags(flags))
        for group in definition.groups:
            properties.setdefault(f"the group {group.mgid}", _say_flags(group.flags))
    return properties


def _say_flags(flags: GroupFlags) -> str:
    return (
        f"mtu={flags.mtu} rate={flags.rate} sl={flags.service_level} Q_Key={flags.q_key:#x} "
        f"TClass={flags.t_class} FlowLabel={flags.flow_label}"
    )


def _list_scopes(mask: int) -> tuple[int, ...]:
    return tuple(scope for scope in range(16) if mask >> scope & 1) or (2,)


def list_lost_properties(before: PartitionText, after: PartitionText) -> Iterator[str]:
    """Yield a text for each setting that a partition loses although it stays, except its members.

    Such a setting is an MTU or a multicast group.
    """
    kept = {definition.pkey for definition in after.definitions}
    for pkey in sorted({definition.pkey for definition in before.definitions} & kept):
        properties = describe_properties(_of_key(after, pkey))
        for name, value in describe_properties(_of_key(before, pkey)).items():
            after_value = properties.get(name, "gone")
            if after_value != value and (name, value) != ("sl of paths", "0"):
                yield f"partition {format_pkey(pkey)}: {name}: {value} becomes {after_value}"


def _of_key(text: PartitionText, pkey: int) -> Iterator[PartitionDefinition]:
    return (definition for definition in text.definitions if definition.pkey == pkey)


def list_lost_entries(port: object, before: frozenset[int], after: frozenset[int]) -> Iterator[str]:
    """Yield a text for each loss in a port's P_Key table: a P_Key, or full membership in one.

    :param port: its name in the texts.
    :param before: the entries of the table now.
    :param after: the entries after the agent's write.
    """
    for entry in sorted(before - after):
        beside = [other_entry for other_entry in after if (other_entry ^ entry) & DEFAULT_PKEY == 0]
        if beside and max(beside) > entry:
            continue  # It becomes a full member.
        becomes = f" becomes {format_pkey(beside[0])}" if beside else ""
        yield f"{port}: {format_pkey(entry)}{becomes}"
