# SPDX-License-Identifier: Apache-2.0
"""One scheduler in a process of its own: Nova's SchedulerManager, with or without our filters."""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from benchmarks.concurrency import nova_process, scheduler
from benchmarks.concurrency.computes import GPU_CLASS, VF_CLASS
from benchmarks.concurrency.model import Variant
from nova_hpc_tools.site import settings as plugin

#: The first message of a process, before any question.
READY: Final = "ready"
#: The most reports of the hosts to a scheduler; it trusts the second one.
_TOLD: Final = 5
#: ``[pci]alias`` of all processes.
ALIASES: Final = (
    f'{{"name": "gpu", "resource_class": "{GPU_CLASS}"}}',
    f'{{"name": "vf", "resource_class": "{VF_CLASS}"}}',
)


@attrs.frozen
class Question:
    """The devices and servers of a request."""

    gpus: int
    functions: int = 0
    servers: int = 1

    def __str__(self) -> str:
        devices = f"gpu:{self.gpus}" + (f",vf:{self.functions}" if self.functions else "")
        return devices if self.servers == 1 else f"{self.servers} servers of {devices}"

    def specs(self, ours: bool) -> dict[str, str]:
        """Extra specs of the flavor."""
        alias = f"gpu:{self.gpus}" + (f",vf:{self.functions}" if self.functions else "")
        found = {"pci_passthrough:alias": alias}
        if ours:
            # A host has eight GPUs, four of them on each NUMA node.
            near = "numa" if self.gpus <= 4 else "host"
            found["hpc:affinity"] = "switch" if self.gpus <= 2 else near
        return found


@attrs.frozen
class Sample:
    """One answer of a scheduler."""

    #: Elapsed time, including Placement's part.
    seconds: float
    #: CPU time of only the scheduler's process.
    cpu_seconds: float
    #: Number of GET requests to Placement, without those of claims.
    gets: int
    #: Number of claims beyond one for each server.
    lost: int
    #: The reason if no server was placed; "" if all were.
    fault: str = ""


@attrs.frozen
class _Asked:
    """A variant of a scheduler in the form for the scheduler of the races."""

    title: str
    ours: bool
    question: Question
    options: Mapping[tuple[str, str], object] = attrs.field(factory=dict)

    def specs(self, gpus: int) -> dict[str, str]:
        return self.question.specs(self.ours)


class Side:
    """Answers questions and measures itself."""

    def __init__(self, context: Any, ours: bool) -> None:
        from nova.scheduler.client import report

        self._context = context
        self._ours = ours
        self._gets = 0
        plain = report.SchedulerReportClient.get

        def get(client: Any, url: str, *arguments: Any, **keywords: Any) -> Any:
            # Nova's claim first reads the server's allocations, which does not count.
            self._gets += not url.startswith("/allocations/")
            return plain(client, url, *arguments, **keywords)

        # Only counts.
        report.SchedulerReportClient.get = get
        variant = Variant("ours" if ours else "stock", ours)
        self.scheduler = scheduler.Scheduler(context, 1, variant, 0)
        self._hear_of_hosts()

    def _hear_of_hosts(self) -> None:
        """Report each host's servers (none) as nova-compute does every two minutes.

        Without this report, a scheduler reads them from Nova's database in each request.
        """
        from nova import objects

        manager = self.scheduler.manager
        names = [each.host for each in objects.HostMappingList.get_all(self._context)]
        for _ in range(_TOLD):
            for name in names:
                manager.sync_instance_info(self._context, name, [])
            # Nova's own thread clears it when the scheduler starts.
            known = manager.host_manager._instance_info
            if all(known.get(name, {}).get("updated") for name in names):
                return
        raise RuntimeError("the scheduler does not believe what it is told of its hosts")

    def ask(self, question: Question) -> Sample:
        """Schedule servers, and release their claims."""
        from nova import exception
        from oslo_messaging.rpc import ExpectedException

        title = f"{question}, {'ours' if self._ours else 'stock'}"
        self.scheduler.variant = _Asked(title, self._ours, question)
        servers = [str(uuid.uuid4()) for _ in range(question.servers)]
        spec = self.scheduler.request(servers[0])
        spec.num_instances = question.servers
        self._gets = 0
        self.scheduler._claims.count = 0
        fault = ""
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            self.scheduler.manager.select_destinations(
                self._context,
                spec_obj=spec,
                instance_uuids=servers,
                return_objects=True,
                return_alternates=True,
            )
        except ExpectedException as error:
            fault = str(error.exc_info[1])
        except exception.NovaException as error:
            fault = str(error)
        found = Sample(
            seconds=time.perf_counter() - begin,
            cpu_seconds=time.process_time() - cpu,
            gets=self._gets,
            lost=self.scheduler._claims.count - len(servers),
            fault=fault,
        )
        for server in servers:
            self.scheduler.client.delete_allocation_for_instance(self._context, server, force=True)
        return found


def serve(
    nova_conf: str, log: str, ours: bool, options: Mapping[tuple[str, str], object], pipe: Any
) -> None:
    """Main function of the process: takes pairs of question and number until it meets None."""
    try:
        wanted: dict[tuple[str, str], object] = {
            **scheduler.options(Variant("", ours)),
            ("pci", "alias"): list(ALIASES),
            ("pci", "device_spec"): [],
            # Nova's default.
            ("filter_scheduler", "track_instance_changes"): True,
            **options,
        }
        side = Side(nova_process.begin(nova_conf, log, wanted), ours)
        pipe.send(READY)
        while (told := pipe.recv()) is not None:
            question, times = told
            pipe.send([side.ask(question) for _ in range(times)])
    except Exception:
        pipe.send(traceback.format_exc())


def names(count: int, first: int) -> Sequence[str]:
    """Names of hosts in the form of the races' computes."""
    return [f"node{index:05d}" for index in range(first, first + count)]


def candidates(hosts: int) -> int:
    """The limit of Placement's candidates that our documentation gives for *hosts* hosts."""
    return plugin.limit_of_candidates(hosts)


def limits(hosts: int) -> dict[tuple[str, str], object]:
    """The options of Nova for this limit; stock Nova gets the same."""
    return {("scheduler", "max_placement_results"): candidates(hosts)}
