# SPDX-License-Identifier: Apache-2.0
"""One scheduler worker: Nova's own SchedulerManager in a process of its own."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.concurrency import nova_process
from benchmarks.concurrency.computes import GPU_CLASS
from benchmarks.concurrency.model import BROKEN, PLACED, REFUSED, Create, Variant, room
from nova_hpc_tools.site import settings as plugin


def options(variant: Variant) -> dict[tuple[str, str], object]:
    """Options of ``[filter_scheduler]`` (and others) that make the variant."""
    names = plugin.place_own_filters(plugin.NOVA_FILTERS)
    available = ["nova.scheduler.filters.all_filters"]
    weighers = ["nova.scheduler.weights.all_weighers"]
    if variant.ours:
        available += plugin.FILTER_CLASSES
        weighers += plugin.WEIGHER_CLASSES
    else:
        names = [each for each in names if each not in (plugin.FILTER, plugin.FABRIC_FILTER)]
    group = "filter_scheduler"
    return {
        (group, "available_filters"): available,
        (group, "enabled_filters"): names,
        (group, "weight_classes"): weighers,
    } | dict(variant.options)


class Scheduler:
    """Answers creates as the service does, and records the outcomes."""

    def __init__(self, context: Any, gpus: int, variant: Variant, number: int) -> None:
        from nova.scheduler import manager

        self.context = context
        self.gpus = gpus
        self.variant = variant
        self.number = number
        self.manager = manager.SchedulerManager()
        self.client = self.manager.placement_client
        self.switches: dict[str, tuple[str, str]] = {}
        self._claims = threading.local()
        plain = self.client.claim_resources

        def claim(*arguments: Any, **keywords: Any) -> bool:
            self._claims.count += 1
            return bool(plain(*arguments, **keywords))

        # Only counts. It is below all wrappers of Nova's own function, so that repeated tries
        # inside of one claim count, too.
        self.client.claim_resources = claim

    def request(self, server: str) -> Any:
        """The request specification that the API makes from the flavor."""
        from nova import objects
        from nova.pci import request as pci_request

        flavor = objects.Flavor(
            id=1,
            flavorid=self.variant.title,
            name=self.variant.title,
            vcpus=2,
            memory_mb=1024,
            root_gb=1,
            ephemeral_gb=0,
            swap=0,
            rxtx_factor=1.0,
            vcpu_weight=0,
            is_public=True,
            disabled=False,
            description=None,
            extra_specs=self.variant.specs(self.gpus),
        )
        wanted = pci_request.get_pci_requests_from_flavor(flavor)
        return objects.RequestSpec.from_components(
            self.context, server, {}, flavor, None, wanted, {}, None, None,
            project_id="race", user_id="race",
        )  # fmt: skip

    def create(self, server: str) -> tuple[Create, tuple[Any, ...] | None]:
        """Schedule one server; return its outcome, and the order for the computes if placed."""
        from nova import exception
        from oslo_messaging.rpc import ExpectedException

        self._claims.count = 0
        spec = self.request(server)
        started = time.monotonic()
        order: tuple[Any, ...] | None = None
        found = Create(server, BROKEN, worker=self.number)
        try:
            lists = self.manager.select_destinations(
                self.context,
                spec_obj=spec,
                instance_uuids=[server],
                return_objects=True,
                return_alternates=True,
            )
        except Exception as error:
            ended = time.monotonic()
            cause = error.exc_info[1] if isinstance(error, ExpectedException) else error
            clean = isinstance(cause, exception.NoValidHost)
            found = Create(
                server,
                REFUSED if clean else BROKEN,
                text=str(cause) if clean else traceback.format_exc(),
                free_left=clean and self.has_room(),
                worker=self.number,
            )
        else:
            ended = time.monotonic()
            ((selection, *_),) = lists
            # The conductor passes the mapping on in this form.
            mapping = {
                group.requester_id: list(group.provider_uuids)
                for group in spec.requested_resources
                if group.requester_id
            }
            devices = tuple(one for group in mapping.values() for one in group)
            found = Create(
                server, PLACED, host=selection.service_host, devices=devices, worker=self.number
            )
            order = (spec.obj_to_primitive(), selection.service_host, mapping)
        import attrs

        return (
            attrs.evolve(found, started=started, ended=ended, claims=self._claims.count),
            order,
        )

    def has_room(self) -> bool:
        """Whether Placement has devices for one more of these servers right now."""
        url = f"/resource_providers?resources={GPU_CLASS}:1"
        answer = self.client.get(url, version="1.18")
        free = []
        for provider in answer.json()["resource_providers"]:
            # Nova names the provider of a device <host>_<address>.
            host, _, address = provider["name"].rpartition("_")
            free.append((host, address.rpartition(":")[0]))
        return room(free, self.gpus, together=self.variant.ours)


def run(
    nova_conf: str,
    log: str,
    number: int,
    threads: int,
    gpus: int,
    variant: Variant,
    extra: Mapping[tuple[str, str], object],
    barrier: Any,
    servers: Any,
    results: Any,
    orders: Any,
) -> None:
    """Main function of a scheduler's process.

    Takes servers until it meets None; puts every result into *results*, and
    sends every placed server to the computes.
    """
    try:
        context = nova_process.begin(nova_conf, log, {**options(variant), **extra})
        scheduler = Scheduler(context, gpus, variant, number)
    except Exception:
        results.put(Create("", BROKEN, text=traceback.format_exc(), worker=number))
        barrier.abort()
        return

    def serve() -> None:
        while True:
            try:
                server = servers.get(timeout=300)
            except queue.Empty:
                return
            if server is None:
                return
            try:
                result, order = scheduler.create(server)
            except Exception:
                result, order = Create(server, BROKEN, text=traceback.format_exc()), None
            if order is not None:
                orders.put(("build", order))
            results.put(result)

    barrier.wait()
    crew: Sequence[threading.Thread] = [threading.Thread(target=serve) for _ in range(threads)]
    for each in crew:
        each.start()
    for each in crew:
        each.join()
