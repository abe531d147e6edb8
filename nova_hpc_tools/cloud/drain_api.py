# SPDX-License-Identifier: Apache-2.0
"""The client of Nova's public API for ``nova-hpc drain``, with the rights of an operator."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

import attrs

from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire.planned_work import earliest_planned_time
from nova_hpc_tools.fabric.nova_aggregates import FabricCloud, NovaApiError

#: 2.56: a cold migration names its host; 2.59: migrations have UUIDs; 2.64: rules of server
#: groups; 2.84: the fault of an action. Nova 32, 33 and 34 have all of them.
MICROVERSION: Final = "2.84"
#: Migrations that are under way.
MOVING: Final = ("accepted", "queued", "preparing", "pre-migrating", "migrating", "post-migrating")
#: One that waits for its confirmation.
MOVED: Final = "finished"
#: A cold migration, a resize of its user's, and an evacuation.
COLD: Final = "migration"
RESIZE: Final = "resize"
EVACUATION: Final = "evacuation"


@attrs.frozen
class DrainServer:
    """A server on the drained host, as Nova's API shows it."""

    uuid: str
    name: str
    #: As ACTIVE, SHUTOFF, VERIFY_RESIZE, ERROR.
    status: str
    #: Nova's present task on it; "" for none.
    task: str
    host: str
    #: Name of its flavor when it was created or resized.
    flavor: str
    extra_specs: Mapping[str, str]
    #: Nova's name of its host for its project; "" while it has none.
    host_id: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    #: Id of the project that owns it.
    project: str = ""

    @property
    def planned(self) -> str:
        """The earliest time at which work on its host or its devices is announced, or ""."""
        return earliest_planned_time(self.tags, self.host_id)


@attrs.frozen
class ServerAction:
    """An action on a server, as Nova records it.

    :ivar project: of its user, who may be an operator.
    """

    project: str
    begin: datetime.datetime


@attrs.frozen
class DrainMigration:
    """A migration of a server that has not finished."""

    server: str
    kind: str
    status: str
    target: str
    source: str


@attrs.frozen
class BindingGroup:
    """A server group with a hard policy (affinity or anti-affinity).

    :ivar most: how many of its servers a host may have, by anti-affinity.
    """

    uuid: str
    policy: str
    members: frozenset[str]
    most: int = 1


