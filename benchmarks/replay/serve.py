# SPDX-License-Identifier: Apache-2.0
"""The processes of a replay: a scheduler that answers one request at a time, and the hosts."""

from __future__ import annotations

import functools
import http
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

import attrs

from benchmarks.concurrency import computes, nova_process, scheduler
from benchmarks.concurrency.model import BROKEN, PLACED, REFUSED, Cloud, Variant
from benchmarks.concurrency.stage import Stage
from benchmarks.replay import day
from nova_hpc_common.level import Level

#: ``[pci]alias`` of all processes.
ALIASES = [
    f'{{"name": "{name}", "resource_class": "{kind}"}}'
    for name, kind in (("gpu", computes.GPU_CLASS), ("vf", computes.VF_CLASS))
]


@attrs.frozen
class News:
    """A message of a nova-compute to all schedulers about its servers.

    :ivar word: ``update``: *what* is an ``InstanceList`` of changed servers; ``delete``: the UUID
        of a deleted one; ``sync``: the UUIDs of all, which Nova sends every two minutes.
    """

    word: str
    host: str
    what: Any


@attrs.frozen
class Answer:
    """The answer of a scheduler to one request.

    :ivar builds: for each server of a placed request: request specification, host
        and the providers of its devices, for the hosts.
    :ivar asked: number of requests to Placement.
    :ivar conflicts: number of claims that Placement refused, because another scheduler was first.
    :ivar read: number of times that Nova read a host's servers, which no nova-compute had reported.
    """

    at: int
    outcome: str
    text: str
    seconds: float
    asked: int = 0
    conflicts: int = 0
    read: int = 0
    free_left: bool = False
    builds: tuple[tuple[Any, str, Mapping[str, list[str]]], ...] = ()


def flavor_of(gpus: int, variant: Variant, **more: Any) -> Any:
    """The flavor with *gpus* GPUs and virtual functions; *more* has the fields of the database."""
    from nova import objects

    specs = {"pci_passthrough:alias": f"gpu:{gpus},vf:{gpus}"}
    if variant.ours:
        specs["hpc:affinity"] = day.LEVELS[gpus].word
    return objects.Flavor(
        **more, flavorid=f"day-{gpus}", name=f"day-{gpus}", vcpus=2, memory_mb=1024, root_gb=1,
        ephemeral_gb=0, swap=0, rxtx_factor=1.0, vcpu_weight=0, is_public=True, disabled=False,
        description=None, extra_specs=specs,
    )  # fmt: skip


