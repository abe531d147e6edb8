# SPDX-License-Identifier: Apache-2.0
"""Requests that read a server group of another tool, and that write or remove marks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle.run import ClusterError
from nova_hpc_client.cluster.members import marks
from nova_hpc_client.cluster.members.foreign_group import GroupRecords
from nova_hpc_client.openstack.rest import GoneError, RestClient
from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish

#: The first microversion in which a server record contains the requested availability zone. Nova
#: 32, 33 and 34 have it.
_WITH_ZONES: Final = "2.96"
#: Fields of a port that clusters need.
PORT_FIELDS: Final = (
    *("id", "name", "description", "device_id", "fixed_ips", "tags", "status"),
    *("network_id", "mac_address", "binding:vnic_type"),
)
_WISH_ITEM: Final = re.compile(rf"{cluster_wish.KEY}(_[2-9]|_turn)?", re.ASCII)


class MarkingCloud:
    """Requests to Nova and Neutron that read and write marks.

    :param rest: its requests.
    """

    def __init__(self, rest: RestClient) -> None:
        self.rest = rest

    def flavor(self, name: str) -> Mapping[str, Any]:
        """Find the flavor with this id or name.

        :raises ClusterError: there is none.
        """
        raise NotImplementedError

    def foreign_group(self, name: str) -> str:
        """Return the id of the server group with this name or id.

        :raises ClusterError: there is none, or more than one.
        """
        ids = [
            str(group["id"]) for group in self.rest.groups() if name in (group["id"], group["name"])
        ]
        if not ids:
            raise ClusterError(
                f"no server group is called {printable_text(name)}; see openstack server group list"
            )
        if len(ids) > 1:
            raise ClusterError(
                f"{len(ids)} server groups are called {printable_text(name)}: say the ID, of "
                f"{', '.join(ids)}"
            )
        return ids[0]

    def read_group(self, group: str) -> GroupRecords:
        """Read a server group and its servers, also if another tool made them.

        :raises ClusterError: the group does not exist.
        """
        try:
            record = self.rest.nova("GET", f"/os-server-groups/{group}")["server_group"]
        except GoneError:
            raise ClusterError(f"server group {group} was deleted") from None
        left = {str(server) for server in record["members"]}
        listed = self.rest.servers(microversion=_WITH_ZONES)
        servers = [server for server in listed if server["id"] in left]
        hidden = []
        # Nova's lists leave out soft-deleted servers, which can be restored.
        for server_id in sorted(left - {str(server["id"]) for server in servers}):
            try:
                path = f"/servers/{server_id}"
                answer = self.rest.nova("GET", path, microversion=_WITH_ZONES)
                servers.append(answer["server"])
            except GoneError:
                hidden.append(server_id)
        flavors: dict[str, str] = {}
        for name in {str(server["flavor"].get("original_name")) for server in servers}:
            try:
                flavors[name] = str(self.flavor(name)["id"])
            except ClusterError:
                continue  # An operator has deleted the flavor, although members have it.
        ports = self.rest.ports(fields=PORT_FIELDS)
        return GroupRecords(record, tuple(servers), tuple(ports), tuple(hidden), flavors)

    def mark_server(self, wish: ClusterWish, group: str, server: str) -> None:
        """Make a server a member: write the ``ClusterWish`` and the tag."""
        body = {"metadata": cluster_wish.to_metadata(wish, group)}
        self.rest.nova("POST", f"/servers/{server}/metadata", body)
        tag = wishes.member_tag_of(group, wish.adopted)
        self.rest.nova("PUT", f"/servers/{server}/tags/{tag}")

    def drop_marks(self, server: str) -> None:
        """Remove ``ClusterWish`` and mark of a member.

        The texts that name the group are removed last: until then the server is listed with its
        cluster.
        """
        try:
            record = self.rest.nova("GET", f"/servers/{server}")["server"]
        except GoneError:
            return
        items = record.get("metadata") or {}
        keys = [key for key in items if _WISH_ITEM.fullmatch(key)]
        keys += [key for key in items if key == cluster_wish.ADOPTED_GROUP_KEY]
        paths = [f"metadata/{key}" for key in keys]
        tags = [tag for tag in record.get("tags") or () if tag.startswith(wishes.ADOPTED_MARK)]
        for path in [*paths, *(f"tags/{tag}" for tag in tags)]:
            self._delete(self.rest.nova, f"/servers/{server}/{path}")

    def keep_port(self, group: str, port: str, number: int, place: int) -> None:
        """Mark a port that another tool made, so that the member's next server gets it.

        The tag with the group is written last: the other tags have no meaning without it.
        """
        record = self.rest.neutron("GET", f"/ports/{port}")["port"]
        place_tag = marks.format_place_tag(number, place)
        for tag in record.get("tags") or ():
            if tag.startswith(marks.PLACE_MARK) and tag != place_tag:
                self._delete(self.rest.neutron, f"/ports/{port}/tags/{tag}")
        for tag in (place_tag, wishes.member_tag_of(group, adopted=True)):
            self.rest.neutron("PUT", f"/ports/{port}/tags/{tag}")

    def release_port(self, port: str) -> None:
        """Remove the cluster's tags and description from a port; do nothing if it is gone."""
        try:
            record = self.rest.neutron("GET", f"/ports/{port}")["port"]
        except GoneError:
            return
        if marks.mark_of_made_port(record) is not None:
            self.rest.neutron("PUT", f"/ports/{port}", {"port": {"description": ""}})
        ours = (wishes.ADOPTED_MARK, marks.PLACE_MARK)
        for tag in sorted(record.get("tags") or ()):
            if tag.startswith(ours):
                self._delete(self.rest.neutron, f"/ports/{port}/tags/{tag}")

    @staticmethod
    def _delete(ask: Any, path: str) -> None:
        try:
            ask("DELETE", path)
        except GoneError:
            return
