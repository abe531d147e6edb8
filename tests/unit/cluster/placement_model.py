# SPDX-License-Identifier: Apache-2.0
"""What Placement promises of providers, in memory, and actors that take turns at it.

Names and UUIDs are unique, a provider with children stays, a parent has to be there. The real
Placement is held to the same by the functional tests; here its faults come where a test wants
them, and any number of schedulers take turns in any order.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib import parse

import attrs

from nova_hpc.cluster.group_domain.model import (
    RECORD_PREFIX,
    TICKET_PREFIX,
    DomainTree,
    GroupProvider,
)
from nova_hpc.cluster.group_domain.records import ProviderAnswer, ProviderRecords, ServerPresence


class KilledError(BaseException):
    """The process has ended here."""


@attrs.define
class World:
    """Placement's tables, and Nova's."""

    providers: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    #: server -> host
    allocations: dict[str, str] = attrs.field(factory=dict)
    states_: dict[str, ServerPresence] = attrs.field(factory=dict)

    def states(self, uuids: Collection[str]) -> Mapping[str, ServerPresence]:
        return {each: self.states_.get(each, ServerPresence.GONE) for each in uuids}

    def server(self) -> str:
        """A new server, which Nova knows before it is scheduled."""
        name = str(uuid.uuid4())
        self.states_[name] = ServerPresence.THERE
        return name

    def get(self, path: str) -> ProviderAnswer:
        parts = parse.urlsplit(path)
        if parts.path.startswith("/allocations/"):
            host = self.allocations.get(parts.path.rpartition("/")[2])
            return ProviderAnswer(200, {"allocations": {host: {}} if host else {}})
        query = dict(parse.parse_qsl(parts.query))
        found = list(self.providers.values())
        if "uuid" in query:
            found = [each for each in found if each["uuid"] == query["uuid"]]
        if "name" in query:
            found = [each for each in found if each["name"] == query["name"]]
        if "in_tree" in query:
            top = self.providers.get(query["in_tree"])
            root = top and top["root_provider_uuid"]
            found = [each for each in found if each["root_provider_uuid"] == root]
        return ProviderAnswer(200, {"resource_providers": [dict(each) for each in found]})

    def post(self, path: str, body: Mapping[str, Any]) -> ProviderAnswer:
        parent = body.get("parent_provider_uuid")
        if parent is not None and parent not in self.providers:
            return ProviderAnswer(400)
        names = {each["name"] for each in self.providers.values()}
        if body["uuid"] in self.providers or body["name"] in names:
            return ProviderAnswer(409)
        root = self.providers[parent]["root_provider_uuid"] if parent else body["uuid"]
        self.providers[body["uuid"]] = {
            "uuid": body["uuid"],
            "name": body["name"],
            "parent_provider_uuid": parent,
            "root_provider_uuid": root,
        }
        return ProviderAnswer(200)

    def delete(self, path: str) -> ProviderAnswer:
        name = path.rpartition("/")[2]
        if name not in self.providers:
            return ProviderAnswer(404)
        if any(each["parent_provider_uuid"] == name for each in self.providers.values()):
            return ProviderAnswer(409)
        del self.providers[name]
        return ProviderAnswer(204)

    # -- what tests look at --------------------------------------------------

    def all(self) -> list[GroupProvider]:
        return [GroupProvider.of(each) for each in self.providers.values()]

    def trees(self) -> list[DomainTree]:
        roots = {each.root for each in self.all()}
        return [
            DomainTree.of(root, [each for each in self.all() if each.root == root])
            for root in roots
        ]

    def names(self, prefix: str) -> list[str]:
        return [each.name for each in self.all() if each.name.startswith(prefix)]

    def domains_of(self, group: str) -> set[str]:
        """The domains that members of *group* have a ticket of."""
        records = {each.uuid for each in self.all() if each.name == RECORD_PREFIX + group}
        return {
            each.root
            for each in self.all()
            if each.parent in records and each.name.startswith(TICKET_PREFIX)
        }


@attrs.define
class Client:
    """One process's connection; *before* and *after* may raise, or say what comes back."""

    world: World
    before: Callable[[str, str], ProviderAnswer | None] = lambda method, path: None
    after: Callable[[str, str, ProviderAnswer], ProviderAnswer] = lambda method, path, answer: (
        answer
    )
    calls: int = 0

    def get(self, path: str) -> ProviderAnswer:
        return self._send("GET", path, lambda: self.world.get(path))

    def post(self, path: str, body: Mapping[str, Any]) -> ProviderAnswer:
        return self._send("POST", path, lambda: self.world.post(path, body))

    def delete(self, path: str) -> ProviderAnswer:
        return self._send("DELETE", path, lambda: self.world.delete(path))

    def _send(self, method: str, path: str, act: Callable[[], ProviderAnswer]) -> ProviderAnswer:
        self.calls += 1
        answer = self.before(method, path)
        return self.after(method, path, act() if answer is None else answer)


def records(client: Any, limit: float = 1000.0) -> ProviderRecords:
    """Records whose clock goes on by a second with each look, and that never wait."""
    ticks = itertools.count()
    return ProviderRecords(
        client, limit=limit, clock=lambda: next(ticks), sleep=lambda seconds: None
    )


class Turns:
    """Lets actors go on one request at a time, in the order that *choose* says."""

    def __init__(self, world: World, choose: Callable[[int], int]) -> None:
        self._world = world
        self._choose = choose
        self._gates: dict[int, threading.Event] = {}
        self._arrived = threading.Semaphore(0)
        self._waiting: set[int] = set()
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def add(self, act: Callable[[Client], None], dies_at: int | None = None) -> None:
        """An actor; with *dies_at* its process ends before that request, or after it."""
        number = len(self._threads)
        self._gates[number] = threading.Event()

        def before(method: str, path: str) -> None:
            self._waiting.add(number)
            self._arrived.release()
            self._gates[number].wait()
            self._gates[number].clear()
            if dies_at is not None and client.calls > dies_at:
                raise KilledError

        client = Client(self._world, before=before)

        def run() -> None:
            try:
                act(client)
            except KilledError:
                pass
            except BaseException as error:
                self.errors.append(error)
            finally:
                self._arrived.release()

        self._threads.append(threading.Thread(target=run, daemon=True))

    def run(self) -> None:
        """Until all have ended."""
        for each in self._threads:
            each.start()
            self._arrived.acquire()
        while self._waiting:
            waiting = sorted(self._waiting)
            number = waiting[self._choose(len(waiting)) % len(waiting)]
            self._waiting.discard(number)
            self._gates[number].set()
            self._arrived.acquire()
        for each in self._threads:
            each.join(10)
        if self.errors:
            raise self.errors[0]
