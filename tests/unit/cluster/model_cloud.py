# SPDX-License-Identifier: Apache-2.0
"""A cloud in memory, with what Nova and Neutron promise, and faults at chosen calls.

It keeps records as the APIs show them. It knows nothing of clusters but what stands in
the requests; the code under test reads it as it reads a real one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from nova_hpc_client.cluster import head as heads
from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle.run import BusyError, ClusterCloudError, LostError
from nova_hpc_client.cluster.members import marks
from nova_hpc_client.cluster.members import model as members
from nova_hpc_client.cluster.members.foreign_group import GroupRecords
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_guest import host_list


class Killed(BaseException):
    """The client's process is gone."""


class ModelCloud:
    """One project's servers, groups and ports.

    :ivar fates: what becomes of the servers in the order of their creation: ``ACTIVE``, or
        the text of a fault.
    :ivar faults: number of a changing call -> what happens: ``kill`` or ``kill-after``,
        ``lose`` or ``lose-after`` (an answer that never comes), or a refusal's text.
    :ivar blind: members that were asked for while another of their group had no host yet.
    :ivar room: how many members find a host when they are unshelved; -1: all.
    :ivar no_host: why others found none, as far as Nova tells.
    """

    def __init__(self, fates: Sequence[str] = (), faults: Mapping[int, str] | None = None) -> None:
        self.fates = list(fates)
        self.faults = dict(faults or {})
        self.calls = 0
        self.log: list[str] = []
        self.groups: dict[str, dict[str, Any]] = {}
        self.servers: dict[str, dict[str, Any]] = {}
        self.ports: dict[str, dict[str, Any]] = {}
        self.blind: list[str] = []
        self.room = -1
        self.no_host: str | None = ""
        self._dead = False
        self._ids = 0
        self._addresses = 0
        self._lock = threading.Lock()

    def revive(self) -> None:
        """Another client comes; nothing goes wrong any more."""
        self.faults, self._dead = {}, False

    def _id(self) -> str:
        self._ids += 1
        return f"{self._ids:08x}-0000-4000-8000-000000000000"

    def _address(self) -> str:
        self._addresses += 1
        return f"192.0.2.{self._addresses}"

    def _change(self, what: str, effect: Any) -> Any:
        with self._lock:
            self.calls += 1
            fault = self.faults.get(self.calls)
            if self._dead or fault == "kill":
                self._dead = True
                raise Killed
            self.log.append(what)
            if fault == "lose":
                raise LostError("no answer")
            if fault and fault not in ("kill-after", "lose-after"):
                raise ClusterCloudError(fault)
            found = effect()
            if fault == "kill-after":
                self._dead = True
                raise Killed
            if fault == "lose-after":
                raise LostError("no answer")
            return found

    # -- what time does ------------------------------------------------------

    def tick(self) -> None:
        """Nova goes on with what it was asked for."""
        for id, server in list(self.servers.items()):
            if server["OS-EXT-STS:task_state"] == "deleting":
                del self.servers[id]
                for port in self.ports.values():
                    if port["device_id"] == id:
                        port["device_id"] = ""
                for group in self.groups.values():
                    group["members"] = [each for each in group["members"] if each != id]
            elif server["status"] != "BUILD" and server["OS-EXT-STS:task_state"]:
                self._go_on(server)
            elif server["status"] == "BUILD" and not server["_scheduled"]:
                server["_scheduled"] = True  # and a node has not taken it yet
            elif server["status"] == "BUILD" and not server["hostId"]:
                server["hostId"] = "some"  # which is at work on it until the next look
            elif server["status"] == "BUILD":
                fate = self.fates.pop(0) if self.fates else "ACTIVE"
                for each in server["_ports"]:
                    self.ports[each]["device_id"] = id
                if fate == "ACTIVE":
                    server |= {"status": "ACTIVE", "OS-SRV-USG:launched_at": "now"}
                    server["addresses"] = {"net": [{"addr": self._address()}]}
                    server["flavor"] = {"vcpus": 4}
                else:
                    server |= {"status": "ERROR", "fault": {"message": fate}}
                server["OS-EXT-STS:task_state"] = None

    def _go_on(self, server: dict[str, Any]) -> None:
        task = server["OS-EXT-STS:task_state"]
        server["OS-EXT-STS:task_state"] = None
        if task == "powering-off":
            server["status"] = "SHUTOFF"
        elif task == "powering-on":
            server |= {"status": "ACTIVE", "_boots": server.get("_boots", 0) + 1}
        elif task == "shelving":
            server |= {"status": "SHELVED_OFFLOADED", "hostId": ""}
        elif task == "unshelving" and server["hostId"]:
            server["status"] = "ACTIVE"
        elif task == "unshelving" and self.room != 0:
            self.room -= 1
            server |= {"hostId": "other", "OS-EXT-STS:task_state": "spawning"}
        elif task == "spawning":
            server["status"] = "ACTIVE"
        elif task == "rebuilding" and server["_image"] == "broken":
            server |= {"status": "ERROR", "fault": {"message": "it does not boot"}}
        elif task == "rebuilding" and server["status"] == "ERROR":
            server["status"] = "ACTIVE"

    # -- looking -------------------------------------------------------------

    def clusters(self) -> list[Cluster]:
        return members.gather_clusters(
            list(self.groups.values()), list(self.servers.values()), list(self.ports.values())
        )

    def look(self, group: str) -> Cluster:
        with self._lock:
            if self._dead:
                raise Killed
            self.tick()
            found = [each for each in self.clusters() if each.id == group]
            return found[0] if found else Cluster(group)

    def groups_of(self, attempt: str) -> Sequence[str]:
        found = {id: cluster_wish.from_group_name(each["name"]) for id, each in self.groups.items()}
        return [id for id, label in found.items() if label and label.attempt == attempt]

    def read_no_host(self, server: str) -> str | None:
        return self.no_host

    def console(self, server: str) -> str:
        return str(self.servers[server].get("_console", ""))

    # -- steps ----------------------------------------------------------------

    def make_group(
        self, wish: ClusterWish, attempt: str, policy: str, max_per_host: int | None
    ) -> str:
        body = wishes.group_body(wish, attempt, policy, max_per_host)["server_group"]

        def effect() -> str:
            id = self._id()
            self.groups[id] = {**body, "id": id, "members": []}
            return id

        return str(self._change("group", effect))

    def make_port(self, wish: ClusterWish, group: str, number: int, place: int) -> None:
        body = wishes.port_body(wish, group, number, place, ())["port"]

        def effect() -> None:
            id = self._id()
            fixed = [{"ip_address": self._address()}]
            self.ports[id] = {**body, "id": id, "device_id": "", "fixed_ips": fixed}

        self._change("port", effect)

    def make_servers(
        self,
        wish: ClusterWish,
        group: str,
        several: Sequence[int],
        ports: Sequence[tuple[int, str]],
        secrets: Secrets,
        hosts: str = "",
    ) -> None:
        body = wishes.server_body(wish, group, several, secrets, dict(ports), hosts)
        server = body["server"]
        count = server.pop("min_count", 1)
        named = [each["port"] for each in server["networks"] if "port" in each]

        def effect() -> None:
            if body["os:scheduler_hints"]["group"] not in self.groups:
                raise ClusterCloudError("the server group could not be found")
            if count > 1 and named:
                raise ClusterCloudError("ports in a request for several servers")
            for each in named:
                if self.ports[each]["device_id"]:
                    raise ClusterCloudError("the port is in use")
            mine = [self.servers[each] for each in self.groups[group]["members"]]
            if any(each["status"] == "BUILD" and not each["hostId"] for each in mine):
                self.blind.append(server["name"])
            for at in range(1, count + 1):
                name = f"{server['name']}-{at}" if count > 1 else server["name"]
                self.groups[group]["members"].append(self._make_server(server, name, named))

        self._change("servers", effect)

    def _make_server(self, server: Mapping[str, Any], name: str, ports: Sequence[str]) -> str:
        id = self._id()
        self.servers[id] = {
            "id": id,
            "name": name,
            "metadata": dict(server["metadata"]),
            "tags": list(server["tags"]),
            "status": "BUILD",
            "hostId": "",
            "_scheduled": False,
            "created": f"{self._ids:08d}",
            "OS-EXT-STS:task_state": "scheduling",
            "flavor": {"original_name": server["flavorRef"].removeprefix("id of ")},
            "_ports": ports,
        }
        return id

    def make_head(self, wish: ClusterWish, group: str, secrets: Secrets, hosts: str = "") -> None:
        body = heads.head_body(wish, group, secrets, hosts)
        assert body.keys() == {"server"}  # and no hint for the scheduler
        server = body["server"]
        self._change("head", lambda: self._make_server(server, server["name"], ()))

    def set_wish(self, wish: ClusterWish, group: str, server: str) -> None:
        items = cluster_wish.to_metadata(wish, group)

        def effect() -> None:
            if server in self.servers:
                self._refuse_locked(server)
                self.servers[server]["metadata"].update(items)

        self._change("wish", effect)

    def set_hosts(self, hosts: str, server: str) -> None:
        def effect() -> None:
            if server in self.servers:
                self._refuse_locked(server)
                self.servers[server]["metadata"].update(host_list.to_items(hosts))

        self._change("hosts", effect)

    def ask_server(self, server: str, action: str) -> None:
        tasks = {
            "os-stop": ("powering-off", {"ACTIVE"}),
            "os-start": ("powering-on", {"SHUTOFF"}),
            "shelve": ("shelving", {"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"}),
            "unshelve": ("unshelving", {"SHELVED", "SHELVED_OFFLOADED"}),
        }
        task, statuses = tasks[action]
        self._change(action, lambda: self._begin(server, task, statuses))

    def _begin(self, server: str, task: str, statuses: set[str]) -> None:
        record = self.servers[server]
        if record["OS-EXT-STS:task_state"] or record["status"] not in statuses:
            raise BusyError(f"{record['status']} {record['OS-EXT-STS:task_state']}")
        self._refuse_locked(server)
        if task == "unshelving" and any(
            each["OS-EXT-STS:task_state"] == "unshelving" for each in self.servers.values()
        ):
            self.blind.append(record["name"])
        record["OS-EXT-STS:task_state"] = task

    def _refuse_locked(self, server: str) -> None:
        if self.servers[server].get("locked"):
            raise ClusterCloudError("is locked")

    def rebuild_server(self, wish: ClusterWish, group: str, server: str) -> None:
        marks = {cluster_wish.TURN_KEY: wish.turn}

        def effect() -> None:
            record = self.servers[server]
            self._begin(server, "rebuilding", {"ACTIVE", "SHUTOFF", "ERROR"})
            record["metadata"] |= {**cluster_wish.to_metadata(wish, group), **marks}
            record["_image"] = wish.turn_image
            record["_rebuilt"] = record.get("_rebuilt", 0) + 1

        self._change("rebuild", effect)

    def mark_turn(self, wish: ClusterWish, server: str) -> None:
        marks = {cluster_wish.TURN_KEY: wish.turn}
        self._change("mark", lambda: self.servers[server]["metadata"].update(marks))

    def read_group(self, group: str) -> GroupRecords:
        if self._dead:
            raise Killed
        record = self.groups[group]
        there = [self.servers[id] for id in record["members"] if id in self.servers]
        hidden = tuple(id for id in record["members"] if id not in self.servers)
        flavors = {str((each.get("flavor") or {}).get("original_name")) for each in there}
        ids = {name: f"id of {name}" for name in flavors}
        return GroupRecords(record, tuple(there), tuple(self.ports.values()), hidden, ids)

    def mark_server(self, wish: ClusterWish, group: str, server: str) -> None:
        def effect() -> None:
            self.servers[server]["metadata"].update(cluster_wish.to_metadata(wish, group))
            self.servers[server]["tags"] = [wishes.member_tag_of(group, wish.adopted)]

        self._change("mark", effect)

    def drop_marks(self, server: str) -> None:
        def effect() -> None:
            items = self.servers[server]["metadata"]
            for key in [key for key in items if key.startswith("hpc_")]:
                del items[key]
            self.servers[server]["tags"] = []

        self._change("drop marks", effect)

    def keep_port(self, group: str, port: str, number: int, place: int) -> None:
        tags = [wishes.member_tag_of(group, True), marks.format_place_tag(number, place)]
        self._change("keep port", lambda: self.ports[port].update(tags=tags))

    def release_port(self, port: str) -> None:
        def effect() -> None:
            record = self.ports[port]
            record.pop("tags", None)
            if marks.mark_of_made_port(record) is not None:
                record["description"] = ""

        self._change("release port", effect)

    def delete_server(self, server: str) -> None:
        def effect() -> None:
            if server in self.servers:
                self._refuse_locked(server)
                self.servers[server]["OS-EXT-STS:task_state"] = "deleting"

        self._change("delete server", effect)

    def delete_port(self, port: str) -> None:
        def effect() -> None:
            if port in self.ports and self.ports[port]["device_id"]:
                raise ClusterCloudError("the port is in use")
            self.ports.pop(port, None)

        self._change("delete port", effect)

    def delete_group(self, group: str) -> None:
        self._change("delete group", lambda: self.groups.pop(group, None))
