# SPDX-License-Identifier: Apache-2.0
"""The neighbours of each member of a cluster, from records that the cluster's owner can read.

Nova gives each project its own identifiers of hosts. A node may give each project its own names
of domains on the fabric. Both show only which members share a host or domain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc_client.cluster.members import member_names
from nova_hpc_client.cluster.members.leave import UNKNOWN, MemberPlace
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember, number_members
from nova_hpc_common.output.hostlist import compress_hostlist
from nova_hpc_common.outside import host_names
from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire.position import LEVELS

#: Kinds of domains, the widest first.
PATH: Final = (*LEVELS, "host")
#: Level -> its name in a matrix; a missing level is unknown.
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
class MemberSeat:
    """One member and its domains.

    :ivar path: names of its domains in the order of :data:`PATH`; "" if unknown.
    """

    number: int
    member: ClusterMember
    path: tuple[str, ...]


@attrs.frozen
class ClusterDomain:
    """A domain, and the part of the cluster inside it.

    :ivar domains: narrower domains, empty in a host.
    :ivar seats: members, only in a host.
    """

    level: str
    name: str
    domains: tuple[ClusterDomain, ...]
    seats: tuple[MemberSeat, ...]

    @property
    def size(self) -> int:
        """The number of members in it."""
        return len(self.seats) + sum(domain.size for domain in self.domains)


def order_seats_by_nearness(cluster: Cluster) -> list[MemberSeat]:
    """Order the members by their nearness: members of one domain are neighbours in the list.

    The largest domain comes first. MPI ranks that are assigned in this order reach their neighbours
    over the shortest paths.
    """
    unordered = [
        MemberSeat(member_number, member, _domain_path_of(member))
        for member_number, member in number_members(cluster).by_number.items()
    ]
    return _flatten_seats(_group_seats_by_domain(unordered, 0))


def _domain_path_of(member: ClusterMember) -> tuple[str, ...]:
    named = [member.position.domains.get(level, UNKNOWN) for level in LEVELS]
    return (*named, member.host[:12])


def member_places_of(cluster: Cluster) -> dict[int, MemberPlace]:
    """Return number of a member -> its place, for the choice of the members to remove."""
    return {
        seat.number: MemberPlace(seat.path, seat.member.failed, seat.member.rejected)
        for seat in order_seats_by_nearness(cluster)
    }


def build_domain_tree(cluster: Cluster) -> tuple[ClusterDomain, ...]:
    """Build the tree of the cluster's domains, the largest first, without unknown names."""
    return _drop_unknown_domains(_group_seats_by_domain(order_seats_by_nearness(cluster), 0))


def narrowest_shared_level(first: MemberSeat, second: MemberSeat) -> str:
    """Return the narrowest level that two members are known to share; "" if there is none."""
    for level, first_name, second_name in reversed(
        list(zip(PATH, first.path, second.path, strict=True))
    ):
        if first_name != UNKNOWN and first_name == second_name:
            return level
    return ""


def count_spanned_domains(cluster: Cluster) -> dict[str, int]:
    """Return level -> number of its domains with members of the cluster, without unknown levels."""
    counts = {}
    for at, level in enumerate(PATH):
        names = {seat.path[at] for seat in order_seats_by_nearness(cluster)}
        if names and UNKNOWN not in names:
            counts[level] = len(names)
    return counts


def format_cluster_tree(cluster: Cluster) -> str:
    """Format the tree of domains and members, as lines for people."""
    lines = [f"{cluster.name}: {_format_spans(count_spanned_domains(cluster))}"]
    _append_branches(build_domain_tree(cluster), "", lines)
    return "\n".join(lines) + "\n"


def format_nearness_matrix(cluster: Cluster) -> str:
    """Format the domain that each two members share, in the manner of ``nvidia-smi topo``."""
    order = order_seats_by_nearness(cluster)
    rows = [["", *(seat.member.shown for seat in order)]]
    for row_seat in order:
        row = [
            SELF
            if row_seat is column_seat
            else SHORT.get(narrowest_shared_level(row_seat, column_seat), APART)
            for column_seat in order
        ]
        rows.append([row_seat.member.shown, *row])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    lines += ["", f"{SELF} itself, {APART} nothing that is known"]
    lines += [f"{short} one {_MANY[level][0]}" for level, short in SHORT.items()]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _format_spans(counts: Mapping[str, int]) -> str:
    if not counts:
        return "nothing is known of where its members are"
    return ", ".join(f"{count} {_MANY[level][count != 1]}" for level, count in counts.items())


def _group_seats_by_domain(some: Sequence[MemberSeat], level: int) -> tuple[ClusterDomain, ...]:
    groups: dict[str, list[MemberSeat]] = {}
    for seat in sorted(some, key=lambda seat: seat.number):
        groups.setdefault(seat.path[level], []).append(seat)
    last = level + 1 == len(PATH)
    domains = [
        ClusterDomain(
            level=PATH[level],
            name=name,
            domains=() if last else _group_seats_by_domain(inside, level + 1),
            seats=tuple(inside) if last else (),
        )
        for name, inside in groups.items()
    ]
    return tuple(sorted(domains, key=lambda domain: (-domain.size, _lowest_number_of(domain))))


