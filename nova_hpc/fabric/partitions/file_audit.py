# SPDX-License-Identifier: Apache-2.0
"""What a file of partitions that others may have written makes of the fabric.

:mod:`nova_hpc.fabric.partitions.own_partitions` reads what the administrator gives the agent, and
takes only what leaves no doubt. Here any file is read that opensm may have in force before an
agent is there, as far as it says who is a full member of what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.partitions.backends.base import AuditRow, AuditState
from nova_hpc.fabric.partitions.keys import DEFAULT_PKEY, format_pkey
from nova_hpc.fabric.partitions.own_partitions import RESERVED_COMMENT, find_long_line

#: Names of the rows.
DEFAULT_PARTITION: Final = "default_partition"
OWN_PARTITIONS: Final = "own_partitions"
_ISOLATION: Final = "SDN04-04"
_DEFAULT_CURE: Final = (
    "write into the file of partitions: Default=0x7fff, ipoib : ALL=limited, SELF=full ;"
)
_COMMENT: Final = re.compile(r"#.*")

#: The state, and what was found.
_Verdict = tuple[AuditState, str]


def audit_default_partition(partitions_text: str | None) -> AuditRow:
    """Whether everybody but the subnet manager is a limited member of 0x7fff.

    opensm makes everybody a full member where the file is missing, empty or cannot be parsed.
    An explicit rule is asked for, although man opensm has the same for a file without one.

    :param partitions_text: None: there is no such file.
    """
    verdict = _judge_default_partition(partitions_text)
    cure = "" if verdict[0] is AuditState.MET else _DEFAULT_CURE
    return AuditRow(DEFAULT_PARTITION, _ISOLATION, *verdict, cure, needed=True)


def _judge_default_partition(text: str | None) -> _Verdict:
    if text is None:
        return AuditState.NOT_MET, "no file of partitions: every port is a full member of 0x7fff"
    number = find_long_line(text)
    if number is not None:
        # opensm reads into 4 or 8 KiB, by release, and drops a file with a longer line.
        return AuditState.NOT_MET, f"line {number} is too long for opensm, which drops the file"
    rules = [rule for rule in _split_rules(text) if rule.pkey == DEFAULT_PKEY]
    if not rules:
        return AuditState.NOT_MET, "no rule for 0x7fff"
    full = [name for rule in rules for name in rule.full_members()]
    groups = sorted({name for name in full if name.startswith("ALL")})
    if groups:
        return AuditState.NOT_MET, f"{', '.join(groups)}: full members of 0x7fff"
    if not any("ALL" in rule.members for rule in rules):
        return AuditState.NOT_MET, "no ALL=limited in the rule for 0x7fff"
    ports = [name for name in full if name != "SELF"]
    if ports:
        return AuditState.MET, f"limited, but for {len(ports)} port(s) that the file names"
    return AuditState.MET, "limited for all but the subnet manager"


@attrs.frozen
class _PartitionRule:
    """One definition of the file of partitions.

    :ivar members: GUID or keyword -> ``full``, ``limited`` or ``both``.
    """

    pkey: int | None
    members: Mapping[str, str]

    def full_members(self) -> list[str]:
        return [name for name, membership in self.members.items() if membership != "limited"]


def _split_rules(text: str) -> Iterator[_PartitionRule]:
    plain = "\n".join(_COMMENT.sub("", line) for line in text.split("\n"))
    for statement in plain.split(";"):
        head, colon, tail = statement.partition(":")
        if not colon:
            continue
        name, *flags = (word.strip() for word in head.split(","))
        default = "limited"
        for flag in flags:
            if flag.replace(" ", "").startswith("defmember="):
                default = _membership_of(flag.partition("=")[2])
        members: dict[str, str] = {}
        for word in re.split(r"[,\n]", tail):
            member, equals, membership = (part.strip() for part in word.partition("="))
            if member and not member.startswith("mgid"):
                stated = _membership_of(membership) if equals else default
                # Of two memberships of one port opensm keeps the greater.
                if members.get(member) != "full":
                    members[member] = stated
        yield _PartitionRule(_pkey_of(name), members)


def _membership_of(text: str) -> str:
    word = text.strip().lower()
    # opensm takes beginnings of the words, e.g. "limi".
    return (
        "limited" if word and "limited".startswith(word) else "both" if word == "both" else "full"
    )


def _pkey_of(name: str) -> int | None:
    number = parse_number(name.partition("=")[2])
    if number is not None:
        return number & DEFAULT_PKEY
    return DEFAULT_PKEY if name.partition("=")[0].strip() == "Default" else None


def parse_number(text: str) -> int | None:
    """Parse a number as opensm does, but for octal ones; None: it is none."""
    word = text.strip()
    if not re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}", word):
        return None
    return int(word, 16 if word[:2].lower() == "0x" else 10)


def audit_own_partitions(
    partitions_text: str | None, own_text: str | None, own_path: str
) -> AuditRow:
    """Whether the agent would take partitions away that are not its own.

    It writes the file whole. So what an administrator has in the file that is in force has to
    be in the file of own partitions before the agent is started for the first time.

    :param own_text: the file of own partitions; None: there is none.
    :param own_path: where that is.
    """
    state, reason, cure = AuditState.MET, "none would be lost", ""
    if not (partitions_text or "").startswith(RESERVED_COMMENT):
        kept = {rule.pkey for rule in _split_rules(own_text or "")} | {DEFAULT_PKEY}
        lost = [rule for rule in _split_rules(partitions_text or "") if rule.pkey not in kept]
        if lost:
            names = sorted({_name_rule(rule) for rule in lost})
            state, reason = AuditState.NOT_MET, f"not the agent's: {', '.join(names)}"
            cure = f"move these partitions into {own_path}: the agent writes the file whole"
    return AuditRow(OWN_PARTITIONS, _ISOLATION, state, reason, cure, needed=True)


def _name_rule(rule: _PartitionRule) -> str:
    return "one without a P_Key" if rule.pkey is None else format_pkey(rule.pkey)