class DrainCloud(FabricCloud):
    """Nova's API for ``drain``: servers, their moves, and the compute service of a host."""

    def servers_of(self, host: str) -> list[DrainServer]:
        """The servers that are on *host* now.

        :raises NovaApiError: Nova does not answer, or refuses.
        """
        api_servers = self._pages(
            "/servers/detail", "servers", MICROVERSION, all_tenants="1", host=host
        )
        return [_parse_drain_server(server) for server in api_servers]

    def all_servers(self) -> Iterator[DrainServer]:
        """The servers of all projects, also those without a host.

        :raises NovaApiError: Nova does not answer, or refuses.
        """
        api_servers = self._pages("/servers/detail", "servers", MICROVERSION, all_tenants="1")
        return map(_parse_drain_server, api_servers)

    def server(self, uuid: str) -> DrainServer | None:
        """The server with this UUID; None if it was deleted.

        :raises NovaApiError: Nova does not answer, or refuses.
        """
        try:
            return _parse_drain_server(self._get(f"/servers/{uuid}", MICROVERSION)["server"])
        except NovaApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def moves_from(self, host: str) -> list[DrainMigration]:
        """Cold migrations, resizes and evacuations away from *host* that are not over.

        :raises NovaApiError: Nova does not answer, or refuses.
        """
        return [
            migration
            for migration in self._migrations(source_compute=host)
            if migration.source == host
            and migration.kind in (COLD, RESIZE, EVACUATION)
            and migration.status in (*MOVING, MOVED)
        ]

    def cold_move_of(self, uuid: str) -> DrainMigration | None:
        """The cold migration of a server that is under way or waits for its confirmation.

        :raises NovaApiError: Nova does not answer, or refuses.
        """
        for migration in self._migrations(instance_uuid=uuid):
            if migration.kind == COLD and migration.status in (*MOVING, MOVED):
                return migration
        return None

    def _migrations(self, **filters: str) -> Iterator[DrainMigration]:
        marker: dict[str, str] = {}
        while True:
            page = self._get("/os-migrations", MICROVERSION, limit="500", **filters, **marker)[
                "migrations"
            ]
            yield from map(_parse_migration, page)
            if not page:
                return
            marker = {"marker": page[-1]["uuid"]}

    def binding_groups(self) -> list[BindingGroup]:
        """Server groups with hard policies.

        :raises NovaApiError: Nova does not answer, or refuses.
        """
        return [
            BindingGroup(
                uuid=str(group["id"]),
                policy=str(group["policy"]),
                members=frozenset(group["members"]),
                most=int((group.get("rules") or {}).get("max_server_per_host", 1)),
            )
            for group in self._groups(MICROVERSION)
            if group["policy"] in ("affinity", "anti-affinity")
        ]

    def hosts_of(self, servers: frozenset[str]) -> dict[str, str]:
        """Server -> host, for servers that have a host.

        :raises NovaApiError: Nova does not answer, or refuses.
        """
        api_servers = self._pages("/servers/detail", "servers", MICROVERSION, all_tenants="1")
        every = {
            str(server["id"]): str(server.get("OS-EXT-SRV-ATTR:host") or "")
            for server in api_servers
        }
        return {uuid: every[uuid] for uuid in servers if every.get(uuid)}

    def service(self, host: str) -> Mapping[str, Any]:
        """The compute service of *host*.

        :raises NovaApiError: the service does not exist, or Nova does not answer.
        """
        answer = self._get("/os-services", MICROVERSION, host=host, binary="nova-compute")
        for service in answer["services"]:
            if service["host"] == host:
                return dict(service)
        raise NovaApiError(f"there is no nova-compute on a host {host!r}")

    def disable(self, service: Mapping[str, Any], reason: str) -> None:
        """Disable a compute service, so that no new servers are scheduled to its host.

        :raises NovaApiError: Nova refuses.
        """
        body = {"status": "disabled", "disabled_reason": reason}
        self._call("put", f"/os-services/{service['id']}", body, microversion=MICROVERSION)

    def migrate(self, uuid: str, target: str | None) -> None:
        """Request a cold migration; the scheduler checks *target*, or chooses.

        :raises NovaApiError: Nova refuses.
        """
        body = {"migrate": None if target is None else {"host": target}}
        self._call("post", f"/servers/{uuid}/action", body, microversion=MICROVERSION)

    def migrate_live(self, uuid: str, target: str) -> None:
        """Request a live migration; the scheduler checks *target*.

        :raises NovaApiError: Nova refuses.
        """
        body = {"os-migrateLive": {"host": target, "block_migration": "auto"}}
        self._call("post", f"/servers/{uuid}/action", body, microversion=MICROVERSION)

    def evacuate(self, uuid: str, target: str | None) -> None:
        """Request an evacuation; the scheduler checks *target*, or chooses.

        :raises NovaApiError: Nova refuses, for example because the host's service is up.
        """
        body = {"evacuate": {} if target is None else {"host": target}}
        self._call("post", f"/servers/{uuid}/action", body, microversion=MICROVERSION)

    def confirm(self, uuid: str) -> None:
        """Confirm a cold migration, so that the server's resources on the old host are freed.

        :raises NovaApiError: Nova refuses.
        """
        body = {"confirmResize": None}
        self._call("post", f"/servers/{uuid}/action", body, microversion=MICROVERSION)

    def shelve(self, uuid: str) -> None:
        """Request that a server is shelved.

        :raises NovaApiError: Nova refuses.
        """
        self._call("post", f"/servers/{uuid}/action", {"shelve": None}, microversion=MICROVERSION)

    def offload(self, uuid: str) -> None:
        """Request that a shelved server leaves its host; Nova may do that by itself already.

        :raises NovaApiError: Nova refuses.
        """
        body = {"shelveOffload": None}
        try:
            self._call("post", f"/servers/{uuid}/action", body, microversion=MICROVERSION)
        except NovaApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

    def unshelve(self, uuid: str) -> None:
        """Request that a shelved server is started again; the scheduler chooses its host.

        :raises NovaApiError: Nova refuses, for example because of a quota.
        """
        self._call("post", f"/servers/{uuid}/action", {"unshelve": None}, microversion=MICROVERSION)

    def last_action(self, uuid: str, name: str) -> ServerAction | None:
        """The last action of this name on a server; None if there is none, or no server.

        :raises NovaApiError: Nova refuses.
        """
        try:
            actions = self._list_actions(uuid)
        except NovaApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        for action in actions:
            if action["action"] == name:
                begin = datetime.datetime.fromisoformat(action["start_time"])
                return ServerAction(
                    str(action.get("project_id") or ""), begin.replace(tzinfo=datetime.UTC)
                )
        return None

    def _list_actions(self, uuid: str) -> list[Mapping[str, Any]]:
        """List the actions of a server, the latest first."""
        path = f"/servers/{uuid}/os-instance-actions"
        return list(self._get(path, MICROVERSION)["instanceActions"])

    def add_tag(self, uuid: str, tag: str) -> None:
        """Add a tag that the server does not have.

        :raises NovaApiError: Nova refuses, for example because the server has 50 tags.
        """
        self._call("put", f"/servers/{uuid}/tags/{tag}", microversion=MICROVERSION)

    def remove_tag(self, uuid: str, tag: str) -> None:
        """Remove a tag from a server; it may be gone already, and the server, too.

        :raises NovaApiError: Nova refuses.
        """
        try:
            self._call("delete", f"/servers/{uuid}/tags/{tag}", microversion=MICROVERSION)
        except NovaApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def why(self, uuid: str, action: str = "migrate") -> str:
        """The reason of the server's last failed *action*, from Nova; "" without one."""
        path = f"/servers/{uuid}/os-instance-actions"
        try:
            newest = next(each for each in self._list_actions(uuid) if each["action"] == action)
            details = self._get(f"{path}/{newest['request_id']}", MICROVERSION)["instanceAction"]
        except (NovaApiError, StopIteration):
            return ""
        event_texts = [str(event.get("details") or "") for event in details.get("events") or ()]
        texts = dict.fromkeys([*event_texts, str(newest.get("message") or "")])
        return printable_text("; ".join(" ".join(text.split()) for text in texts if text))


def _parse_migration(migration: Mapping[str, Any]) -> DrainMigration:
    return DrainMigration(
        server=str(migration["instance_uuid"]),
        kind=str(migration["migration_type"]),
        status=str(migration["status"]),
        target=str(migration.get("dest_compute") or ""),
        source=str(migration.get("source_compute") or ""),
    )


def _parse_drain_server(server: Mapping[str, Any]) -> DrainServer:
    flavor = server.get("flavor") or {}
    return DrainServer(
        uuid=str(server["id"]),
        # The name is only printed; requests use the UUID.
        name=printable_text(str(server.get("name") or server["id"])),
        status=str(server.get("status") or "UNKNOWN"),
        task=str(server.get("OS-EXT-STS:task_state") or ""),
        host=str(server.get("OS-EXT-SRV-ATTR:host") or ""),
        flavor=str(flavor.get("original_name") or ""),
        extra_specs=dict(flavor.get("extra_specs") or {}),
        host_id=str(server.get("hostId") or ""),
        tags=tuple(str(tag) for tag in server.get("tags") or ()),
        metadata=dict(server.get("metadata") or {}),
        project=str(server.get("tenant_id") or ""),
    )