def _lowest_number_of(domain: ClusterDomain) -> int:
    """Return the lowest number of a member in a domain, to sort domains whatever their names."""
    inside = [seat.number for seat in domain.seats]
    return min([*inside, *map(_lowest_number_of, domain.domains)])


def _flatten_seats(domains: Sequence[ClusterDomain]) -> list[MemberSeat]:
    flat_seats: list[MemberSeat] = []
    for domain in domains:
        flat_seats += [*domain.seats, *_flatten_seats(domain.domains)]
    return flat_seats


def _drop_unknown_domains(domains: Sequence[ClusterDomain]) -> tuple[ClusterDomain, ...]:
    """Return the same domains without unknown ones, whose inner domains move up one level."""
    kept: list[ClusterDomain] = []
    for domain in domains:
        inside = _drop_unknown_domains(domain.domains)
        if domain.name == UNKNOWN and not domain.seats:
            kept += inside
        else:
            kept.append(attrs.evolve(domain, domains=inside))
    return tuple(kept)


def find_shared_mib(domain: ClusterDomain) -> int:
    """Return the MiB of shared memory each member on a host may contribute; 0 if they share none.

    Nova's records show that members are on one host, are in one server group, and have a flavor
    with shared memory. Only the guests show if the host provided it (``nova-hpc-guest peers``).
    """
    if domain.level != "host" or domain.name == UNKNOWN:
        return 0
    sizes = [
        seat.member.shared_mib
        for seat in domain.seats
        if seat.member.launched and seat.member.shared_mib
    ]
    # A member whose flavor has another size shares with none of the others.
    return sizes[0] if len(sizes) > 1 and len(set(sizes)) == 1 else 0


def _append_branches(domains: Sequence[ClusterDomain], indent: str, lines: list[str]) -> None:
    for at, domain in enumerate(domains):
        last = at + 1 == len(domains)
        title = f"{_MANY[domain.level][0]} {printable_text(domain.name) or '(unknown)'}"
        shared = find_shared_mib(domain)
        note = f": may share memory, {shared} MiB each" if shared else ""
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{title}{note}")
        below = indent + ("   " if last else "│  ")
        _append_branches(domain.domains, below, lines)
        for place, seat in enumerate(domain.seats):
            mark = "└─ " if place + 1 == len(domain.seats) else "├─ "
            lines.append(f"{below}{mark}{seat.member.shown}")


def check_cluster_names(cluster: Cluster) -> None:
    """Check that another program can safely read the names of members and domains.

    :raises nova_hpc_common.outside.host_names.OutsideError: a name is invalid; the text names the
        server and the cure.
    """
    ordered_seats = order_seats_by_nearness(cluster)
    member_names.check_names((seat.member.id, seat.member.name) for seat in ordered_seats)
    for seat in ordered_seats:
        member_names.check_domains(seat.member.id, seat.member.position.domains)


def format_slurm_switches(cluster: Cluster, nodes: Collection[str] = ()) -> str:
    """Format the tree for Slurm's ``topology.conf``: leaves, and the known blocks and spines above.

    Members without a known leaf are below one switch of their own.

    :param nodes: all nodes of the cluster in Slurm's configuration; empty for just the members.
        Nodes that are not members now are below an extra switch, since Slurm refuses every job
        that needs a node outside the file. Members that Slurm does not have are left out.
    :raises nova_hpc_common.outside.host_names.OutsideError: a name cannot be the name of a node or
        switch.
    """
    lines: list[str] = []
    check_cluster_names(cluster)
    for node in nodes:
        host_names.require_host_name(node, "it is one of the nodes that were named")
    members = [
        seat for seat in order_seats_by_nearness(cluster) if not nodes or seat.member.name in nodes
    ]
    tops = _append_switches(cluster, 0, members, lines)
    missing = set(nodes) - {seat.member.name for seat in members}
    if missing:
        tops.append(f"{cluster.name}-none")
        lines.append(f"SwitchName={tops[-1]} Nodes={compress_hostlist(missing)}")
    if len(tops) > 1 or nodes:
        lines.append(f"SwitchName={cluster.name}-all Switches={','.join(tops)}")
    return "\n".join(lines) + "\n"


#: Levels that are switches in Slurm's tree, the widest first, as indexes of a path.
_SWITCHES: Final = tuple(PATH.index(level) for level in ("spine", "block", "leaf"))


def _append_switches(
    cluster: Cluster, depth: int, some: Sequence[MemberSeat], lines: list[str]
) -> list[str]:
    """Append the switches above *some* members to *lines*; return the names of the top ones."""
    at = _SWITCHES[depth]
    last = depth + 1 == len(_SWITCHES)
    groups: dict[str, list[MemberSeat]] = {}
    for seat in some:
        groups.setdefault(seat.path[at], []).append(seat)
    tops: list[str] = []
    for domain, inside in groups.items():
        below = [] if last else _append_switches(cluster, depth + 1, inside, lines)
        # An unknown level gives no switch, except for a leaf: each node has to be below one.
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
