# SPDX-License-Identifier: Apache-2.0
"""Carries out the steps of clusters as requests to Nova, Neutron and Glance."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc_client.cluster import head as heads
from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle import quota as quotas
from nova_hpc_client.cluster.life_cycle.run import BusyError, ClusterCloudError, ClusterError
from nova_hpc_client.cluster.members import model as members
from nova_hpc_client.cluster.members import server as servers
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.members.server import OneServer
from nova_hpc_client.cluster.snapshots import MemberImage
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_client.openstack.marking import PORT_FIELDS, MarkingCloud
from nova_hpc_client.openstack.rest import ConflictError, GoneError, RestClient
from nova_hpc_client.openstack.snapshot_images import SnapshotImages
from nova_hpc_common.outside.host_names import is_uuid
from nova_hpc_common.wire import cluster_wish, member_verdict
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.member_verdict import MemberVerdict
from nova_hpc_common.wire.version import WireError
from nova_hpc_guest import host_list

#: Ids of flavors that Nova accepts (nova/api/openstack/compute/schemas/flavor_manage.py), except
#: those that cannot be part of a path.
_FLAVOR: Final = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]{1,255}", re.ASCII)
#: The last microversion in which Nova finds images by name.
_WITH_IMAGES: Final = "2.35"
#: The first microversion in which an action's events have details, if policy allows the user to
#: read them.
_WITH_DETAILS: Final = "2.84"
#: The beginning of the names of actions that nova-compute adds for owners.
_NEWS: Final = "hpc_"
_CONSOLE_LINES: Final = 400
#: Most servers of a group that are read one by one; for more, one list of the project is read.
_FEW: Final = 8


class SdkCloud(MarkingCloud):
    """Nova, Neutron and Glance with the rights of one user.

    :param rest: its requests.
    """

    def __init__(self, rest: RestClient) -> None:
        super().__init__(rest)
        self.images = SnapshotImages(rest)
        self._security_groups: dict[str, str] = {}
        self._namesakes: frozenset[str] = frozenset()

    # -- looking -----------------------------------------------------------

    def clusters(self) -> list[Cluster]:
        """Read all clusters of the project from Nova and Neutron."""
        groups = self.rest.groups()
        clusters = members.gather_clusters(
            groups, self.rest.servers(), self.rest.ports(fields=PORT_FIELDS)
        )
        self._namesakes = next((cluster.namesakes for cluster in clusters), frozenset())
        return clusters

    def find(self, name: str) -> Cluster:
        """Find the cluster with this name or id.

        :raises ClusterError: there is none, or more than one.
        """
        clusters = [cluster for cluster in self.clusters() if name in (cluster.id, cluster.name)]
        if not clusters:
            raise ClusterError(f"no cluster is called {name}; see openstack hpc cluster list")
        if len(clusters) > 1:
            ids = ", ".join(cluster.id for cluster in clusters)
            raise ClusterError(f"{len(clusters)} clusters are called {name}: say the ID, of {ids}")
        return clusters[0]

    def look(self, group: str) -> Cluster:
        """Read all records of one cluster.

        It reads no servers of other clusters, so ``namesakes`` also contains the names that the
        last call of :meth:`clusters` found more than once.
        """
        cluster = self._look(group)
        return attrs.evolve(cluster, namesakes=cluster.namesakes | self._namesakes)

    def _look(self, group: str) -> Cluster:
        """Read one cluster with few requests, also if a user has removed tags or the group is gone.

        The phases: the group, the servers with a tag, further servers of the group, the marked
        ports, and a head without a tag.
        """
        try:
            groups = [self.rest.nova("GET", f"/os-server-groups/{group}")["server_group"]]
        except GoneError:
            groups = []
        adopted_tag = wishes.member_tag_of(group, adopted=True)
        tags = {"tags-any": f"{wishes.member_tag_of(group)},{adopted_tag}"}
        servers = {server["id"]: server for server in self.rest.servers(**tags)}
        in_group = list(groups[0]["members"]) if groups else []
        if len(set(in_group) - servers.keys()) > _FEW:
            servers |= {
                server["id"]: server for server in self.rest.servers() if server["id"] in in_group
            }
        # Nova stores a server before its tags, and users remove tags.
        for server in in_group:
            if server not in servers:
                try:
                    servers[server] = self.rest.nova("GET", f"/servers/{server}")["server"]
                except GoneError:
                    continue
        named = groups and str(groups[0]["name"]).startswith(cluster_wish.PREFIX)
        descriptions = [wishes.member_tag_of(group, adopted) for adopted in (False, True)]
        ports = self.rest.ports(
            description=descriptions[0] if named else descriptions, fields=PORT_FIELDS
        )
        if not named:
            ports += self.rest.ports(tags=adopted_tag, fields=PORT_FIELDS)
        cluster = _gather_cluster(group, groups, servers.values(), ports)
        if not cluster.wants_head or cluster.heads:
            return cluster
        # The head is not in the group: without a tag, only its metadata name the cluster.
        for server in self._servers_called(wishes.head_name(cluster.name)):
            servers[server["id"]] = server
        return _gather_cluster(group, groups, servers.values(), ports)

    def _servers_called(self, name: str) -> list[dict[str, Any]]:
        pattern = f"^{re.escape(name)}$"
        return [server for server in self.rest.servers(name=pattern) if server["name"] == name]

    def server(self, name: str) -> OneServer:
        """Find the server with this name or id, with its neighbours in its server groups.

        :raises ClusterError: there is none, or more than one.
        """
        server_record = self.server_record(name)
        siblings: dict[str, dict[str, Any]] = {}
        for group in server_record.get("server_groups") or ():
            try:
                body = self.rest.nova("GET", f"/os-server-groups/{group}")
            except GoneError:
                continue
            siblings |= {member: {} for member in body["server_group"]["members"]}
        if siblings.keys() - {server_record["id"]}:
            siblings = {
                sibling["id"]: sibling
                for sibling in self.rest.servers()
                if sibling["id"] in siblings
            }
        else:
            siblings = {}
        ports = self.ports_of(server_record["id"])
        return servers.read_own_server(server_record, siblings.values(), ports)

    def server_record(self, name: str) -> dict[str, Any]:
        """Read Nova's record of the server with this name or id.

        :raises ClusterError: there is none, or more than one.
        """
        if is_uuid(name):
            try:
                return dict(self.rest.nova("GET", f"/servers/{name}")["server"])
            except GoneError:
                raise ClusterError(f"no server has the ID {name}") from None
        ids = [server["id"] for server in self._servers_called(name)]
        # Nova shows a server's groups only in the record of one server, not in lists.
        return dict(self.rest.nova("GET", f"/servers/{_only_id_of('server', name, ids)}")["server"])

    def console(self, server: str) -> str:
        """Read the last lines of a server's console; "" if it has none (yet)."""
        body = {"os-getConsoleOutput": {"length": _CONSOLE_LINES}}
        try:
            return str(self.rest.nova("POST", f"/servers/{server}/action", body)["output"])
        except ClusterCloudError:
            return ""

    # -- steps -------------------------------------------------------------

    def make_group(
        self, wish: ClusterWish, attempt: str, policy: str, max_per_host: int | None
    ) -> str:
        """Create the server group, and return its id."""
        body = wishes.group_body(wish, attempt, policy, max_per_host)
        return str(self.rest.nova("POST", "/os-server-groups", body)["server_group"]["id"])

    def groups_of(self, attempt: str) -> Sequence[str]:
        """Return ids of the server groups that one attempt has created."""
        ids = []
        for group in self.rest.groups():
            try:
                label = cluster_wish.from_group_name(group["name"])
            except WireError:
                continue
            if label is not None and label.attempt == attempt:
                ids.append(str(group["id"]))
        return ids

    def make_port(self, wish: ClusterWish, group: str, number: int, place: int) -> None:
        """Create a member's port in the network at index *place* of its networks."""
        ids = [self.security_group(name) for name in wish.security_groups]
        self.rest.neutron("POST", "/ports", wishes.port_body(wish, group, number, place, ids))

    def make_servers(
        self,
        wish: ClusterWish,
        group: str,
        several: Sequence[int],
        ports: Sequence[tuple[int, str]],
        secrets: Secrets,
        hosts: str = "",
    ) -> None:
        """Request servers; a member that boots from a snapshot is requested with its own image."""
        image = self.images.find_boot_image(wish.image, several[0])
        body = wishes.server_body(wish, group, several, secrets, dict(ports), hosts, image)
        self.rest.nova("POST", "/servers", body)

    def make_head(self, wish: ClusterWish, group: str, secrets: Secrets, hosts: str = "") -> None:
        """Request the head of a cluster from Nova: an additional server without devices."""
        self.rest.nova("POST", "/servers", heads.head_body(wish, group, secrets, hosts))

    def set_wish(self, wish: ClusterWish, group: str, server: str) -> None:
        """Write the ``ClusterWish`` into a member's metadata."""
        body = {"metadata": cluster_wish.to_metadata(wish, group)}
        _ask_unless_gone(self.rest.nova, "POST", f"/servers/{server}/metadata", body)

    def set_hosts(self, hosts: str, server: str) -> None:
        """Write a host list into a member's metadata."""
        body = {"metadata": host_list.to_items(hosts)}
        _ask_unless_gone(self.rest.nova, "POST", f"/servers/{server}/metadata", body)

    def set_verdict(self, server: str, verdict: MemberVerdict) -> None:
        """Write a member's verdict into its metadata; ignore a server that is gone."""
        body = {"metadata": {member_verdict.KEY: verdict.dumps()}}
        _ask_unless_gone(self.rest.nova, "POST", f"/servers/{server}/metadata", body)

    def ports_of(self, server: str) -> list[dict[str, Any]]:
        """Records of a server's ports."""
        return self.rest.ports(device_id=server, fields=PORT_FIELDS)

    def add_tag(self, server: str, tag: str) -> None:
        """Give a server a tag."""
        self.rest.nova("PUT", f"/servers/{server}/tags/{tag}")

    def remove_tag(self, server: str, tag: str) -> None:
        """Remove a tag of a server; ignore one that is gone."""
        _ask_unless_gone(self.rest.nova, "DELETE", f"/servers/{server}/tags/{tag}")

    def delete_server(self, server: str) -> None:
        """Request the deletion of a server."""
        _ask_unless_gone(self.rest.nova, "DELETE", f"/servers/{server}")

    def ask_server(self, server: str, action: str) -> None:
        """Request an action without parameters on a server."""
        self._act(server, {action: None})

    def make_image(self, server: str, name: str, properties: Mapping[str, str]) -> None:
        """Request an image of a server's disk; Nova creates it in Glance before it answers."""
        self._act(server, {"createImage": {"name": name, "metadata": dict(properties)}})

    def snapshot_images(self, snapshot: str) -> list[MemberImage]:
        """Read the images of a snapshot, whatever their status."""
        return self.images.read_images(snapshot)

    def delete_image(self, image: str) -> None:
        """Delete an image; ignore one that is gone."""
        _ask_unless_gone(self.rest.glance, "DELETE", f"/images/{image}")

    def tag_image(self, image: str, tag: str) -> None:
        """Add a tag to an image in Glance."""
        self.rest.glance("PUT", f"/images/{image}/tags/{tag}")

    def actions_of(self, server: str) -> list[tuple[str, str]]:
        """Return names and start times of the actions that Nova has recorded for a server."""
        answer = self.rest.nova("GET", f"/servers/{server}/os-instance-actions")
        return [
            (str(action["action"]), str(action["start_time"]))
            for action in answer["instanceActions"]
        ]

    def count_endings(self, server: str) -> int:
        """How often a guest has ended by itself or has not started within an hour.

        Nova stops a server whose guest has ended, and that action has no user
        (nova/compute/manager.py, ``_sync_instance_power_state``). A start that fails has the
        message ``Error``.

        :returns: 0 if the last action is another one, if the owner has stopped the server before
            that, or if the answer cannot be read.
        """
        answer = self.rest.nova("GET", f"/servers/{server}/os-instance-actions")
        try:
            return _count_endings(answer["instanceActions"])
        except (AttributeError, KeyError, TypeError, ValueError):
            return 0

    def rebuild_server(self, wish: ClusterWish, group: str, server: str) -> None:
        """Request a new disk. The request contains all metadata, because Nova replaces them."""
        record = self.rest.nova("GET", f"/servers/{server}")["server"]
        metadata = {
            **record["metadata"],
            **cluster_wish.to_metadata(wish, group),
            cluster_wish.TURN_KEY: wish.turn,
        }
        body = {"imageRef": wish.turn_image or wish.image, "metadata": metadata}
        self._act(server, {"rebuild": body})

    def _act(self, server: str, body: Mapping[str, Any]) -> None:
        """Request an action on a server.

        :raises BusyError: another request changes the server (status 409).
        """
        try:
            self.rest.nova("POST", f"/servers/{server}/action", body)
        except ConflictError as error:
            raise BusyError(str(error)) from error

    def read_no_host(self, server: str) -> str | None:
        """Read the reason why the last unshelving of a server found no host.

        :returns: empty if the user may not read the reason; None if Nova shows no such error.
        """
        path = f"/servers/{server}/os-instance-actions"
        try:
            actions = self.rest.nova("GET", path)["instanceActions"]
            request = next(
                action["request_id"] for action in actions if action["action"] == "unshelve"
            )
            answer = self.rest.nova("GET", f"{path}/{request}", microversion=_WITH_DETAILS)
        except (ClusterCloudError, StopIteration):
            return None
        for event in answer["instanceAction"].get("events") or ():
            if event["event"] == "schedule_instances" and event["result"] == "Error":
                return str(event.get("details") or "")
        return None

    def mark_turn(self, wish: ClusterWish, server: str) -> None:
        """Record in the metadata of *server*, a member's id, that it did the turn of *wish*.

        The item is :data:`~nova_hpc_common.wire.cluster_wish.TURN_KEY`. Nothing happens if the
        server is gone.
        """
        body = {"metadata": {cluster_wish.TURN_KEY: wish.turn}}
        _ask_unless_gone(self.rest.nova, "POST", f"/servers/{server}/metadata", body)

    def delete_port(self, port: str) -> None:
        """Delete a port of Neutron; do nothing if it is gone."""
        _ask_unless_gone(self.rest.neutron, "DELETE", f"/ports/{port}")

    def delete_group(self, group: str) -> None:
        """Delete the server group of a cluster; do nothing if it is gone."""
        _ask_unless_gone(self.rest.nova, "DELETE", f"/os-server-groups/{group}")

    # -- names in users' options --------------------------------------------

    def flavor(self, name: str) -> Mapping[str, Any]:
        """Find the flavor with this id or name.

        :raises ClusterError: there is none.
        """
        # The name may come from a member's metadata, which users can write.
        if _FLAVOR.fullmatch(name):
            try:
                return dict(self.rest.nova("GET", f"/flavors/{name}")["flavor"])
            except GoneError:
                pass
        marker: dict[str, str] = {}
        while page := self.rest.nova("GET", "/flavors/detail", **marker)["flavors"]:
            for flavor in page:
                if name in (flavor["name"], flavor["id"]):
                    return dict(flavor)
            marker = {"marker": page[-1]["id"]}
        raise ClusterError(f"no flavor is called {name}")

    def image(self, name: str) -> str:
        """Return the id of the image with this id or name.

        :raises ClusterError: there is none, or more than one, or the cloud finds none by name.
        """
        if is_uuid(name):
            return name
        try:
            images = self.rest.nova("GET", "/images", microversion=_WITH_IMAGES, name=name)[
                "images"
            ]
        except GoneError:
            raise ClusterError(
                f"this cloud does not look images up: say the ID of {name}"
            ) from None
        return _only_id_of(
            "image", name, [image["id"] for image in images if image["name"] == name]
        )

    def network(self, name: str) -> str:
        """Return the id of the network with this id or name.

        :raises ClusterError: there is none, or more than one.
        """
        if is_uuid(name):
            return name
        networks = self.rest.neutron("GET", "/networks", name=name, fields=("id",))["networks"]
        return _only_id_of("network", name, [network["id"] for network in networks])

    def subnets(self, network: str) -> list[Mapping[str, Any]]:
        """Read the subnets of a network that the project can see."""
        answer = self.rest.neutron("GET", "/subnets", network_id=network)
        return list(answer["subnets"])

    def security_group(self, name: str) -> str:
        """Return the id of the security group with this id or name.

        :raises ClusterCloudError: there is none, or more than one.
        """
        if name not in self._security_groups:
            answer = self.rest.neutron("GET", "/security-groups", project_id=self.rest.project)
            ids = [group["id"] for group in answer["security_groups"] if name in group.values()]
            if len(ids) != 1:
                raise ClusterCloudError(f"{len(ids)} security groups are called {name}")
            self._security_groups[name] = ids[0]
        return self._security_groups[name]

    # -- quotas --------------------------------------------------------------

    def check_quotas(self, need: quotas.QuotaNeed, freed: quotas.QuotaNeed | None = None) -> None:
        """Check that the quotas leave room for a command.

        :param freed: the amounts that the command gives back before it takes others.
        :raises ClusterError: a quota is too low; the text contains the command that raises it.
        """
        absolute = self.rest.nova("GET", "/limits")["limits"]["absolute"]
        quota_by_name = quotas.quotas_from_limits(absolute)
        if need.ports and self.rest.has_neutron:
            try:
                path = f"/quotas/{self.rest.project}/details"
                port = self.rest.neutron("GET", path)["quota"]["port"]
                quota_by_name["ports"] = quotas.Quota(int(port["limit"]), int(port["used"]))
            except (ClusterCloudError, KeyError, TypeError):
                pass  # This Neutron shows it only to operators; it checks the quota itself later.
        short = quotas.find_short_quotas(need, quota_by_name, freed)
        if short:
            raise ClusterError(quotas.format_short_quotas(short, self.rest.project))


