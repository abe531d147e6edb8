# SPDX-License-Identifier: Apache-2.0
"""The user of the cloud, and the state of its databases."""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

import attrs

from benchmarks.concurrency.stage import Stage
from benchmarks.group_cloud import elsewhere
from benchmarks.group_cloud.hosts import Shape

FINAL = ("active", "error")
_LOOK = 0.25


@attrs.define
class Server:
    """One create."""

    group: str
    uuid: str = ""
    #: The answer of the API if its status was not 202.
    refused: str = ""
    asked: float = 0.0
    ended: float = 0.0
    state: str = ""
    host: str | None = None
    fault: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.asked


class ApiError(Exception):
    """An unexpected answer."""


@attrs.define
class User:
    """Calls Nova's API; reads the database instead of a request for each server."""

    made: Stage
    port: int

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send one request; the status is 0 if there was no answer."""
        headers = {
            "X-Auth-Token": "user:race",
            "OpenStack-API-Version": "compute 2.90",
            "Content-Type": "application/json",
        }
        # A connection that has been idle may be closed, and a POST is not sent twice.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, f"/v2.1{path}", json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text) if text else {}
        except ValueError:
            return answer.status, text.decode(errors="replace")

    def must(self, method: str, path: str, body: Any = None) -> Any:
        status, found = self.call(method, path, body)
        if not 200 <= status < 300:
            raise ApiError(f"{method} {path}: {status} {found}")
        return found

    def flavor(self, name: str, **specs: str) -> str:
        body = {"flavor": {"name": name, "id": name, "ram": 512, "vcpus": 1, "disk": 0}}
        self.must("POST", "/flavors", body)
        if specs:
            keys = {f"hpc:{key}": value for key, value in specs.items()}
            self.must("POST", f"/flavors/{name}/os-extra_specs", {"extra_specs": keys})
        return name

    def group(self, policy: str = "soft-affinity") -> str:
        body = {"server_group": {"name": "g", "policy": policy}}
        return str(self.must("POST", "/os-server-groups", body)["server_group"]["id"])

    def create(
        self, flavor: str, group: str, members: int | None = None, count: int = 1
    ) -> tuple[int, Any]:
        """POST one server, or several in one request."""
        server: dict[str, Any] = {
            "name": f"s-{group}",
            "flavorRef": flavor,
            "imageRef": elsewhere.IMAGE,
            "networks": "none",
        }
        if count > 1:
            server |= {"min_count": count, "max_count": count, "return_reservation_id": False}
        hints = {"group": group} | ({} if members is None else {"hpc_members": str(members)})
        return self.call("POST", "/servers", {"server": server, "os:scheduler_hints": hints})

    # -- the database -----------------------------------------------------------

    def rows(self, database: str, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with (
            contextlib.closing(self.made.connect(database)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query, arguments)
            return list(cursor.fetchall())

    def states(self) -> dict[str, tuple[str, str | None]]:
        """Servers that are not deleted: state and host."""
        query = "SELECT uuid, vm_state, host FROM instances WHERE deleted = 0"
        found = {}
        # A server in cell0 was never in another cell.
        for database in ("nova", "nova_cell0"):
            for uuid, state, host in self.rows(database, query):
                found[uuid] = (str(state), host)
        return found

    def fault(self, uuid: str) -> str:
        query = "SELECT message, details FROM instance_faults WHERE instance_uuid = %s"
        for database in ("nova_cell0", "nova"):
            for message, _ in self.rows(database, query, uuid):
                return str(message)
        return ""

    # -- work ----------------------------------------------------------------------

    def singles(
        self,
        flavor: str,
        groups: Sequence[str],
        members: int,
        announce: bool,
        flight: int = 10,
        limit: float = 3600.0,
    ) -> list[Server]:
        """Make *members* single creates in each group, a limited number at a time."""
        todo = {group: [Server(group) for _ in range(members)] for group in groups}
        flying: list[Server] = []
        done: list[Server] = []
        deadline = time.monotonic() + limit

        def post(server: Server) -> None:
            server.asked = time.monotonic()
            status, found = self.create(flavor, server.group, members if announce else None)
            if status == 202:
                server.uuid = str(found["server"]["id"])
            else:
                server.refused, server.state = f"{status} {found}"[:500], "refused"
                server.ended = time.monotonic()

        with futures.ThreadPoolExecutor(8) as pool:
            while any(todo.values()) or flying:
                count = collections.Counter(each.group for each in flying)
                for group in groups:
                    while todo[group] and count[group] < flight:
                        server = todo[group].pop()
                        count[group] += 1
                        flying.append(server)
                        pool.submit(post, server)
                time.sleep(_LOOK)
                self._look(flying)
                done += [each for each in flying if each.state]
                flying = [each for each in flying if not each.state]
                if time.monotonic() > deadline:
                    for each in flying:
                        each.state = "unknown"
                    return [*done, *flying]
        return done

    def multiples(
        self, flavor: str, groups: Sequence[str], members: int, limit: float = 3600.0
    ) -> list[Server]:
        """Request all members of each group in one request, all requests at once."""
        asked: dict[str, float] = {}
        refused: list[Server] = []

        def post(group: str) -> None:
            asked[group] = time.monotonic()
            status, found = self.create(flavor, group, count=members)
            if status != 202:
                refused.append(Server(group, refused=f"{status} {found}"[:500], state="refused"))

        with futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(post, groups))
        query = (
            "SELECT m.instance_uuid, g.uuid FROM instance_group_member m JOIN instance_groups g"
            " ON g.id = m.group_id"
        )
        rows = self.rows("nova_api", query)
        found = [Server(group, uuid, asked=asked[group]) for uuid, group in rows if group in asked]
        deadline = time.monotonic() + limit
        while any(not each.state for each in found) and time.monotonic() < deadline:
            time.sleep(_LOOK)
            self._look([each for each in found if not each.state])
        for each in found:
            each.state = each.state or "unknown"
        return [*found, *refused]

    def _look(self, servers: Iterable[Server]) -> None:
        states = self.states()
        now = time.monotonic()
        for each in servers:
            state, host = states.get(each.uuid, ("", None))
            if state in FINAL:
                each.state, each.host, each.ended = state, host, now
                if state == "error":
                    each.fault = self.fault(each.uuid)

    def wait(self, uuids: Collection[str], limit: float = 300.0) -> dict[str, str]:
        """The state of each server, after all have reached a final state or the time is over."""
        deadline = time.monotonic() + limit
        while True:
            states = self.states()
            found = {each: states.get(each, ("", None))[0] for each in uuids}
            if all(each in FINAL for each in found.values()) or time.monotonic() > deadline:
                return found
            time.sleep(_LOOK)

    def delete_all(self, limit: float = 1800.0) -> list[str]:
        """Delete every server, again if a request was lost; return those that are left."""
        deadline = time.monotonic() + limit
        asked: dict[str, float] = {}
        with futures.ThreadPoolExecutor(8) as pool:
            while (left := self._alive()) and time.monotonic() < deadline:
                late = [each for each in left if time.monotonic() - asked.get(each, 0.0) > 60]
                for each in late:
                    asked[each] = time.monotonic()
                list(pool.map(lambda uuid: self.call("DELETE", f"/servers/{uuid}"), late))
                time.sleep(1)
        return sorted(self._alive())

    def _alive(self) -> set[str]:
        requests = self.rows("nova_api", "SELECT instance_uuid FROM build_requests")
        return {*self.states(), *(uuid for (uuid,) in requests)}

    # -- checks of the end ---------------------------------------------------------------

    def twice(self) -> int:
        """Hosts with more than one server, by Nova's records or by Placement's."""
        hosts = collections.Counter(host for state, host in self.states().values() if host)
        query = (
            "SELECT COUNT(*) FROM (SELECT resource_provider_id FROM allocations a"
            " JOIN resource_classes c ON c.id = a.resource_class_id WHERE c.name = 'VCPU'"
            " GROUP BY resource_provider_id HAVING SUM(used) > 1) AS x"
        )
        ((doubled,),) = self.rows("placement", query)
        return int(doubled) + sum(number > 1 for number in hosts.values())

    def leftovers(self) -> dict[str, int]:
        """Number of our providers and of all allocations, by kind."""
        found: collections.Counter[str] = collections.Counter()
        for (name,) in self.rows("placement", "SELECT name FROM resource_providers"):
            kind = str(name).partition(":")[0]
            if kind.startswith("hpc-"):
                found[kind] += 1
        ((number,),) = self.rows("placement", "SELECT COUNT(*) FROM allocations")
        return dict(found) | ({"allocations": number} if number else {})


def leaves_of(servers: Iterable[Server]) -> Mapping[str, set[str]]:
    """Group -> the leaves of its running members."""
    found: dict[str, set[str]] = {}
    for each in servers:
        if each.state == "active" and each.host:
            found.setdefault(each.group, set()).add(Shape.leaf_of(each.host))
    return found
