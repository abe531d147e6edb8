# SPDX-License-Identifier: Apache-2.0
"""The processes of a race: schedulers that place members, and a reaper.

A scheduler reads the free hosts, joins the member's group, and claims a host of the domain
in Placement, as Nova's does. A table in MariaDB stands for Nova's database: it contains a server
before the server is scheduled.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
import traceback
from collections.abc import Collection, Mapping
from typing import Any

import attrs
import pymysql

from nova_hpc.cluster.group_domain.domain_choice import FabricSeat, Ground
from nova_hpc.cluster.group_domain.membership import Ask, GroupDomains, Joined, JoinOffer
from nova_hpc.cluster.group_domain.model import GroupDomain, Size
from nova_hpc.cluster.group_domain.records import (
    PlacementSilentError,
    ProviderAnswer,
    ProviderRecords,
    ServerPresence,
)
from nova_hpc.fabric.model import FabricLevel, FabricPlace
from nova_hpc_tools.snapshot.group_fleet import reap_all_domains

PROJECT = "7c4d6a52-0000-4000-8000-000000000001"


@attrs.frozen
class Cloud:
    """Leaves of hosts with room for one server each."""

    leaves: int
    hosts: int

    def leaf(self, number: int) -> GroupDomain:
        return GroupDomain("leaf", f"race/leaf{number}")

    def host(self, leaf: int, number: int) -> str:
        return f"host-{leaf}-{number}"


@attrs.frozen
class Where:
    """The addresses of the stage's servers."""

    ports: tuple[int, ...]
    socket: str


class Client:
    """One connection to one of Placement's processes; after a fault, to the next one."""

    def __init__(self, where: Where) -> None:
        self._ports = where.ports
        self._number = random.randrange(len(self._ports))
        self._connection: http.client.HTTPConnection | None = None
        self.sent = 0

    def get(self, path: str) -> ProviderAnswer:
        return self.send("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> ProviderAnswer:
        return self.send("POST", path, body)

    def delete(self, path: str) -> ProviderAnswer:
        return self.send("DELETE", path)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> ProviderAnswer:
        self.sent += 1
        headers = {
            "X-Auth-Token": "admin",
            "OpenStack-API-Version": "placement 1.38",
            "Accept": "application/json",
            "Content-Type": "application/json",
        }
        try:
            if self._connection is None:
                port = self._ports[self._number % len(self._ports)]
                self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            data = None if body is None else json.dumps(body)
            self._connection.request(method, path, data, headers)
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection = None
            self._number += 1
            return ProviderAnswer(0)
        try:
            return ProviderAnswer(answer.status, json.loads(text) if text else {})
        except ValueError:
            return ProviderAnswer(answer.status)


class Servers:
    """The table of servers, in place of Nova's."""

    def __init__(self, where: Where) -> None:
        self._connection = pymysql.connect(
            unix_socket=where.socket, user="root", database="nova", autocommit=True
        )

    def states(self, uuids: Collection[str]) -> Mapping[str, ServerPresence]:
        found = dict.fromkeys(uuids, ServerPresence.GONE)
        if found:
            marks = ",".join(["%s"] * len(found))
            with self._connection.cursor() as cursor:
                cursor.execute(f"SELECT uuid FROM race_servers WHERE uuid IN ({marks})", [*found])
                found |= {uuid: ServerPresence.THERE for (uuid,) in cursor.fetchall()}
        return found


def place(
    where: Where, client: Client, servers: Servers, cloud: Cloud, ask: Ask, dies: int | None
) -> tuple[str, str]:
    """Schedule one member; ("placed", leaf), ("refused", reason) or ("unsettled", reason).

    :param dies: number of the request at which this process ends with SIGKILL; None for none.
    """
    if dies is not None:
        client.sent, plain = 0, client.send

        def send(method: str, path: str, body: Mapping[str, Any] | None = None) -> ProviderAnswer:
            if client.sent >= dies:
                os.kill(os.getpid(), 9)
            return plain(method, path, body)

        client.send = send  # type: ignore[method-assign]
    for _ in range(20):
        # Placement's candidates, read just before their use.
        answer = client.get("/resource_providers?resources=VCPU:1")
        if answer.status != 200:
            time.sleep(0.2)
            continue
        by: dict[int, list[tuple[str, str]]] = {}
        for each in answer.body["resource_providers"]:
            leaf = int(each["name"].split("-")[1])
            by.setdefault(leaf, []).append((each["name"], each["uuid"]))
        seats = [
            FabricSeat(FabricPlace(name, leaf=f"leaf{leaf}"), "race", 1)
            for leaf, hosts in by.items()
            for name, _ in hosts
        ]
        offer = JoinOffer(
            Ground(tuple(seats)),
            FabricLevel.LEAF,
            size=Size("aa", 1),
            seen={uuid: frozenset() for hosts in by.values() for _, uuid in hosts},
        )
        try:
            found = GroupDomains(ProviderRecords(client, limit=120.0), servers).join(ask, offer)
        except PlacementSilentError as error:
            return "unsettled", str(error)
        if not isinstance(found, Joined):
            return "refused", repr(found)
        leaf = next(n for n in range(cloud.leaves) if cloud.leaf(n).uuid == found.domain)
        hosts = by.get(leaf, [])
        random.shuffle(hosts)
        for name, uuid in hosts:
            body = {
                "allocations": {uuid: {"resources": {"VCPU": 1}}},
                "project_id": PROJECT,
                "user_id": PROJECT,
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            }
            status = client.send("PUT", f"/allocations/{ask.server}", body).status
            if status == 204:
                return "placed", name.split("-")[1]
            if status == 0:
                held = client.get(f"/allocations/{ask.server}").body.get("allocations")
                if held:
                    return "placed", name.split("-")[1]
        # Other schedulers have claimed all of them: read again, like Nova's alternates.
    return "refused", "no claim"


def scheduler(where: Where, cloud: Cloud, jobs: Any, results: Any, dies: int | None = None) -> None:
    """Main function of a scheduler: jobs are (group, members, server), or None to end."""
    client, servers = Client(where), Servers(where)
    while (job := jobs.get()) is not None:
        group, members, server = job
        started = time.monotonic()
        try:
            found = place(where, client, servers, cloud, Ask(server, group, members), dies)
        except Exception:
            found = ("broken", traceback.format_exc())
        results.put((group, server, *found, time.monotonic() - started))


def reaper(where: Where, stop: Any) -> None:
    """Main function of a reaper that never pauses."""
    client, servers = Client(where), Servers(where)
    while not stop.is_set():
        reap_all_domains(lambda: ProviderRecords(client), servers)