def _count_endings(actions: Iterable[Mapping[str, Any]]) -> int:
    """See :meth:`SdkCloud.count_endings`.

    :param actions: of one server, the newest first.
    """
    # nova-compute adds actions of its own, which change nothing.
    changes = [action for action in actions if not action["action"].startswith(_NEWS)]
    if not changes or not _is_ending(changes[0]):
        return 0
    # Nova stops a server once more if its guest runs after a stop.
    before = next((action for action in changes if not _is_ending(action)), None)
    if before is not None and before["action"] == "stop":
        return 0
    since = _time_of(changes[0]) - datetime.timedelta(hours=1)
    return sum(1 for action in changes if _is_ending(action) and _time_of(action) > since)


def _is_ending(action: Mapping[str, Any]) -> bool:
    if action["action"] == "start":
        return action.get("message") == "Error"
    return action["action"] == "stop" and action.get("user_id") is None


def _time_of(action: Mapping[str, Any]) -> datetime.datetime:
    return datetime.datetime.fromisoformat(action["start_time"])


def _gather_cluster(
    group: str,
    groups: Sequence[Mapping[str, Any]],
    servers: Iterable[Mapping[str, Any]],
    ports: Iterable[Mapping[str, Any]],
) -> Cluster:
    clusters = members.gather_clusters(groups, servers, ports)
    return next((cluster for cluster in clusters if cluster.id == group), Cluster(group))


def _only_id_of(kind: str, name: str, ids: Sequence[str]) -> str:
    if not ids:
        raise ClusterError(f"no {kind} is called {name}")
    if len(ids) > 1:
        raise ClusterError(f"{len(ids)} {kind}s are called {name}: say the ID, of {', '.join(ids)}")
    return str(ids[0])


def _ask_unless_gone(ask: Any, *words: Any) -> None:
    """Send a request that may be repeated: an object that is gone needs no change any more."""
    try:
        ask(*words)
    except GoneError:
        return
