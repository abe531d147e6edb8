# SPDX-License-Identifier: Apache-2.0
"""All hosts of the cloud in one process: a real ``ComputeManager`` each, with Nova's fake driver.

Messages of RabbitMQ for all of them come through one queue: a connection and three threads for
each host would use most of this machine. The managers get each message in the form of
oslo.messaging.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

import attrs

from benchmarks.concurrency import computes, nova_process
from benchmarks.group_cloud import elsewhere
from nova_hpc.fabric.model import FabricMap, FabricPlace
from nova_hpc_tools.fabric import map_aggregates

_NAMESPACE = uuid.UUID("1f0e7e0a-95b6-4f0e-9d57-b7b1e3f6d2aa")
_TOPICS = ("compute", "compute-alt")


@attrs.frozen
class Shape:
    """Leaves of hosts with room for one server each."""

    leaves: int = 32
    hosts: int = 16

    def names(self) -> Iterator[tuple[str, str]]:
        """Pairs of host and leaf."""
        for leaf in range(self.leaves):
            for host in range(self.hosts):
                yield f"l{leaf}h{host}", f"leaf{leaf}"

    @staticmethod
    def leaf_of(host: str) -> str:
        return f"leaf{host[1:].partition('h')[0]}"


def _driver_class() -> Any:
    from nova.virt import driver, fake

    class OneServer(fake.FakeDriver):
        """Room for one server; the node's UUID is the same after a restart."""

        vcpus = 1
        memory_mb = 1024
        local_gb = 10

        def get_nodenames_by_uuid(self, refresh: bool = False) -> dict[str, str]:
            return {_node_uuid(name): name for name in self.get_available_nodes()}

        def get_available_resource(self, nodename: str) -> dict[str, Any]:
            return super().get_available_resource(nodename) | {"uuid": _node_uuid(nodename)}

    assert issubclass(OneServer, driver.ComputeDriver)
    return OneServer


def _nothing_new(context: Any, compute_node: Any, startup: bool) -> None:
    """Replaces ``ResourceTracker._update_to_placement``: eight requests that change nothing.

    In a real cloud, the trackers run on other machines than the schedulers.
    """


def _node_uuid(name: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, name))


class Hosts:
    """The managers of all hosts, and their messages."""

    def __init__(self, context: Any, shape: Shape, url: str) -> None:
        from nova import rpc
        from nova.compute import manager
        from nova.conf import CONF
        from nova.objects import base
        from nova.scheduler.client import report
        from nova.virt import driver

        rpc.init(CONF)
        self.context = context
        self.shape = shape
        self.url = url
        self.serializer = rpc.RequestContextSerializer(base.NovaObjectSerializer())
        elsewhere.install()
        one = _driver_class()
        driver.load_compute_driver = lambda virtapi, name=None: one(virtapi)
        # One pool of connections to Placement for all hosts; in Nova each host has its own.
        shared = report.SchedulerReportClient()._client

        def adapter(client: Any) -> Any:
            client.clear_provider_cache(init=True)
            return shared

        report.SchedulerReportClient._create_client = adapter
        self.managers = {name: manager.ComputeManager(host=name) for name, _ in shape.names()}
        self.errors: list[str] = []
        self._pool = futures.ThreadPoolExecutor(8)
        self._stop = threading.Event()

    def register(self) -> None:
        """Do the same as the start of nova-compute, and as nova-manage's discover_hosts."""
        from nova import objects

        cell = computes._make_cells(self.context, self.url)

        def start(item: tuple[str, Any]) -> None:
            name, manager = item
            manager.init_host(None)
            service = objects.Service(
                self.context, host=name, binary="nova-compute", topic="compute"
            )
            service.create()
            manager.pre_start_hook(service)
            objects.HostMapping(self.context, host=name, cell_mapping=cell).create()

        with futures.ThreadPoolExecutor(4) as pool:
            for _ in pool.map(start, self.managers.items()):
                pass
        for each in self.managers.values():
            each.rt._update_to_placement = _nothing_new
        threading.Thread(target=self._listen, daemon=True).start()

    def sync(self) -> None:
        """Send the servers of each host to the schedulers, as Nova's periodic task does."""
        from nova.scheduler.client import query

        client = query.SchedulerQueryClient()
        for name in self.managers:
            client.sync_instance_info(self.context, name, [])

    def aggregates(self) -> None:
        """Write the aggregates of ``nova-hpc fabric sync``."""
        from nova import objects

        places = (FabricPlace(host, leaf=leaf, spine="spine") for host, leaf in self.shape.names())
        for each in map_aggregates.aggregates_of(FabricMap(name="race", places=tuple(places))):
            made = objects.Aggregate(self.context, name=each.name)
            made.create()
            made.update_metadata(dict(each.metadata))
            for host in each.hosts:
                made.add_host(host)

    def _listen(self) -> None:
        """Take messages until the end; after a fault of RabbitMQ, use a new connection."""
        import kombu

        exchange = kombu.Exchange("nova", type="topic", durable=False)
        queues = [
            kombu.Queue(f"race-{topic}", exchange, routing_key=f"{topic}.#", durable=False)
            for topic in _TOPICS
        ]
        while not self._stop.is_set():
            try:
                with (
                    kombu.Connection(self.url.replace("rabbit://", "amqp://")) as connection,
                    connection.Consumer(queues, callbacks=[self._take], accept=["json"]),
                ):
                    while not self._stop.is_set():
                        try:
                            connection.drain_events(timeout=1)
                        except TimeoutError:
                            continue
            except Exception as error:
                self.errors.append(f"RabbitMQ: {error!r}")
                time.sleep(1)

    def _take(self, body: Any, message: Any) -> None:
        host = message.delivery_info["routing_key"].partition(".")[2]
        message.ack()
        self._pool.submit(self._act, host, body)

    def _act(self, host: str, body: Any) -> None:
        from oslo_messaging._drivers import amqp, common

        try:
            found = common.deserialize_msg(body)
            context = self.serializer.deserialize_context(amqp.unpack_context(found).to_dict())
            arguments = {
                name: self.serializer.deserialize_entity(context, value)
                for name, value in found["args"].items()
            }
            getattr(self.managers[host], found["method"])(context, **arguments)
        except Exception:
            self.errors.append(traceback.format_exc())

    def said(self) -> list[str]:
        """The errors since the last call."""
        found, self.errors = self.errors, []
        return found

    def stop(self) -> None:
        self._stop.set()


def run(files: Sequence[str], log: str, shape: Shape, url: str, orders: Any, answers: Any) -> None:
    """Main function of the process: takes words from *orders* until ``stop``."""
    try:
        context = nova_process.begin(files[0], log, {}, files[1:])
        hosts = Hosts(context, shape, url)
    except Exception:
        answers.put(("failed", traceback.format_exc()))
        return
    while True:
        try:
            word = orders.get(timeout=3600)
        except queue.Empty:
            return
        if word == "stop":
            hosts.stop()
            return
        try:
            answers.put((word, getattr(hosts, word)()))
        except Exception:
            answers.put(("failed", traceback.format_exc()))
