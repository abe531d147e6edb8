# SPDX-License-Identifier: Apache-2.0
"""Who of a cluster is beside whom, from what its owner can see.

Nova gives each project its own word for a host; the node may write the project's own
words for its domains on the fabric. Both say who shares something, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.outside import host_names as names
from nova_hpc.outside.text import printable
from nova_hpc.wire.position import LEVELS
from nova_hpc_tools.cluster.members import member_names as named
from nova_hpc_tools.cluster.members.leave import UNKNOWN, Place
from nova_hpc_tools.cluster.members.model import Cluster, Member, number
from nova_hpc_tools.fabric.hostlist import compress

#: Kinds of domains, the widest first.
PATH: Final = (*LEVELS, "host")
#: How a matrix names what two members share; what is not there, nobody has told.
SHORT: Final = {
    "host": "HOST",
    "sub_domain": "SUB",
    "nvlink_domain": "NVL",
    "leaf": "LEAF",
    "block": "BLK",
    "spine": "SPN",
    "core": "CORE",
}
_MANY: Final = {
    "core": ("core", "cores"),
    "spine": ("spine", "spines"),
    "block": ("block", "blocks"),
    "leaf": ("leaf", "leaves"),
    "nvlink_domain": ("NVLink domain", "NVLink domains"),
    "sub_domain": ("sub-domain", "sub-domains"),
    "host": ("host", "hosts"),
}
APART: Final = "-"
SELF: Final = "X"


@attrs.frozen
class Seat:
    """One member and its domains.

    :ivar path: names of its domains in the order of :data:`PATH`; empty where unknown.
    """

    number: int
    member: Member
    path: tuple[str, ...]


@attrs.frozen
class Domain:
    """A domain and what of the cluster is in it."""

    level: str
    name: str
    domains: tuple[Domain, ...]
    seats: tuple[Seat, ...]

    @property
    def size(self) -> int:
        """How many members are in it."""
        return len(self.seats) + sum(each.size for each in self.domains)


def seats(cluster: Cluster) -> list[Seat]:
    """The members, those that are near each other one after the other.

    The largest domain comes first; ranks given in this order talk to their neighbours
    over the shortest ways.
    """
    found = [
        Seat(each, member, _path(member)) for each, member in number(cluster).by_number.items()
    ]
    return _flat(_domains(found, 0))


def _path(member: Member) -> tuple[str, ...]:
    named = [member.position.domains.get(level, UNKNOWN) for level in LEVELS]
    return (*named, member.host[:12])


def places(cluster: Cluster) -> dict[int, Place]:
    """Where each member is, for the choice of those that go."""
    return {seat.number: Place(seat.path, seat.member.failed) for seat in seats(cluster)}


def tree(cluster: Cluster) -> tuple[Domain, ...]:
    """The domains of the cluster, the largest first; unknown levels are left out."""
    return _named(_domains(seats(cluster), 0))


def shared(one: Seat, other: Seat) -> str:
    """The narrowest level that two members are known to share; empty: none."""
    for level, here, there in reversed(list(zip(PATH, one.path, other.path, strict=True))):
        if here != UNKNOWN and here == there:
            return level
    return ""


def spans(cluster: Cluster) -> dict[str, int]:
    """How many domains of each level the cluster is in; levels that nobody knows are missing."""
    found = {}
    for at, level in enumerate(PATH):
        names = {seat.path[at] for seat in seats(cluster)}
        if names and UNKNOWN not in names:
            found[level] = len(names)
    return found


def as_tree(cluster: Cluster) -> str:
    """Lines for people."""
    lines = [f"{cluster.name}: {_spans(spans(cluster))}"]
    _branches(tree(cluster), "", lines)
    return "\n".join(lines) + "\n"


def as_matrix(cluster: Cluster) -> str:
    """What each two members share, in the manner of ``nvidia-smi topo``."""
    order = seats(cluster)
    rows = [["", *(seat.member.shown for seat in order)]]
    for one in order:
        row = [SELF if one is other else SHORT.get(shared(one, other), APART) for other in order]
        rows.append([one.member.shown, *row])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    lines += ["", f"{SELF} itself, {APART} nothing that is known"]
    lines += [f"{short} one {_MANY[level][0]}" for level, short in SHORT.items()]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _spans(found: Mapping[str, int]) -> str:
    if not found:
        return "nothing is known of where its members are"
    return ", ".join(f"{count} {_MANY[level][count != 1]}" for level, count in found.items())


def _domains(some: Sequence[Seat], level: int) -> tuple[Domain, ...]:
    groups: dict[str, list[Seat]] = {}
    for seat in sorted(some, key=lambda seat: seat.number):
        groups.setdefault(seat.path[level], []).append(seat)
    last = level + 1 == len(PATH)
    found = [
        Domain(
            level=PATH[level],
            name=name,
            domains=() if last else _domains(inside, level + 1),
            seats=tuple(inside) if last else (),
        )
        for name, inside in groups.items()
    ]
    return tuple(sorted(found, key=lambda domain: (-domain.size, _first(domain))))


def _first(domain: Domain) -> int:
    """The lowest number of a member: names say nothing, so they order nothing."""
    inside = [seat.number for seat in domain.seats]
    return min([*inside, *map(_first, domain.domains)])


def _flat(domains: Sequence[Domain]) -> list[Seat]:
    found: list[Seat] = []
    for domain in domains:
        found += [*domain.seats, *_flat(domain.domains)]
    return found


def _named(domains: Sequence[Domain]) -> tuple[Domain, ...]:
    """The same without domains that nobody knows: what is in them moves up."""
    found: list[Domain] = []
    for domain in domains:
        inside = _named(domain.domains)
        if domain.name == UNKNOWN and not domain.seats:
            found += inside
        else:
            found.append(attrs.evolve(domain, domains=inside))
    return tuple(found)


def _branches(domains: Sequence[Domain], indent: str, lines: list[str]) -> None:
    for at, domain in enumerate(domains):
        last = at + 1 == len(domains)
        title = f"{_MANY[domain.level][0]} {printable(domain.name) or '(unknown)'}"
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{title}")
        below = indent + ("   " if last else "│  ")
        _branches(domain.domains, below, lines)
        for place, seat in enumerate(domain.seats):
            mark = "└─ " if place + 1 == len(domain.seats) else "├─ "
            lines.append(f"{below}{mark}{seat.member.shown}")


def check(cluster: Cluster) -> None:
    """See that members and domains can be named to another program.

    :raises nova_hpc.outside.host_names.OutsideError: naming the server, with the cure.
    """
    found = seats(cluster)
    named.check_names((seat.member.id, seat.member.name) for seat in found)
    for seat in found:
        named.check_domains(seat.member.id, seat.member.position.domains)


def as_slurm(cluster: Cluster, nodes: Collection[str] = ()) -> str:
    """The tree for Slurm's ``topology.conf``: leaves, and above them what is known.

    Members of which no leaf is known are below one switch of their own.

    :param nodes: all nodes that Slurm has of the cluster: those that are no members now are
        below one more switch, since Slurm refuses every job that needs a node which is not in
        the file, and members that Slurm has not are left out. (): the members alone.
    :raises nova_hpc.outside.host_names.OutsideError: a name is none of a node or a switch.
    """
    lines: list[str] = []
    check(cluster)
    for node in nodes:
        names.host_name(node, "it is one of the nodes that were named")
    members = [seat for seat in seats(cluster) if not nodes or seat.member.name in nodes]
    tops = _switches(cluster, 0, members, lines)
    missing = set(nodes) - {seat.member.name for seat in members}
    if missing:
        tops.append(f"{cluster.name}-none")
        lines.append(f"SwitchName={tops[-1]} Nodes={compress(missing)}")
    if len(tops) > 1 or nodes:
        lines.append(f"SwitchName={cluster.name}-all Switches={','.join(tops)}")
    return "\n".join(lines) + "\n"


#: Levels that are switches to Slurm, the widest first, by their place in a path.
_SWITCHES: Final = tuple(PATH.index(level) for level in ("spine", "block", "leaf"))


def _switches(cluster: Cluster, depth: int, some: Sequence[Seat], lines: list[str]) -> list[str]:
    """Write the switches over *some*; the names of the uppermost."""
    at = _SWITCHES[depth]
    last = depth + 1 == len(_SWITCHES)
    groups: dict[str, list[Seat]] = {}
    for seat in some:
        groups.setdefault(seat.path[at], []).append(seat)
    tops: list[str] = []
    for domain, inside in groups.items():
        below = [] if last else _switches(cluster, depth + 1, inside, lines)
        # A level that nobody knows is no switch, but a node has to be below one.
        if domain == UNKNOWN and not last:
            tops += below
            continue
        first = min(seat.number for seat in inside)
        name = f"{cluster.name}-{domain or f'unknown-{first}'}"
        what = f"Switches={','.join(below)}"
        if last:
            what = f"Nodes={','.join(seat.member.name for seat in inside)}"
        lines.append(f"SwitchName={name} {what}")
        tops.append(name)
    return tops
