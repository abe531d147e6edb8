# SPDX-License-Identifier: Apache-2.0
"""A project in which others have written whatever Nova and Neutron take."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.members import model, server
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.members.server import OneServer
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish

Json = dict[str, Any]


def id_of(what: str) -> str:
    """The same UUID for the same thing."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, what))


def a_group(name: str = "train", members: int = 2, **more: Any) -> Json:
    """A server group, as Nova's API shows it."""
    wish = ClusterWish(name, frozenset(range(1, members + 1)), "1", image="i")
    return {
        "id": id_of(f"group {name}"),
        "name": cluster_wish.to_group_name(wish, "ab12"),
        "policy": "affinity",
        "rules": {},
        "members": [id_of(f"{name}-{at}") for at in range(1, members + 1)],
        **more,
    }


def a_server(
    at: int, cluster: str = "train", of: int = 2, metadata: Mapping[str, str] = {}, **more: Any
) -> Json:
    """A member, as Nova's API shows it."""
    wish = ClusterWish(cluster, frozenset(range(1, of + 1)), "1", image="i")
    group = id_of(f"group {cluster}")
    return {
        "id": id_of(f"{cluster}-{at}"),
        "name": f"{cluster}-{at}",
        "status": "ACTIVE",
        "tags": [wishes.member_tag_of(group)],
        "metadata": {**cluster_wish.to_metadata(wish, group), **metadata},
        "addresses": {"net": [{"addr": f"10.0.0.{at}"}]},
        "flavor": {"vcpus": 4, "ram": 1000},
        "hostId": f"{at:056x}",
        "OS-SRV-USG:launched_at": "2026-11-26T00:00:00",
        **more,
    }


def clusters(
    groups: Sequence[Json], servers: Sequence[Json], ports: Sequence[Json] = ()
) -> list[Cluster]:
    """What the client makes of it."""
    return model.gather_clusters(groups, servers, ports)


def called(text: str, **more: Any) -> Cluster:
    """A cluster whose second member somebody has renamed."""
    (found,) = clusters([a_group()], [a_server(1), a_server(2, name=text, **more)])
    return found


def placed(text: str) -> Json:
    """Metadata of a member whose owner has said where it is."""
    said = {"v": 1, "leaf": text, "block": text, "rails": [text]}
    return {"hpc_position": json.dumps(said), "hpc_devices": text}


def written_everywhere(text: str, number: int) -> tuple[list[Json], list[Json], list[Json]]:
    """Groups, servers and ports with *text* wherever somebody may write it."""
    name = f"c{number}"
    fault = {"fault": {"message": text}}
    groups = [
        a_group(name, 3),
        # A name that no client makes, and one of a group that nobody's client knows.
        {**a_group(f"{name}x"), "name": f"hpc:{text}", "members": []},
        {**a_group(f"{name}y"), "name": f"hpc:{text} {{}}", "members": []},
    ]
    servers = [
        a_server(1, name, 3, name=text, status="ERROR", **fault),
        a_server(2, name, 3, placed(text), name=f"{name}-2", addresses={text: [{"addr": text}]}),
        a_server(3, name, 3, name=text, status="SHUTOFF", tags=[f"{wishes.MARK}{text}"]),
        # Of no cluster, whatever its owner says.
        {
            **a_server(4, name, 3, {cluster_wish.GROUP_KEY: text}, name=text),
            "tags": [f"{wishes.MARK}{text}", text],
        },
    ]
    groups[0]["members"].append(servers[3]["id"])
    ports = [
        {"id": id_of(f"port {name}"), "name": text, "description": f"{wishes.MARK}{text}"},
        {"id": id_of(f"port {name}+"), "name": text, "description": servers[0]["tags"][0]},
    ]
    return groups, servers, ports


class HostileCloud:
    """Answers as :class:`nova_hpc_client.openstack.cloud.SdkCloud` does."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.groups: list[Json] = []
        self.servers: list[Json] = []
        self.ports: list[Json] = []
        self._clusters: list[Cluster] | None = None
        for number, text in enumerate(texts):
            groups, servers, ports = written_everywhere(text, number)
            self.groups += groups
            self.servers += servers
            self.ports += ports

    def clusters(self) -> list[Cluster]:
        """All of them."""
        if self._clusters is None:
            self._clusters = clusters(self.groups, self.servers, self.ports)
        return self._clusters

    def find(self, name: str) -> Cluster:
        """The one of this name."""
        (found,) = [each for each in self.clusters() if name in (each.name, each.id)]
        return found

    def count_endings(self, server: str) -> int:
        """Each guest that is off has ended by itself."""
        return 1

    def server(self, name: str) -> OneServer:
        """The one with this id."""
        (found,) = [each for each in self.servers if each["id"] == name]
        return server.read_own_server(found, self.servers[:20])
