# SPDX-License-Identifier: Apache-2.0
"""Marks: tags, metadata or descriptions that name the cluster of a server or port.

Users can write all of these texts, and the client puts them into requests and printed commands.
So a mark counts only if it contains a valid id of a server group.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_common.outside.host_names import is_uuid
from nova_hpc_common.wire import cluster_wish

_Record = Mapping[str, Any]
#: Prefix of a kept port's tag; its member's number and the index of its network follow.
PLACE_MARK: Final = "hpc-member="
_PLACE: Final = re.compile(rf"{PLACE_MARK}(0|[1-9][0-9]{{0,5}})\.([0-9]{{1,2}})", re.ASCII)


@attrs.frozen
class ClusterMark:
    """The mark of a server or port.

    :ivar group: id of the cluster's server group.
    :ivar adopted: the cluster was adopted: another tool made the group.
    """

    group: str
    adopted: bool = False


def mark_of_server(server: _Record) -> ClusterMark | None:
    """Return the mark of a member (id of its cluster's group); None if it has none.

    A tag or a metadata item is enough, because users remove tags, and because Nova stores a server
    before its tags.
    """
    for adopted in (False, True):
        mark = _mark_of_words(server.get("tags") or (), adopted)
        if mark is not None:
            return mark
        key = cluster_wish.group_key_of(adopted)
        group_id = (server.get("metadata") or {}).get(key)
        if is_uuid(group_id):
            return ClusterMark(str(group_id), adopted)
    return None


def mark_of_made_port(port: _Record) -> ClusterMark | None:
    """Return the mark of a port that the client made for a member; None if it has none."""
    description = str(port.get("description") or "")
    return _mark_of_words((description,), False) or _mark_of_words((description,), True)


def mark_of_kept_port(port: _Record) -> ClusterMark | None:
    """Return the mark of a port of another tool that a replaced member gets again; None if none."""
    if place_of_kept_port(port) is None or mark_of_made_port(port) is not None:
        return None
    return _mark_of_words(port.get("tags") or (), True)


def place_of_kept_port(port: _Record) -> tuple[int, int] | None:
    """Return the number of a kept port's member, and the index of its network.

    None unless exactly one tag contains them.
    """
    tags = map(str, port.get("tags") or ())
    places = [match for tag in tags if (match := _PLACE.fullmatch(tag))]
    return (int(places[0][1]), int(places[0][2])) if len(places) == 1 else None


@attrs.frozen
class MarkedRecords:
    """Servers and ports by the id of their cluster's server group.

    :ivar adopted: ids of the server groups that were adopted.
    :ivar made: ports that the client made.
    :ivar kept: ports that another tool made.
    """

    adopted: frozenset[str]
    servers: Mapping[str, Sequence[_Record]]
    made: Mapping[str, Sequence[_Record]]
    kept: Mapping[str, Sequence[_Record]]

    @property
    def members(self) -> frozenset[str]:
        """Ids of all servers that have a mark of a cluster."""
        return frozenset(str(server["id"]) for some in self.servers.values() for server in some)


def sort_by_cluster(
    servers: Iterable[_Record], ports: Iterable[_Record], named: Collection[str]
) -> MarkedRecords:
    """Sort the records that have a mark by their cluster.

    Marks of adopted clusters are ignored if the group's own name is a cluster's. All other marks
    are ignored if the group was adopted.

    :param named: ids of the server groups with names of clusters.
    """
    servers, ports = list(servers), list(ports)
    readers = (
        (servers, mark_of_server),
        (ports, mark_of_made_port),
        (ports, mark_of_kept_port),
    )
    marks = [
        [(record, mark) for record in records if (mark := read(record))]
        for records, read in readers
    ]
    adopted = {mark.group for pairs in marks for _, mark in pairs if mark.adopted} - set(named)
    sorted_records: list[dict[str, list[_Record]]] = [{}, {}, {}]
    for by_group, pairs in zip(sorted_records, marks, strict=True):
        for record, mark in pairs:
            if mark.adopted == (mark.group in adopted):
                by_group.setdefault(mark.group, []).append(record)
    return MarkedRecords(frozenset(adopted), *sorted_records)


def format_place_tag(number: int, place: int) -> str:
    """Return the tag of a kept port, with its member and its network's index; up to 20 letters."""
    return f"{PLACE_MARK}{number}.{place}"


def _mark_of_words(texts: Iterable[str], adopted: bool) -> ClusterMark | None:
    prefix = wishes.member_tag_of("", adopted)
    for text in texts:
        group_id = text.removeprefix(prefix)
        if text.startswith(prefix) and is_uuid(group_id):
            return ClusterMark(group_id, adopted)
    return None