class Scheduler:
    """Nova's scheduler with the requests of the day."""

    def __init__(self, context: Any, variant: Variant, cloud: Cloud, made: Stage) -> None:
        from nova.scheduler import manager
        from nova.scheduler.client import report

        self.context = context
        self.made = made
        self.variant = variant
        self.places = computes.layout(cloud)
        self.asked = self.conflicts = self.read = 0
        #: Error of the thread that receives news; "" while it works.
        self.deaf = ""
        client = report.SchedulerReportClient
        # Only counts.
        for word in ("get", "put", "post", "delete"):
            setattr(client, word, self._counted(getattr(client, word)))
        self.manager = manager.SchedulerManager()
        self.client = self.manager.placement_client
        hosts = self.manager.host_manager
        hosts._get_instances_by_host = self._reading(hosts._get_instances_by_host)

    def _reading(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def read(*arguments: Any) -> Any:
            self.read += 1
            return plain(*arguments)

        return read

    def _counted(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def request(client: Any, url: str, *arguments: Any, **keywords: Any) -> Any:
            self.asked += 1
            answer = plain(client, url, *arguments, **keywords)
            claim = url.startswith("/allocations") and plain.__name__ in ("put", "post")
            self.conflicts += claim and answer.status_code == http.HTTPStatus.CONFLICT
            return answer

        return request

    def hear(self, news: Any) -> None:
        """Take the news of computes, like threads of Nova, until the pipe is closed.

        None is sent back after all news before it were taken, so the sender can wait for it.
        """
        from nova import objects

        try:
            while True:
                told = news.recv()
                if told is None:
                    news.send(None)
                    continue
                what = told.what
                if told.word == "update":
                    what = objects.InstanceList.obj_from_primitive(what, self.context)
                getattr(self.manager, f"{told.word}_instance_info")(self.context, told.host, what)
        except EOFError:
            return
        except Exception:
            self.deaf = traceback.format_exc()

    def spec(self, request: day.Request) -> Any:
        """The request specification that the API makes from the flavor."""
        from nova import objects
        from nova.pci import request as pci_request

        flavor = flavor_of(request.gpus, self.variant, id=request.gpus)
        wanted = pci_request.get_pci_requests_from_flavor(flavor)
        found = objects.RequestSpec.from_components(
            self.context, request.servers[0], {}, flavor, None, wanted, {}, None, None,
            project_id="race", user_id="race",
        )  # fmt: skip
        found.num_instances = len(request.servers)
        return found

    def answer(self, request: day.Request) -> Answer:
        """Serve one request as the service does."""
        from nova import exception
        from oslo_messaging.rpc import ExpectedException

        if self.deaf:
            return Answer(request.at, BROKEN, self.deaf, 0.0)
        before = self.unused()
        self.asked = self.conflicts = self.read = 0
        spec = self.spec(request)
        started = time.monotonic()
        try:
            lists = self.manager.select_destinations(
                self.context,
                spec_obj=spec,
                instance_uuids=list(request.servers),
                return_objects=True,
                return_alternates=True,
            )
        except Exception as error:
            seconds = time.monotonic() - started
            cause = error.exc_info[1] if isinstance(error, ExpectedException) else error
            clean = isinstance(cause, exception.NoValidHost)
            return Answer(
                request.at,
                REFUSED if clean else BROKEN,
                str(cause) if clean else traceback.format_exc(),
                seconds,
                self.asked,
                self.conflicts,
                self.read,
                clean and self.had_space(request, before),
            )
        seconds = time.monotonic() - started
        return Answer(
            request.at,
            PLACED,
            "",
            seconds,
            self.asked,
            self.conflicts,
            self.read,
            builds=tuple(
                self._build(spec, name, selections[0])
                for name, selections in zip(request.servers, lists, strict=True)
            ),
        )

    @staticmethod
    def _build(spec: Any, name: str, selection: Any) -> tuple[Any, str, Mapping[str, list[str]]]:
        """The conductor's order for a host: each server has its own request and providers."""
        from nova.scheduler import utils

        own = spec.obj_clone()
        own.instance_uuid = name
        own.num_instances = 1
        utils.fill_provider_mapping(own, selection)
        mapping = {
            group.requester_id: list(group.provider_uuids)
            for group in own.requested_resources
            if group.requester_id
        }
        return own.obj_to_primitive(), selection.service_host, mapping

    def had_space(self, request: day.Request, before: Collection[tuple[str, str]]) -> bool:
        """Whether Placement had devices for the request both before it and now.

        The scheduler could not use devices that a departure has released since.
        """
        level = day.LEVELS[request.gpus] if self.variant.ours else Level.HOST
        always = self.unused() & frozenset(before)
        return day.room(self._placed(always), request.gpus, level) and len(request.servers) == 1

    def free(self) -> list[tuple[str, Any]]:
        """Host and place of each GPU that is free in Placement on a host that is up."""
        return self._placed(self.unused())

    def _placed(self, some: Iterable[tuple[str, str]]) -> list[tuple[str, Any]]:
        return [(host, self.places[address]) for host, address in sorted(some)]

    def unused(self) -> frozenset[tuple[str, str]]:
        """Host and address of each GPU that is free in Placement on a host that is up."""
        # Read from the database. Placement's API needs a second of its one process for the GPUs
        # of 300 hosts, twice a request. That would change the measured times.
        pairs = (name.rpartition("_") for name in self.made.unused(computes.GPU_CLASS))
        down = self.made.down()
        # Nova names the provider of a device <host>_<address>.
        return frozenset((host, address) for host, _, address in pairs if host not in down)


def schedule(
    made: Stage,
    log: str,
    variant: Variant,
    cloud: Cloud,
    candidates: int,
    connection: Any,
    news: Any,
) -> None:
    """Main function of a scheduler's process: answers requests until None.

    :param news: the pipe for :class:`News`.
    """
    options: dict[tuple[str, str], object] = {
        ("scheduler", "max_placement_results"): candidates,
        **scheduler.options(variant),
        # Nova's default; without it a request reads the servers of each of its hosts.
        ("filter_scheduler", "track_instance_changes"): True,
        ("pci", "device_spec"): [],
        ("pci", "alias"): ALIASES,
    }
    try:
        context = nova_process.begin(str(made.nova_conf), log, options)
        served = Scheduler(context, variant, cloud, made)
        threading.Thread(target=served.hear, args=(news,), daemon=True).start()
        connection.send("ready")
    except Exception:
        connection.send(Answer(-1, BROKEN, traceback.format_exc(), 0.0))
        return
    while (request := connection.recv()) is not None:
        if request == "free":
            connection.send(served.free())
            continue
        try:
            connection.send(served.answer(request))
        except Exception:
            connection.send(Answer(request.at, BROKEN, traceback.format_exc(), 0.0))


class Hosts(computes.Computes):
    """The hosts of the day: servers leave one by one, and hosts fail.

    The reports of Nova's resource tracker to Placement after each claim are left out: some
    twenty-five requests of a host of eight GPUs, which change nothing. In a real cloud, the
    trackers run on other machines, and here the schedulers need the processors.
    """

    def __init__(self, context: Any, cloud: Cloud, say: Callable[[News], None]) -> None:
        super().__init__(context, cloud)
        self.say = say

    def flavors(self, variant: Variant) -> None:
        """Make the day's flavors, from which a scheduler learns the demand."""
        for gpus in day.LEVELS:
            flavor_of(gpus, variant, context=self.context).create()

    def take_over(self, first: int) -> None:
        """Start all hosts; the rows of those from *first* on are in the databases already."""
        from nova import objects
        from nova.compute import provider_tree

        for number, (name, tracker) in enumerate(self.trackers.items()):
            tracker._update_to_placement = functools.partial(_without_report, tracker)
            if number >= first:
                service = objects.Service.get_by_compute_host(self.context, name)
                tracker.set_service_ref(service)
                tracker.update_available_resource(self.context, name, startup=True)
                # Claims search devices in it.
                tracker.provider_tree = provider_tree.ProviderTree()
                tree = tracker.reportclient.get_providers_in_tree(
                    self.context, tracker.compute_nodes[name].uuid
                )
                tracker.provider_tree.populate_from_iterable(tree)

    def build(self, primitive: Any, host: str, mapping: dict[str, list[str]]) -> str:
        """Claim a server's devices, and report it to the schedulers."""
        from nova import objects

        refused = super().build(primitive, host, mapping)
        if not refused:
            with self.lock:
                _, instance = self.servers[primitive["nova_object.data"]["instance_uuid"]]
            some = objects.InstanceList(objects=[instance])
            self.say(News("update", host, some.obj_to_primitive()))
        return refused

    def all_servers(self) -> dict[str, list[str]]:
        """Host -> UUIDs of its servers."""
        found: dict[str, list[str]] = {name: [] for name in self.trackers}
        with self.lock:
            for server, (name, _) in self.servers.items():
                found[name].append(server)
        return found

    def delete(self, servers: Sequence[str]) -> list[str]:
        """Delete servers as the API and nova-compute do, also servers that were never built."""
        client = next(iter(self.trackers.values())).reportclient
        for name in servers:
            with self.lock:
                host, instance = self.servers.pop(name, ("", None))
            if instance is not None:
                instance.vm_state = "deleted"
                tracker = self.trackers[host]
                tracker.update_usage(self.context, instance, host)
            client.delete_allocation_for_instance(self.context, name, force=True)
            if instance is not None:
                instance.destroy()
                self.say(News("delete", host, name))
        return list(servers)

    def set_down(self, count: int, down: bool) -> None:
        """Force the first *count* hosts down, or up again."""
        from nova import objects

        for name in list(self.trackers)[:count]:
            service = objects.Service.get_by_compute_host(self.context, name)
            service.forced_down = down
            service.save()


def _without_report(tracker: Any, context: Any, compute_node: Any, startup: bool) -> None:
    """The rest of ``ResourceTracker._update_to_placement``: it sets the providers of the pools."""
    tracker.pci_tracker.stats.populate_pools_metadata_from_assigned_devices()


def host(nova_conf: str, log: str, cloud: Cloud, connection: Any, news: Any) -> None:
    """Main function of the hosts' process.

    Takes ``(number, word, arguments)`` and answers ``(number, result)``, builds and deletions in
    four threads; :class:`News` go to *news*.
    """
    sending = threading.Lock()

    def say(told: News) -> None:
        with sending:
            news.send(told)

    options = {
        ("pci", "device_spec"): computes.device_spec(cloud),
        ("pci", "alias"): ALIASES,
    }
    try:
        hosts = Hosts(nova_process.begin(nova_conf, log, options), cloud, say)
    except Exception:
        connection.send((-1, traceback.format_exc()))
        return
    pool = futures.ThreadPoolExecutor(4)
    built: dict[str, futures.Future[str]] = {}

    def delete(servers: Sequence[str]) -> list[str]:
        for name in servers:
            if name in built:
                built.pop(name).result()
        return hosts.delete(servers)

    def done(number: int, future: futures.Future[Any]) -> None:
        error = future.exception()
        text = "failed: " + "".join(traceback.format_exception(error)) if error else ""
        with sending:
            connection.send((number, text or future.result()))

    while True:
        number, word, arguments = connection.recv()
        if word == "stop":
            pool.shutdown(wait=False, cancel_futures=True)
            return
        future: futures.Future[Any]
        if word == "build":
            future = pool.submit(hosts.build, *arguments)
            built[arguments[0]["nova_object.data"]["instance_uuid"]] = future
        elif word == "delete":
            future = pool.submit(delete, *arguments)
        else:
            future = pool.submit(getattr(hosts, word), *arguments)
        future.add_done_callback(lambda found, number=number: done(number, found))
